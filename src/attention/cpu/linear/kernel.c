/* kernel.c: capabilities of the linear kernel, and its entries in the list of kernels. */
#include "attention/cpu/linear/linear.h"
#include "attention/cpu/shared/computes.h"
#include "equation/facts.h"

static const char COMPUTES[] = SR_CPU_LINEAR;

/* The chunked kernel takes plain pairs. */
static bool fits(const srnn_problem *problem) {
    return srnn_attention_has_state(&problem->attention) &&
           !sr_pairs_are_plain(&problem->attention);
}

static size_t scratch_bytes(const srnn_plan *plan) {
    const size_t forward = linear_forward_scratch(plan), backward = linear_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_linear) = {
    .name = "linear",
    .form = SRNN_FORM_CHUNKED,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .fits = fits,
    .scratch = scratch_bytes,
    .forward = linear_forward,
    .backward = linear_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_linear_recurrent) = {
    .name = "linear_recurrent",
    .form = SRNN_FORM_RECURRENT,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .fits = fits,
    .scratch = linear_forward_scratch,
    .forward = linear_forward,
};
