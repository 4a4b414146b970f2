/* attention_generic.h (private): the attention kernel of GPUs that computes everything, in float. */
#ifndef SR_CUDA_ATTENTION_GENERIC_H
#define SR_CUDA_ATTENTION_GENERIC_H

#include "device/attention_kernel.h"

extern const sr_attention_kernel sr_cuda_attention_generic;

#endif
