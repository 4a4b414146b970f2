/* kernel.c: capabilities of the flash kernel, and its entry in the list of kernels. */
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/shared/computes.h"

/* At most one decay per head, on weights or logits, and no axis that applies to some pairs only. */
static const char COMPUTES[] = SR_CPU_SCORES SR_CPU_BAND
    "position=rope|none decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given "
    "decay_divisor=any decay_bound=any decay_place=weight|logit dt_width=head|none " SR_CPU_ROWS;

static size_t scratch_bytes(const srnn_plan *plan) {
    const size_t forward = flash_forward_scratch(plan), backward = flash_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_flash) = {
    .name = "flash",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SR_REAL_DTYPE,
    .computes = COMPUTES,
    .scratch = scratch_bytes,
    .forward = flash_forward,
    .backward = flash_backward,
};
