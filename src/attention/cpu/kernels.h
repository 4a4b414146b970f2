/* kernels.h (private): the attention kernels of the CPU. */
#ifndef SR_ATTENTION_CPU_KERNELS_H
#define SR_ATTENTION_CPU_KERNELS_H

#include "attention/kernel.h"

/* The kernels for this machine, best first, ended by NULL. The instruction set is chosen at the
 * first call and stays. */
const sr_attention_kernel *const *sr_cpu_attention_kernels(void);

/* How states of a problem are kept: with a fixed size, or as keys and values. NULL for what the CPU has
 * no kernels for. */
const sr_state_kernel *sr_cpu_state_kernel(const srnn_problem *problem, bool fixed);

/* Whether the chunked form has less to do than the parallel one. */
bool sr_cpu_chunked_pays(const srnn_problem *problem);

#endif
