/* problem.c: checks and defaults that plans and states share. */
#include "attention/problem.h"

#include "base/cpu_level.h"
#include "base/memory.h"
#include "base/threads.h"
#include "device/device.h"
#include "equation/facts.h"
#include "equation/operands.h"

#include <math.h>
#include <stdlib.h>

enum { LONGEST_CHUNK = 96 };
static const size_t DEFAULT_STATE_LIMIT = (size_t)1 << 30;
static const int64_t MOST_NUMBERS = (int64_t)1
                                    << 42; /* in a tensor: byte counts stay far from overflow */

static srnn_status check_sizes(const srnn_problem *p) {
    if (p->B < 1 || p->T < 1 || p->H < 1 || p->Hkv < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "B=%d, H=%d, Hkv=%d and T=%d must all be at least 1",
                       p->B, p->H, p->Hkv, p->T);
    if (p->H % p->Hkv != 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d query heads cannot share %d key/value heads evenly",
                       p->H, p->Hkv);
    const int widest = p->device->attention->value_size_max;
    if (p->D < 1 || p->D > SR_HEAD_SIZE_MAX || p->Dv < 1 || p->Dv > widest)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "head sizes D=%d and Dv=%d must be between 1 and %d, and 1 and %d%s", p->D,
                       p->Dv, SR_HEAD_SIZE_MAX, widest,
                       p->Dv > widest && p->Dv <= SR_VALUE_SIZE_MAX
                           ? " on a GPU: kernels of the CPU take such values"
                           : "");
    if ((int64_t)p->B * p->T > MOST_NUMBERS / p->H / SR_VALUE_SIZE_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "B=%d, H=%d, T=%d is too large to address", p->B, p->H,
                       p->T);
    if (sr_feature_width(&p->attention, p->D) > SR_HEAD_SIZE_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "this feature makes 2 D numbers of a key, and D=%d: up to %d", p->D,
                       SR_HEAD_SIZE_MAX / 2);
    if (p->levels < 0 || p->levels > SR_LEVELS_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "levels=%d must be from 1 to %d, or 0 for %d", p->levels,
                       SR_LEVELS_MAX, SR_LEVELS_USUAL);
    if (!isfinite(p->rope_theta) || p->rope_theta < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "rope_theta=%g must be positive, or 0 for 10000",
                       p->rope_theta);
    if ((unsigned)p->dtype > SRNN_BF16)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "unknown number type %d", (int)p->dtype);
    if ((unsigned)p->form > SRNN_FORM_RECURRENT)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "unknown form %d", (int)p->form);
    if (p->chunk < 0 || p->threads < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "chunk=%d and threads=%d must not be negative", p->chunk,
                       p->threads);
    return SRNN_OK;
}

srnn_status sr_problem_fill(srnn_problem *p) {
    if (p->Hkv == 0)
        p->Hkv = p->H;
    if (p->Dv == 0)
        p->Dv = p->D;
    if (p->levels == 0)
        p->levels = SR_LEVELS_USUAL;
    if (p->rope_theta == 0)
        p->rope_theta = 10000;
    if (p->state_limit == 0)
        p->state_limit = DEFAULT_STATE_LIMIT;
    if (!p->device)
        p->device = sr_device_cpu();
    SR_TRY(srnn_attention_check(&p->attention));
    if (!sr_has_equation(&p->attention))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layer=conv has no equation to be computed: only "
                                             "models have such layers");
    SR_TRY(check_sizes(p));
    SR_TRY(sr_cpu_level_check());
    p->threads = sr_thread_count(p->threads ? p->threads : p->device->threads);
    if (p->chunk == 0 || p->chunk > LONGEST_CHUNK)
        p->chunk = LONGEST_CHUNK;
    return SRNN_OK;
}

void sr_plan_fill_core(srnn_plan *plan) {
    const srnn_attention *a = &plan->problem.attention;
    plan->core = plan->problem;
    plan->core.D = sr_feature_width(a, plan->problem.D);
    plan->core.Hkv = sr_shares_queries(a) ? plan->problem.H : plan->problem.Hkv;
}

size_t sr_carry_numbers(const srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    const size_t heads = (size_t)p->B * (size_t)plan->core.Hkv;
    const size_t pool = p->attention.pool ? (size_t)(p->D + p->Dv) : 0;
    return heads * ((size_t)sr_decay_numbers(&p->attention, p->D) + pool) +
           (size_t)p->B * (size_t)p->H;
}

const char *sr_element_name(srnn_dtype dtype) {
    switch (dtype) {
    case SRNN_F32:
        return "float";
    case SRNN_F64:
        return "double";
    case SRNN_BF16:
        break;
    }
    return "bf16";
}

srnn_status sr_plan_take_first(srnn_plan *plan) {
    const size_t tokens = (size_t)plan->problem.B * (size_t)plan->problem.T;
    SR_TRY(sr_alloc_zero((void **)&plan->host_first, tokens, sizeof *plan->host_first));
    plan->first = plan->host_first;
    if (sr_device_is_host(plan->device))
        return SRNN_OK;
    void *memory;
    const size_t bytes = (tokens + SR_PLAN_COUNTERS) * sizeof *plan->first;
    plan->first = NULL;
    SR_TRY(sr_device_allocate(plan->device, &memory, bytes));
    plan->first = memory;
    plan->counters = plan->first + tokens;
    return sr_device_zero(plan->device, memory, bytes);
}

