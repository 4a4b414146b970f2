/* kernels.cu: what the kernels for every axis compute, and their rows in the list of kernels. */
#include "attention/cuda/axes/axes.h"
#include "attention/cuda/axes/pairs.h"
#include "attention/cuda/axes/walk.h"
#include "attention/cuda/shared/computes.h"
#include "equation/facts.h"

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

static bool pairs_fit(const srnn_problem *p) {
    const int features = sr_feature_width(&p->attention, p->D);
    return sr_axes_pairs_shared_bytes(features > p->Dv ? features : p->Dv) <=
           sr_cuda_facts(p->device)->shared_bytes;
}

#define PAIRS(dtype)                                                                             \
    {                                                                                            \
        "pairs", SRNN_FORM_PARALLEL, dtype, SR_CUDA_EVERYTHING, pairs_fit, nullptr, pairs_bytes, \
            pairs_forward, pairs_backward, true,                                                 \
    }

const sr_attention_kernel sr_cuda_attention_pairs_f32 = PAIRS(SRNN_F32);
const sr_attention_kernel sr_cuda_attention_pairs_bf16 = PAIRS(SRNN_BF16);

/* ---- through a state ---- */

/* The backward pass of levels and series is that of the parallel form: the function is the same. */
struct walk_scratch {
    axes_state state;
    sr_feature_table table;
    pairs_scratch pairs;
    axes_walk_scratch back;
};

static walk_scratch walk_place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    walk_scratch s = {};
    s.state = sr_axes_state_place(&plan->core, layout);
    s.table = sr_feature_table_place(&plan->core, layout);
    if (!backward)
        return s;
    s.pairs = pairs_place(plan, true, layout);
    s.back = sr_axes_walk_place(plan, layout);
    return s;
}

static size_t walk_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, true, &layout);
    walk_place(plan, true, &layout);
    return layout.used;
}

static size_t walk_forward_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, false, &layout);
    walk_place(plan, false, &layout);
    return layout.used;
}

static srnn_status walk_forward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_axes_call call = sr_axes_call_of(wanted, false, &layout);
    const walk_scratch s = walk_place(wanted->plan, false, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    if (!sr_axes_walks_back(&call.a))
        SR_TRY(sr_feature_table_fill(s.table, &wanted->plan->core, stream));
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_walk_forward(call, s.state, s.table, stream));
    return sr_axes_finish(call, stream);
}

static srnn_status walk_backward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    sr_axes_call call = sr_axes_call_of(wanted, true, &layout);
    const walk_scratch s = walk_place(wanted->plan, true, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    call.gates_direct = sr_axes_walks_back(&call.a);
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_outputs_backward(call, stream));
    if (call.gates_direct)
        SR_TRY(sr_axes_walk_backward(call, s.back, stream));
    else
        SR_TRY(sr_axes_pairs_backward(call, axes_own_keys(call, s.pairs.u, s.pairs.error),
                                      s.pairs.d_u, s.pairs.r, stream));
    return sr_axes_inputs_backward(call, stream);
}

static bool has_state(const srnn_problem *problem) {
    return srnn_attention_has_state(&problem->attention);
}

/* By the numbers of a token: of the state, forward and back, against half of T pairs. Where the
 * backward pass is that of pairs there is nothing to gain. */
bool sr_axes_walk_pays(const srnn_problem *p) {
    const double state = (double)p->D * p->Dv, pairs = 0.5 * p->T * (p->D + p->Dv);
    return sr_axes_walks_back(&p->attention) && 4 * state < pairs;
}

#define WALK(dtype)                                                                      \
    {                                                                                    \
        "walk", SRNN_FORM_CHUNKED, dtype, SR_CUDA_STATE, has_state, nullptr, walk_bytes, \
            walk_forward, walk_backward, true,                                           \
    }
#define WALK_RECURRENT(dtype)                                                            \
    {                                                                                    \
        "walk_recurrent", SRNN_FORM_RECURRENT, dtype, SR_CUDA_STATE, has_state, nullptr, \
            walk_forward_bytes, walk_forward, nullptr, true,                             \
    }

const sr_attention_kernel sr_cuda_attention_walk_f32 = WALK(SRNN_F32);
const sr_attention_kernel sr_cuda_attention_walk_bf16 = WALK(SRNN_BF16);
const sr_attention_kernel sr_cuda_attention_walk_recurrent_f32 = WALK_RECURRENT(SRNN_F32);
const sr_attention_kernel sr_cuda_attention_walk_recurrent_bf16 = WALK_RECURRENT(SRNN_BF16);
