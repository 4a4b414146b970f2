/* kernels.c: the table of the CPU's attention kernels for the instruction set in use. */
#include "attention/cpu/kernels.h"

#include "base/cpu_level.h"
#include "equation/facts.h"
#include "equation/support.h"

/* The kernels compiled for one instruction set, fastest first; the list ends with NULL. */
typedef struct kernel_set {
    /* The first of each type, by srnn_dtype, works in tiles. earlier: those that take such keys. */
    const sr_attention_kernel *attention[16], *earlier[3];
    const sr_attention_kernel *rounded; /* flash for float, with products of bf16 numbers */
    const sr_state_kernel *recurrent[2], *linear[2], *cache[2], *rows[2]; /* indexed by
                                                                           * srnn_dtype */
} kernel_set;

#define DECLARE_REAL(isa, real)                                                            \
    extern const sr_attention_kernel sr_attention_flash_##isa##_##real,                    \
        sr_attention_pooled_##isa##_##real, sr_attention_chunked_##isa##_##real,           \
        sr_attention_recurrent_##isa##_##real, sr_attention_linear_##isa##_##real,         \
        sr_attention_linear_recurrent_##isa##_##real, sr_attention_generic_##isa##_##real; \
    extern const sr_state_kernel sr_state_recurrent_##isa##_##real,                        \
        sr_state_linear_##isa##_##real, sr_state_kv_cache_##isa##_##real,                  \
        sr_state_rows_##isa##_##real

#define DECLARE_ROUNDED(level)                                           \
    extern const sr_attention_kernel sr_attention_rounded_##level##_f32, \
        sr_attention_bf16_##level##_f32

#define DECLARE(isa)        \
    DECLARE_REAL(isa, f32); \
    DECLARE_REAL(isa, f64); \
    DECLARE_ROUNDED(isa)

#define BOTH(name, isa) &name##_##isa##_f32, &name##_##isa##_f64

/* The kernels of an instruction set, and those of a level that multiply bf16. */
#define SET(isa, level)                                                                       \
    {                                                                                         \
        .attention = {BOTH(sr_attention_flash, isa),                                          \
                      &sr_attention_bf16_##level##_f32,                                       \
                      BOTH(sr_attention_pooled, isa),                                         \
                      BOTH(sr_attention_chunked, isa),                                        \
                      BOTH(sr_attention_recurrent, isa),                                      \
                      BOTH(sr_attention_linear, isa),                                         \
                      BOTH(sr_attention_linear_recurrent, isa),                               \
                      BOTH(sr_attention_generic, isa)},                                       \
        .earlier = {BOTH(sr_attention_flash, isa)},                                           \
        .rounded = &sr_attention_rounded_##level##_f32,                                       \
        .recurrent = {BOTH(sr_state_recurrent, isa)}, .linear = {BOTH(sr_state_linear, isa)}, \
        .cache = {BOTH(sr_state_kv_cache, isa)}, .rows = {BOTH(sr_state_rows, isa)},          \
    }

DECLARE(base);
static const kernel_set set_base = SET(base, base);
#ifdef SR_HAVE_X86_LEVELS
DECLARE(v3);
DECLARE(v4);
DECLARE_ROUNDED(bf16);
DECLARE_ROUNDED(amx);
static const kernel_set set_v3 = SET(v3, v3);
static const kernel_set set_v4 = SET(v4, v4);
static const kernel_set set_bf16 = SET(v4, bf16);
static const kernel_set set_amx = SET(v4, amx);
#endif

static const kernel_set *set_in_use(void) {
#ifdef SR_HAVE_X86_LEVELS
    switch (sr_cpu_level_used()) {
    case SR_CPU_AMX:
        return &set_amx;
    case SR_CPU_BF16:
        return &set_bf16;
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

static const sr_attention_kernel *const *list(void) {
    return set_in_use()->attention;
}

/* The state kernel of the variant: the one for plain pairs if it computes it, else the general
 * one. */
static const sr_state_kernel *state(const srnn_problem *problem, bool recurrent) {
    if (problem->dtype == SRNN_BF16)
        return NULL;
    const kernel_set *set = set_in_use();
    const srnn_dtype dtype = problem->dtype;
    const sr_state_kernel *const plain = recurrent ? set->recurrent[dtype] : set->cache[dtype],
                                 *const other = recurrent ? set->linear[dtype] : set->rows[dtype];
    if (sr_computes(plain->computes, &problem->attention, NULL))
        return plain;
    return sr_computes(other->computes, &problem->attention, NULL) ? other : NULL;
}

/* The fastest kernel of the parallel form, which works in tiles. */
static const sr_attention_kernel *flash_of(srnn_dtype dtype) {
    return set_in_use()->attention[dtype];
}

/* True if the chunked form needs fewer operations than the parallel form. */
static bool chunked_pays(const srnn_problem *p) {
    const sr_attention_kernel *flash = flash_of(p->dtype);
    if (!sr_kernel_can(flash, p))
        return true; /* the only parallel kernel left is the generic one */
    const double state =
        (double)srnn_attention_state_numbers(&p->attention, p->D, p->Dv) *
        (p->attention.levels == SRNN_LEVELS_FENWICK ? 4 : 1); /* a token reads about half of the
                                                               * levels */
    const double pair = (double)(p->D + p->Dv);
    /* Multiply-adds per token: the chunked form reads and updates the state and computes the pairs
     * of a chunk; the parallel form computes T / 2 pairs. */
    const double chunked = 2.5 * state + pair * p->chunk;
    return chunked < 0.5 * pair * p->T;
}

static bool carries_states(const srnn_plan *plan) {
    return plan->problem.form != SRNN_FORM_PARALLEL;
}

static bool takes_earlier(const srnn_plan *plan) {
    return plan->kernel == set_in_use()->earlier[plan->problem.dtype];
}

static const sr_attention_kernel *rounded(const srnn_plan *plan) {
    const kernel_set *set = set_in_use();
    const bool fits =
        plan->kernel == set->attention[SRNN_F32] && sr_kernel_can(set->rounded, &plan->problem);
    return fits ? set->rounded : NULL;
}

const sr_attention_kernels sr_cpu_attention = {
    .list = list,
    .state = state,
    .chunked_pays = chunked_pays,
    .value_size_max = SR_VALUE_SIZE_MAX,
    .carries_states = carries_states,
    .takes_earlier = takes_earlier,
    .rounded = rounded,
};
