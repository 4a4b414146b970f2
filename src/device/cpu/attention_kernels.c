/* attention_kernels.c: which attention kernels this machine has. */
#include "device/cpu/attention_kernels.h"

#include <stdlib.h>
#include <string.h>

/* What was compiled for one instruction set; kernels best first, ended by NULL. */
typedef struct kernel_set {
    const sr_attention_kernel *attention[9];
    const sr_state_kernel *fixed[2], *kept[2]; /* by srnn_dtype */
} kernel_set;

#define DECLARE(isa)                                                                     \
    extern const sr_attention_kernel sr_attention_flash_##isa##_f32,                     \
        sr_attention_flash_##isa##_f64, sr_attention_chunked_##isa##_f32,                \
        sr_attention_chunked_##isa##_f64, sr_attention_recurrent_##isa##_f32,            \
        sr_attention_recurrent_##isa##_f64, sr_attention_generic_##isa##_f32,            \
        sr_attention_generic_##isa##_f64;                                                \
    extern const sr_state_kernel sr_state_fixed_##isa##_f32, sr_state_fixed_##isa##_f64, \
        sr_state_kept_##isa##_f32, sr_state_kept_##isa##_f64

#define SET(isa)                                                                                \
    {                                                                                           \
        .attention = {&sr_attention_flash_##isa##_f32,     &sr_attention_flash_##isa##_f64,     \
                      &sr_attention_chunked_##isa##_f32,   &sr_attention_chunked_##isa##_f64,   \
                      &sr_attention_recurrent_##isa##_f32, &sr_attention_recurrent_##isa##_f64, \
                      &sr_attention_generic_##isa##_f32,   &sr_attention_generic_##isa##_f64},  \
        .fixed = {&sr_state_fixed_##isa##_f32, &sr_state_fixed_##isa##_f64},                    \
        .kept = {&sr_state_kept_##isa##_f32, &sr_state_kept_##isa##_f64},                       \
    }

DECLARE(base);
static const kernel_set set_base = SET(base);
#ifdef SR_HAVE_X86_LEVELS
DECLARE(v3);
DECLARE(v4);
static const kernel_set set_v3 = SET(v3);
static const kernel_set set_v4 = SET(v4);
#endif

/* The best set that this machine can run; SOFTRNN_CPU=base, v3 or v4 asks for no more than that. */
static const kernel_set *this_machine(void) {
#ifdef SR_HAVE_X86_LEVELS
    const char *asked = getenv("SOFTRNN_CPU");
    bool up_to_v3 = !asked || strcmp(asked, "base") != 0;
    bool up_to_v4 = up_to_v3 && (!asked || strcmp(asked, "v3") != 0);
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi2");
    bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (v4 && up_to_v4)
        return &set_v4;
    if (v3 && up_to_v3)
        return &set_v3;
#endif
    return &set_base;
}

const sr_attention_kernel *const *sr_cpu_attention_kernels(void) {
    return this_machine()->attention;
}

const sr_state_kernel *sr_cpu_state_kernel(srnn_dtype dtype, bool fixed) {
    if (dtype == SRNN_BF16)
        return NULL;
    return fixed ? this_machine()->fixed[dtype] : this_machine()->kept[dtype];
}
