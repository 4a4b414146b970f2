/* attention_fast.c: the table of fast kernels for one number type and instruction set. */
#include "backend/cpu/attention_flash.h"
#include "backend/cpu/attention_kernels.h"

static bool supports(const srnn_problem *problem) {
    (void)problem;
    return true;
}

static size_t flash_scratch(const srnn_plan *plan) {
    size_t forward = flash_forward_scratch(plan), backward = flash_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_flash) = {
    "flash",       SRNN_FORM_PARALLEL, SR_REAL_DTYPE,  supports,
    flash_scratch, flash_forward,      flash_backward,
};
