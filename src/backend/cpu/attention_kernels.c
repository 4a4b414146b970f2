/* attention_kernels.c: which attention kernels this machine has. */
#include "backend/cpu/attention_kernels.h"

#include <stddef.h>

/* One list per instruction set that the fast kernels were compiled for, best kernel first. */
#define DECLARE(isa)                                                          \
    extern const sr_attention_kernel sr_attention_flash_##isa##_f32,          \
        sr_attention_flash_##isa##_f64, sr_attention_chunked_##isa##_f32,     \
        sr_attention_chunked_##isa##_f64, sr_attention_recurrent_##isa##_f32, \
        sr_attention_recurrent_##isa##_f64
#define LIST(isa)                                                                     \
    {                                                                                 \
        &sr_attention_flash_##isa##_f32, &sr_attention_flash_##isa##_f64,             \
            &sr_attention_chunked_##isa##_f32, &sr_attention_chunked_##isa##_f64,     \
            &sr_attention_recurrent_##isa##_f32, &sr_attention_recurrent_##isa##_f64, \
            &sr_attention_generic_f32, &sr_attention_generic_f64, NULL                \
    }

DECLARE(base);
static const sr_attention_kernel *const kernels_base[] = LIST(base);
#ifdef SR_HAVE_X86_LEVELS
DECLARE(v3);
DECLARE(v4);
static const sr_attention_kernel *const kernels_v3[] = LIST(v3);
static const sr_attention_kernel *const kernels_v4[] = LIST(v4);
#endif

const sr_attention_kernel *const *sr_cpu_attention_kernels(void) {
#ifdef SR_HAVE_X86_LEVELS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return kernels_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return kernels_v3;
#endif
    return kernels_base;
}
