/* axes_chunks.cu: chunks with the axes of rows and a decay per head: supported problems, and the
 * steps of a call. */
#include "attention/cuda/linear/axes_chunks.h"

#include "attention/cuda/shared/computes.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] =
    "score=linear position=rope|none share=kv|qk|qk_tiled scale=inverse_sqrt|one "
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any "
    "decay_bound=any dt_width=head|none value_gate=off|sigmoid|time_step "
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth "
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on "
    "epsilon=any skip=none|head|channel|conv|bonus "
    "output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "
    "norm_epsilon=any";

/* Numbers of a value, and those that make row sums. */
static int value_numbers(const srnn_problem *problem) {
    const srnn_attention *const a = &problem->attention;
    const bool sums = sr_needs_row_sum(a) || sr_floor_follows_rows(a);
    return problem->Dv + (sums ? SR_SUM_COLUMNS : 0);
}

static bool fits(const srnn_problem *problem) {
    const int values = value_numbers(problem);
    return problem->D <= 128 && values <= 128 &&
           sr_axes_chunks_shared_bytes(problem->D, values) <=
               sr_cuda_facts(problem->device)->shared_bytes;
}

static sr_bf16 *states_place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *const p = &plan->core;
    const size_t numbers = (size_t)sr_axes_chunk_width(p->D) *
                           (size_t)sr_axes_chunk_width(value_numbers(&plan->problem));
    const size_t chunks = (size_t)p->B * (size_t)p->Hkv * (size_t)axes_chunk_count(p->T);
    return (sr_bf16 *)sr_layout_take(layout, chunks * numbers, sizeof(sr_bf16));
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, true, &layout);
    states_place(plan, &layout);
    return layout.used;
}

static srnn_status forward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_axes_call call = sr_axes_call_of(wanted, false, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_chunks_forward(call, stream));
    return sr_axes_finish(call, stream);
}

static srnn_status backward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    sr_axes_call call = sr_axes_call_of(wanted, true, &layout);
    sr_bf16 *const states = states_place(wanted->plan, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    call.gates_direct = true;
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(sr_axes_outputs_backward(call, stream));
    SR_TRY(sr_axes_chunks_states(call, states, stream));
    SR_TRY(sr_axes_chunks_backward(call, states, stream));
    return sr_axes_inputs_backward(call, stream);
}

const sr_attention_kernel sr_cuda_attention_axes_chunks = {
    "axes_chunks", SRNN_FORM_CHUNKED, SRNN_BF16, COMPUTES, fits,
    nullptr,       scratch_bytes,     forward,   backward,
};
