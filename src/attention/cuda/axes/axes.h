/* axes.h (private): kernels for every axis of the equation, in float and bf16. */
#ifndef SR_ATTENTION_CUDA_AXES_AXES_H
#define SR_ATTENTION_CUDA_AXES_AXES_H

#include "attention/kernel.h"

/* The parallel form; the chunked form, token by token; the same forward only. */
extern const sr_attention_kernel sr_cuda_attention_pairs_f32, sr_cuda_attention_pairs_bf16;
extern const sr_attention_kernel sr_cuda_attention_walk_f32, sr_cuda_attention_walk_bf16;
extern const sr_attention_kernel sr_cuda_attention_walk_recurrent_f32,
    sr_cuda_attention_walk_recurrent_bf16;

/* Whether the chunked form is the one to choose where only these kernels compute a variant. */
bool sr_axes_walk_pays(const srnn_problem *problem);

/* The two kinds of state: recurrent, and KV cache. */
extern const sr_state_kernel sr_cuda_axes_recurrent_f32, sr_cuda_axes_recurrent_bf16;
extern const sr_state_kernel sr_cuda_axes_kv_cache_f32, sr_cuda_axes_kv_cache_bf16;

#endif
