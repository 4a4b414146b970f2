/* cancel.h: calls that stop on request (srnn_stop_when). */
#ifndef SR_BASE_CANCEL_H
#define SR_BASE_CANCEL_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Around a call that may be stopped. End returns SRNN_ERR_INTERRUPTED if it was, else `status`. */
void sr_cancel_begin(void);
srnn_status sr_cancel_end(srnn_status status);

/* Whether the call that this thread works for is to stop: polled between tiles, by loops that may
 * last. What they leave unfinished nobody reads. */
bool sr_cancelled(void);

/* How threads work for the call of another: the caller's flag (NULL: its call cannot be stopped),
 * which a helper follows. */
atomic_bool *sr_cancel_flag(void);
void sr_cancel_follow(atomic_bool *flag);

#endif
