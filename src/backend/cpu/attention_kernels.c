/* attention_kernels.c: which attention kernels this machine has. */
#include "backend/cpu/attention_kernels.h"

const sr_attention_kernel *const *sr_cpu_attention_kernels(void) {
    static const sr_attention_kernel *const kernels[] = {
        &sr_attention_generic_f32,
        &sr_attention_generic_f64,
        NULL,
    };
    return kernels;
}
