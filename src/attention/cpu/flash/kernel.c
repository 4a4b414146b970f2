/* kernel.c: capabilities of the flash kernel, and its entry in the list of kernels. */
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/shared/computes.h"

static size_t scratch_bytes(const srnn_plan *plan) {
    const size_t forward = flash_forward_scratch(plan), backward = flash_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_flash) = {
    .name = "flash",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SR_REAL_DTYPE,
    .computes = SR_CPU_TILES,
    .scratch = scratch_bytes,
    .forward = flash_forward,
    .backward = flash_backward,
};
