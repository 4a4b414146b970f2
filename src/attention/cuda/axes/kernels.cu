/* kernels.cu: what the kernels for every axis compute, and their rows in the list of kernels. */
#include "attention/cuda/axes/axes.h"
#include "attention/cuda/axes/pairs.h"
#include "attention/cuda/shared/computes.h"

/* ---- parallel ---- */

/* The delta rule's arrays, all (B, Hkv, T, Dv). */
struct pairs_scratch {
    float *u, *error, *d_u, *r;
};

static pairs_scratch pairs_place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const size_t count = p->attention.write == SRNN_WRITE_DELTA
                             ? (size_t)p->B * (size_t)p->Hkv * (size_t)p->T * (size_t)p->Dv
                             : 0;
    pairs_scratch s = {};
    if (count == 0)
        return s;
    s.u = (float *)sr_layout_take(layout, count, sizeof(float));
    if (!backward)
        return s;
    s.error = (float *)sr_layout_take(layout, count, sizeof(float));
    s.d_u = (float *)sr_layout_take(layout, count, sizeof(float));
    s.r = (float *)sr_layout_take(layout, count, sizeof(float));
    return s;
}

static size_t pairs_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, true, &layout);
    pairs_place(plan, true, &layout);
    return layout.used;
}

static srnn_status pairs_forward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_axes_call call = sr_axes_call_of(wanted, false, &layout);
    const pairs_scratch s = pairs_place(wanted->plan, false, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_pairs_forward(call, axes_own_keys(call, s.u, nullptr), stream));
    return sr_axes_finish(call, stream);
}

static srnn_status pairs_backward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_axes_call call = sr_axes_call_of(wanted, true, &layout);
    const pairs_scratch s = pairs_place(wanted->plan, true, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_outputs_backward(call, stream));
    SR_TRY(sr_axes_pairs_backward(call, axes_own_keys(call, s.u, s.error), s.d_u, s.r, stream));
    return sr_axes_inputs_backward(call, stream);
}

#define PAIRS(dtype)                                                                           \
    {                                                                                          \
        "pairs", SRNN_FORM_PARALLEL, dtype, SR_CUDA_EVERYTHING, nullptr, nullptr, pairs_bytes, \
            pairs_forward, pairs_backward,                                                     \
    }

const sr_attention_kernel sr_cuda_attention_pairs_f32 = PAIRS(SRNN_F32);
const sr_attention_kernel sr_cuda_attention_pairs_bf16 = PAIRS(SRNN_BF16);
