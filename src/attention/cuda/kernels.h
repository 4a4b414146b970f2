/* kernels.h (private): the attention kernels of a GPU. */
#ifndef SR_ATTENTION_CUDA_KERNELS_H
#define SR_ATTENTION_CUDA_KERNELS_H

#include "attention/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels, best first, ended by NULL. */
const sr_attention_kernel *const *sr_cuda_attention_kernels(void);

/* How states of this number type are kept: with a fixed size, or as keys and values; NULL: they are not. */
const sr_state_kernel *sr_cuda_state_kernel(const srnn_problem *problem, bool fixed);

/* Whether the chunked form was faster than the parallel one when both were timed. */
bool sr_cuda_chunked_pays(const srnn_problem *problem);

#ifdef __cplusplus
}
#endif

#endif
