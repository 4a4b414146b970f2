/* cancel.h: calls that stop on request (srnn_stop_when). */
#ifndef SR_BASE_CANCEL_H
#define SR_BASE_CANCEL_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Enclose a call that can be stopped. End returns SRNN_ERR_INTERRUPTED if it was stopped, else
 * `status`. */
void sr_cancel_begin(void);
srnn_status sr_cancel_end(srnn_status status);

/* Whether the call that this thread works for should stop: polled between tiles by long loops.
 * Their unfinished results are discarded. */
bool sr_cancelled(void);

/* For helper threads: the caller's flag (NULL: its call cannot be stopped), which a helper
 * polls. */
atomic_bool *sr_cancel_flag(void);
void sr_cancel_follow(atomic_bool *flag);

#endif
