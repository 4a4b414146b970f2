/* order2.cu: chunked attention of order 2 in bf16: supported problems, and the steps of a call. */
#include "attention/cuda/order2/order2.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] = "score=taylor|power " SR_CUDA_DECAY SR_CUDA_ROWS;

static bool fits(const srnn_problem *problem) {
    return sr_highest_order(&problem->attention) <= 2 && problem->D <= 64 && problem->Dv <= 64;
}

/* Tokens of a segment: with this length the state, its sums in memory and the pairs inside take
 * about equally long. A requested chunk is that of the CPU, whose longest means none requested: any
 * other gives the shortest segments. */
static int segment_of(const srnn_problem *p) {
    enum { LONGEST_CHUNK = 96 };
    if (p->chunk < LONGEST_CHUNK)
        return SR_ORDER2_ROWS;
    return p->D <= 16 ? 2 * SR_ORDER2_ROWS : 8 * SR_ORDER2_ROWS;
}

sr_order2 sr_order2_of(const srnn_problem *p) {
    const int segment = segment_of(p), tiles = (p->D + 15) / 16;
    const int pairs = sr_highest_order(&p->attention) < 2 ? 0 : tiles * (tiles + 1) / 2;
    return {p->B * p->Hkv, segment, (p->T + segment - 1) / segment, tiles, pairs, nullptr, nullptr};
}

static sr_order2 take_states(const srnn_plan *plan, sr_layout *layout) {
    sr_order2 expanded = sr_order2_of(&plan->problem);
    const size_t states = expanded.count > 1 ? (size_t)expanded.heads * (size_t)expanded.count : 0;
    expanded.sums =
        (float *)sr_layout_take(layout, states, (size_t)expanded.sum_numbers() * sizeof(float));
    expanded.states = (sr_bf16 *)sr_layout_take(layout, states,
                                                (size_t)expanded.state_numbers() * sizeof(sr_bf16));
    return expanded;
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<sr_bf16>(plan, &layout);
    take_states(plan, &layout);
    return layout.used;
}

static srnn_status forward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view = sr_attention_forward_view<sr_bf16>(call, &layout);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    const sr_order2 expanded = take_states(call->plan, &layout);
    SR_TRY(sr_attention_prepare(view, stream));
    SR_TRY(sr_order2_states_before(view, aligned, expanded, stream));
    return sr_order2_forward(view, aligned, expanded, stream);
}

static srnn_status backward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view = sr_attention_backward_view<sr_bf16>(call, &layout);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    const sr_order2 expanded = take_states(call->plan, &layout);
    SR_TRY(sr_attention_prepare(view, stream));
    SR_TRY(sr_attention_outputs_backward(view, stream));
    SR_TRY(sr_order2_states_before(view, aligned, expanded, stream));
    SR_TRY(sr_order2_backward_queries(view, aligned, expanded, stream));
    SR_TRY(sr_order2_states_after(view, aligned, expanded, stream));
    SR_TRY(sr_order2_backward_keys(view, aligned, expanded, stream));
    SR_TRY(sr_order2_backward_values(view, aligned, expanded, stream));
    return sr_attention_inputs_backward(view, stream);
}

const sr_attention_kernel sr_cuda_attention_order2 = {
    "order2", SRNN_FORM_CHUNKED, SRNN_BF16, COMPUTES, fits,
    nullptr,  scratch_bytes,     forward,   backward, true,
};