void sr_plan_clear(srnn_plan *plan) {
    free(plan->documents);
    free(plan->row_documents);
    if (plan->first != plan->host_first)
        sr_device_release(plan->device, plan->first);
    free(plan->host_first);
    if (plan->device)
        sr_device_release(plan->device, plan->scratch);
}

static size_t states_bytes(const srnn_problem *p) {
    size_t numbers = srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    const int own = sr_shares_queries(&p->attention) ? p->H : p->Hkv;
    size_t heads = (size_t)own * (size_t)p->B *
                   (p->attention.levels == SRNN_LEVELS_FENWICK ? (size_t)p->levels : 1);
    size_t size = sr_element_bytes(sr_element_accumulator(p->dtype));
    return numbers > SIZE_MAX / heads / size ? SIZE_MAX : numbers * heads * size;
}

srnn_status sr_problem_check_state(const srnn_problem *p) {
    char text[SR_ATTENTION_TEXT];
    srnn_attention_print(text, sizeof text, &p->attention);
    if (!srnn_attention_has_state(&p->attention))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s has no fixed-size state (exp, sigmoid, capped and clamped scores are "
                       "not finite power series; with pool every chunk leaves a key, and a state "
                       "cannot drop those that leave a window; power and taylor have one without "
                       "write=delta, levels, decay=softplus, decay_place=logit and "
                       "position=rope_features): use the parallel form",
                       text);
    if (states_bytes(p) > p->state_limit)
        return SR_FAIL(SRNN_ERR_LIMIT,
                       "%s with D=%d needs %.3g bytes of state for %d x %d heads, over the limit "
                       "of %.3g: raise the limit, lower the order or the head size, or use the "
                       "parallel form",
                       text, p->D, (double)states_bytes(p), p->B, p->Hkv, (double)p->state_limit);
    return SRNN_OK;
}

srnn_status sr_problem_check_length(const srnn_problem *p, int64_t tokens) {
    if (p->attention.levels == SRNN_LEVELS_NONE || tokens <= (int64_t)1 << (p->levels - 1))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_LIMIT, "%d levels reach over %lld tokens, and a document has %lld",
                   p->levels, (long long)1 << (p->levels - 1), (long long)tokens);
}

/* Strides are all given or all 0; one of an axis of size 1 does not matter. */
static srnn_status check_strides(srnn_tensor t, const srnn_problem *p, int64_t heads,
                                 const char *name) {
    const bool none = t.batch == 0 && t.head == 0 && t.time == 0;
    const bool all =
        (t.batch != 0 || p->B == 1) && (t.head != 0 || heads == 1) && (t.time != 0 || p->T == 1);
    if (none || all)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "the tensor '%s' has the strides batch=%lld, head=%lld, time=%lld: give all of "
                   "them, or none for a contiguous array",
                   name, (long long)t.batch, (long long)t.head, (long long)t.time);
}

static srnn_status check_all_strides(const srnn_operands *operands, const srnn_problem *p) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (sr_operand_is_tensor(which) && sr_operand_used(which, &p->attention))
            SR_TRY(check_strides(sr_operand_tensor(which, operands), p, sr_extent_in(row->heads, p),
                                 row->name));
    }
    return SRNN_OK;
}

srnn_status sr_problem_check_operands(const srnn_operands *in, const srnn_problem *p) {
    const srnn_attention *a = &p->attention;
    if (!in)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention was given no operands (NULL)");
    for (int which = 0; which < SR_OPERANDS; which++)
        if (sr_operand_used((sr_operand)which, a) && !sr_operand_data((sr_operand)which, in)) {
            char text[SR_ATTENTION_TEXT];
            srnn_attention_print(text, sizeof text, a);
            return SR_FAIL(SRNN_ERR_ARGUMENT, "the operand '%s' is missing: %s needs it",
                           sr_operand_at((sr_operand)which)->name, text);
        }
    return check_all_strides(in, p);
}

srnn_status sr_problem_check_gradients(const srnn_operands *gradients, const srnn_problem *p) {
    if (!gradients)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "attention was given no place for gradients (NULL)");
    return check_all_strides(gradients, p);
}

srnn_status sr_problem_check_output(srnn_tensor o, const srnn_problem *p, const char *name) {
    if (!o.data)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the tensor '%s' is missing", name);
    return check_strides(o, p, p->H, name);
}

srnn_tensor sr_problem_stride(srnn_tensor t, const srnn_problem *p, int64_t heads, int64_t width) {
    if (t.batch == 0 && t.head == 0 && t.time == 0) {
        t.time = width;
        t.head = width * p->T;
        t.batch = t.head * heads;
    }
    return t;
}

srnn_operands sr_problem_stride_operands(const srnn_operands *in, const srnn_problem *p) {
    srnn_operands out = *in;
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (sr_operand_is_tensor(which))
            sr_operand_set_tensor(which, &out,
                                  sr_problem_stride(sr_operand_tensor(which, in), p,
                                                    sr_extent_in(row->heads, p),
                                                    sr_extent_in(row->width, p)));
    }
    return out;
}
