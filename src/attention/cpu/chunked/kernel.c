/* kernel.c: capabilities of the chunked kernel, and its entries in the list of kernels. */
#include "attention/cpu/chunked/chunked.h"
#include "attention/cpu/shared/computes.h"

/* A power series of the logits, whose state is a sum over keys. */
static const char COMPUTES[] = SR_CPU_SERIES SR_CPU_PLAIN_PAIRS SR_CPU_ROWS;

static size_t scratch_bytes(const srnn_plan *plan) {
    const size_t forward = chunked_forward_scratch(plan), backward = chunked_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_chunked) = {
    .name = "chunked",
    .form = SRNN_FORM_CHUNKED,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .scratch = scratch_bytes,
    .forward = chunked_forward,
    .backward = chunked_backward,
};

const sr_attention_kernel SR_ISA_REAL(sr_attention_recurrent) = {
    .name = "recurrent",
    .form = SRNN_FORM_RECURRENT,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .scratch = chunked_forward_scratch,
    .forward = chunked_forward,
};
