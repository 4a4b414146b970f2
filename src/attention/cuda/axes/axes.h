/* axes.h (private): kernels for every axis of the equation, in float and bf16. */
#ifndef SR_ATTENTION_CUDA_AXES_AXES_H
#define SR_ATTENTION_CUDA_AXES_AXES_H

#include "attention/kernel.h"

extern const sr_attention_kernel sr_cuda_attention_pairs_f32, sr_cuda_attention_pairs_bf16;

#endif
