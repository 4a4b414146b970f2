/* kernels.cu: the attention kernels of a GPU. */
#include "attention/cuda/axes/axes.h"
#include "attention/cuda/chunks/steps.h"
#include "attention/cuda/decode/state.h"
#include "attention/cuda/generic/generic.h"
#include "attention/cuda/hopper/hopper.h"
#include "attention/cuda/linear/linear.h"
#include "attention/cuda/mma/mma.h"
#include "attention/cuda/order2/order2.h"
#include "attention/cuda/pooled/pooled.h"
#include "attention/cuda/shared/computes.h"
#include "equation/facts.h"
#include "equation/support.h"

static const sr_attention_kernel *const *list(void) {
    static const sr_attention_kernel *const kernels[] = {&sr_cuda_attention_hopper_ordered,
                                                         &sr_cuda_attention_hopper,
                                                         &sr_cuda_attention_mma,
                                                         &sr_cuda_attention_generic,
                                                         &sr_cuda_attention_hopper_chunked,
                                                         &sr_cuda_attention_chunked,
                                                         &sr_cuda_attention_chunks,
                                                         &sr_cuda_attention_order2,
                                                         &sr_cuda_attention_pooled,
                                                         &sr_cuda_attention_pairs_f32,
                                                         &sr_cuda_attention_pairs_bf16,
                                                         &sr_cuda_attention_walk_f32,
                                                         &sr_cuda_attention_walk_bf16,
                                                         &sr_cuda_attention_walk_recurrent_f32,
                                                         &sr_cuda_attention_walk_recurrent_bf16,
                                                         nullptr};
    return kernels;
}

/* The first that computes the variant, of those for plain pairs before those for every axis. */
static const sr_state_kernel *state(const srnn_problem *problem, bool recurrent) {
    const sr_state_kernel *plain = nullptr, *other = nullptr;
    switch (problem->dtype) {
    case SRNN_F32:
        plain = recurrent ? &sr_cuda_state_recurrent_f32 : &sr_cuda_state_kv_cache_f32;
        other = recurrent ? &sr_cuda_axes_recurrent_f32 : &sr_cuda_axes_kv_cache_f32;
        break;
    case SRNN_BF16:
        plain = recurrent ? &sr_cuda_state_recurrent_bf16 : &sr_cuda_state_kv_cache_bf16;
        other = recurrent ? &sr_cuda_axes_recurrent_bf16 : &sr_cuda_axes_kv_cache_bf16;
        break;
    case SRNN_F64:
        return nullptr;
    }
    if (sr_computes(plain->computes, &problem->attention, nullptr))
        return plain;
    return sr_computes(other->computes, &problem->attention, nullptr) ? other : nullptr;
}

/* Whether a kernel with tensor cores computes the chunked form of a problem. */
static bool has_fast_chunks(const srnn_problem *p) {
    static const sr_attention_kernel *const kernels[] = {&sr_cuda_attention_hopper_chunked,
                                                         &sr_cuda_attention_chunked,
                                                         &sr_cuda_attention_order2};
    for (const sr_attention_kernel *kernel : kernels)
        if (kernel->dtype == p->dtype && sr_kernel_can(kernel, p))
            return true;
    return false;
}

/* H200, bf16: up to about this many pairs of positions in all heads, for calls that do not fill the
 * GPU, the parallel form of linear_elu with D = 64 was as fast or faster; and for order 2 up to
 * about this many tokens with forward and backward together. See docs/PERFORMANCE.md. Where the
 * chunked form is that of axes/, it pays next to pairs without tensor cores; the cores of chunks/
 * pay from the second chunk on, next to the same kernels. */
static bool chunked_pays(const srnn_problem *p) {
    const bool plain = sr_computes(SR_CUDA_KV_CACHE, &p->attention, nullptr);
    if (!has_fast_chunks(p) && p->dtype == SRNN_BF16 && sr_kernel_can(&sr_cuda_attention_chunks, p))
        return p->T > SR_CHUNK;
    if (!has_fast_chunks(p))
        return (p->dtype == SRNN_F32 || !plain) && sr_axes_walk_pays(p);
    const double pairs = (double)p->B * p->H * p->T * p->T;
    const int tokens = sr_highest_order(&p->attention) < 2 ? 0
                       : p->D <= 16                        ? 512
                       : p->D <= 32                        ? 3072
                                                           : 8192;
    return pairs > 33e6 && p->T >= tokens;
}

extern "C" const sr_attention_kernels sr_cuda_attention = {
    list, state, chunked_pays, SR_HEAD_SIZE_MAX, sr_cuda_carries_states, nullptr, nullptr,
};
