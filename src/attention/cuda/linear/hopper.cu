/* hopper.cu: chunked linear attention on Hopper: supported problems, and the steps of a call. */
#include "attention/cuda/linear/hopper.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] = "score=linear " SR_CUDA_ROWS;

static bool fits(const srnn_problem *problem) {
    const sr_cuda_device *gpu = sr_cuda_facts(problem->device);
    return gpu->capability_major == 9 && gpu->capability_minor == 0 && problem->D == SR_CHUNK &&
           problem->Dv == SR_CHUNK;
}

static sr_chunk_workspace take_workspace(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *const p = &plan->problem;
    const int multiprocessors = sr_cuda_facts(plan->device)->multiprocessors;
    const int group = p->H / p->Hkv;
    const size_t of_cores[] = {sr_chunked_states(p, group, HOPPER_PLAIN_BLOCKS * multiprocessors),
                               sr_chunked_states(p, group, HOPPER_FORWARD_BLOCKS * multiprocessors),
                               sr_chunked_states(p, group, HOPPER_QUERY_BLOCKS * multiprocessors),
                               sr_chunked_states(p, 1, SR_KEY_BLOCKS * multiprocessors),
                               sr_chunked_states(p, 1, HOPPER_KEY_BLOCKS * multiprocessors)};
    size_t states = 0;
    for (const size_t of_core : of_cores)
        states = of_core > states ? of_core : states;
    return {multiprocessors,
            (float *)sr_layout_take(layout, states, SR_STATE_NUMBERS * sizeof(float))};
}

/* Calls that TMA cannot copy fall back to the chunked kernel, which saves the same for the backward
 * pass. */
static size_t scratch_bytes(const srnn_plan *plan) {
    const size_t portable = sr_cuda_attention_chunked.scratch(plan);
    sr_layout layout = {};
    sr_attention_scratch_place<sr_bf16>(plan, &layout, SR_FEATURES_IN_CORE);
    take_workspace(plan, &layout);
    return layout.used > portable ? layout.used : portable;
}

static srnn_status forward(const sr_attention_call *wanted) {
    const cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    sr_attention_view<sr_bf16> view =
        sr_attention_forward_view<sr_bf16>(wanted, &layout, SR_FEATURES_IN_CORE);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    if (!aligned.q || !aligned.k || !aligned.v)
        return sr_cuda_attention_chunked.forward(wanted);
    if (sr_chunked_plain(view))
        view.numerator = nullptr;
    SR_TRY(sr_attention_prepare(view, stream));
    return hopper_chunked_forward(view, aligned, take_workspace(wanted->plan, &layout), stream);
}

static srnn_status backward(const sr_attention_call *wanted) {
    const cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view =
        sr_attention_backward_view<sr_bf16>(wanted, &layout, SR_FEATURES_IN_CORE);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    const sr_chunk_workspace workspace = take_workspace(wanted->plan, &layout);
    if (!aligned.q || !aligned.k || !aligned.v || !aligned.d_numerator)
        return sr_cuda_attention_chunked.backward(wanted);
    SR_TRY(sr_attention_prepare(view, stream));
    if (!sr_chunked_plain(view))
        SR_TRY(sr_attention_outputs_backward(view, stream));
    SR_TRY(hopper_chunked_backward_queries(view, aligned, workspace, stream));
    if (view.group == 1)
        SR_TRY(hopper_chunked_backward_keys(view, aligned, workspace, stream));
    else
        SR_TRY(sr_chunked_backward_keys(view, aligned, workspace, stream));
    return sr_attention_inputs_backward(view, stream);
}

const sr_attention_kernel sr_cuda_attention_hopper_chunked = {
    "hopper_chunked", SRNN_FORM_CHUNKED, SRNN_BF16, COMPUTES, fits,
    nullptr,          scratch_bytes,     forward,   backward, false,
};
