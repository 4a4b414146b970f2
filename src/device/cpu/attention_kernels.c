/* attention_kernels.c: which attention kernels this machine has. */
#include "device/cpu/attention_kernels.h"

#include "attention/attention.h"
#include "base/cpu_level.h"

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

static const kernel_set *set_in_use(void) {
#ifdef SR_HAVE_X86_LEVELS
    switch (sr_cpu_level_used()) {
    case SR_CPU_V4:
        return &set_v4;
    case SR_CPU_V3:
        return &set_v3;
    case SR_CPU_BASE:
        break;
    }
#endif
    return &set_base;
}

const sr_attention_kernel *const *sr_cpu_attention_kernels(void) {
    return set_in_use()->attention;
}

const sr_state_kernel *sr_cpu_state_kernel(const srnn_problem *problem, bool fixed) {
    const srnn_dtype dtype = problem->dtype;
    if (dtype == SRNN_BF16 || sr_beyond_plain(&problem->attention))
        return NULL;
    return fixed ? set_in_use()->fixed[dtype] : set_in_use()->kept[dtype];
}

bool sr_cpu_chunked_pays(const srnn_problem *p) {
    const double state = (double)srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    const double pair = (double)(p->D + p->Dv);
    /* Multiply-adds of a token: reading and updating the state, a chunk of pairs, and the features;
     * against half of T pairs. */
    const double chunked = 2.5 * state + pair * p->chunk;
    return chunked < 0.5 * pair * p->T;
}
