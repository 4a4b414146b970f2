/* generic.h (private): the GPU attention kernel for plain pairs of every shape, in float. */
#ifndef SR_ATTENTION_CUDA_GENERIC_GENERIC_H
#define SR_ATTENTION_CUDA_GENERIC_GENERIC_H

#include "attention/kernel.h"

extern const sr_attention_kernel sr_cuda_attention_generic;

#endif
