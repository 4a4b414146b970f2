/* kernel.c: capabilities of the pooled kernel, and its entry in the list of kernels. */
#include "attention/cpu/pooled/pooled.h"
#include "attention/cpu/shared/computes.h"

/* Running averages within chunks, without decay. */
static const char COMPUTES[] = SR_CPU_SCORES "position=rope|none|rope_chunks pool=any " SR_CPU_ROWS;

static bool fits(const srnn_problem *problem) {
    return problem->attention.pool != 0;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_pooled) = {
    .name = "pooled",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .fits = fits,
    .scratch = pooled_scratch,
    .forward = pooled_forward,
    .backward = pooled_backward,
};
