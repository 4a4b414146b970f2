/* linear.cu: chunked linear attention in bf16: supported problems, and the steps of a call. */
#include "attention/cuda/linear/linear.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] = "score=linear " SR_CUDA_DECAY SR_CUDA_ROWS;

static bool fits(const srnn_problem *problem) {
    return problem->D <= 64 && problem->Dv <= 64;
}

static sr_chunk_workspace take_workspace(const srnn_plan *plan, sr_layout *layout) {
    const int multiprocessors = sr_cuda_facts(plan->device)->multiprocessors;
    const srnn_problem *const p = &plan->problem;
    const int group = p->H / p->Hkv;
    const size_t of_cores[] = {sr_chunked_states(p, group, SR_FORWARD_BLOCKS * multiprocessors),
                               sr_chunked_states(p, group, SR_QUERY_BLOCKS * multiprocessors),
                               sr_chunked_states(p, 1, SR_KEY_BLOCKS * multiprocessors)};
    size_t states = 0;
    for (const size_t of_core : of_cores)
        states = of_core > states ? of_core : states;
    return {multiprocessors,
            (float *)sr_layout_take(layout, states, SR_STATE_NUMBERS * sizeof(float))};
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<sr_bf16>(plan, &layout, SR_FEATURES_IN_CORE);
    take_workspace(plan, &layout);
    return layout.used;
}

static srnn_status forward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    sr_attention_view<sr_bf16> view =
        sr_attention_forward_view<sr_bf16>(call, &layout, SR_FEATURES_IN_CORE);
    if (sr_chunked_plain(view))
        view.numerator = nullptr;
    SR_TRY(sr_attention_prepare(view, stream));
    return sr_chunked_forward(view, sr_mma_alignment_of(view), take_workspace(call->plan, &layout),
                              stream);
}

static srnn_status backward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view =
        sr_attention_backward_view<sr_bf16>(call, &layout, SR_FEATURES_IN_CORE);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    const sr_chunk_workspace workspace = take_workspace(call->plan, &layout);
    SR_TRY(sr_attention_prepare(view, stream));
    if (!sr_chunked_plain(view))
        SR_TRY(sr_attention_outputs_backward(view, stream));
    SR_TRY(sr_chunked_backward_queries(view, aligned, workspace, stream));
    SR_TRY(sr_chunked_backward_keys(view, aligned, workspace, stream));
    return sr_attention_inputs_backward(view, stream);
}

const sr_attention_kernel sr_cuda_attention_chunked = {
    "chunked", SRNN_FORM_CHUNKED, SRNN_BF16, COMPUTES, fits,
    nullptr,   scratch_bytes,     forward,   backward, false,
};
