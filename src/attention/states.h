/* states.h: which kernels take initial and leave final states (srnn_states). */
#ifndef SR_ATTENTION_STATES_H
#define SR_ATTENTION_STATES_H

#include "softrnn.h"

/* What problem.kernel must be for calls with states: the first kernel of the device that takes them
 * in the chunked form, which may not be the fastest without. NULL: none does. */
const char *sr_states_kernel(const srnn_problem *problem);

#endif
