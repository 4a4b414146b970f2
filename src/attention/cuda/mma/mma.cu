/* mma.cu: attention in bf16 on the tensor cores of sm_80 and newer: supported problems, steps of a
 * call. */
#include "attention/cuda/mma/mma.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/device.h"
#include "equation/facts.h"

static const char COMPUTES[] = SR_CUDA_FAST_SCORES SR_CUDA_FAST_DECAYS SR_CUDA_FAST_ROWS;

/* The gradient of a decay's rate is a sum over all tokens of differences that cancel: with weights
 * in bf16 it was off by 1.8e-2. */
static bool fits(const srnn_problem *problem) {
    return problem->D <= 256 && problem->Dv <= 256 && !sr_decay_has_rate(&problem->attention);
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<sr_bf16>(plan, &layout);
    return layout.used;
}

sr_mma_alignment sr_mma_alignment_of(const sr_attention_view<sr_bf16> &call) {
    sr_mma_alignment aligned = {};
    aligned.q = sr_rows_aligned(call.q);
    aligned.k = sr_rows_aligned(call.k);
    aligned.v = sr_rows_aligned(call.v);
    aligned.o = sr_rows_aligned(call.o);
    aligned.numerator = call.Dv % sr_vector<sr_bf16>::count == 0;
    aligned.d_numerator = sr_rows_aligned(call.d_numerator);
    aligned.d_q = sr_rows_aligned(call.d_q);
    aligned.d_k = sr_rows_aligned(call.d_k);
    aligned.d_v = sr_rows_aligned(call.d_v);
    return aligned;
}

static srnn_status forward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view = sr_attention_forward_view<sr_bf16>(call, &layout);
    SR_TRY(sr_attention_prepare(view, stream));
    return sr_mma_forward(view, sr_mma_alignment_of(view), stream);
}

static srnn_status backward(const sr_attention_call *call) {
    const cudaStream_t stream = sr_cuda_stream(call->plan->device);
    sr_layout layout = {(char *)call->plan->scratch, 0};
    const sr_attention_view<sr_bf16> view = sr_attention_backward_view<sr_bf16>(call, &layout);
    const sr_mma_alignment aligned = sr_mma_alignment_of(view);
    SR_TRY(sr_attention_prepare(view, stream));
    SR_TRY(sr_attention_outputs_backward(view, stream));
    SR_TRY(sr_mma_backward_keys(view, aligned, stream));
    SR_TRY(sr_mma_backward_queries(view, aligned, stream));
    return sr_attention_inputs_backward(view, stream);
}

const sr_attention_kernel sr_cuda_attention_mma = {
    "mma",   SRNN_FORM_PARALLEL, SRNN_BF16, COMPUTES, fits,
    nullptr, scratch_bytes,      forward,   backward, false,
};
