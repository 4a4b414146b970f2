/* attention.c: the public attention calls: check a problem, choose a kernel, run it. */
#include "attention/attention.h"
#include "backend/attention_kernel.h"
#include "backend/cpu/attention_kernels.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

enum { WIDEST = 256, LONGEST_CHUNK = 96 };
static const size_t DEFAULT_STATE_LIMIT = (size_t)1 << 30;
static const int64_t MOST_NUMBERS = (int64_t)1
                                    << 42; /* in one tensor: keeps byte counts far from overflow */

/* ---- checking ---- */

static srnn_status check_sizes(const srnn_problem *p) {
    if (p->B < 1 || p->T < 1 || p->H < 1 || p->Hkv < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "B=%d, H=%d, Hkv=%d and T=%d must all be at least 1",
                       p->B, p->H, p->Hkv, p->T);
    if (p->H % p->Hkv != 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d query heads cannot share %d key/value heads evenly",
                       p->H, p->Hkv);
    if (p->D < 1 || p->D > WIDEST || p->Dv < 1 || p->Dv > WIDEST)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "head sizes D=%d and Dv=%d must be between 1 and %d",
                       p->D, p->Dv, WIDEST);
    if ((int64_t)p->B * p->T > MOST_NUMBERS / p->H / WIDEST)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "B=%d, H=%d, T=%d is too large to address", p->B, p->H,
                       p->T);
    if (p->dtype != SRNN_F32 && p->dtype != SRNN_F64)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "unknown number type %d", (int)p->dtype);
    if (p->chunk < 0 || p->threads < 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "chunk=%d and threads=%d must not be negative", p->chunk,
                       p->threads);
    return SRNN_OK;
}

/* The documents of a problem as spans; one per row without offsets. */
static srnn_status make_spans(srnn_plan *plan, const srnn_problem *p) {
    int64_t count = p->offsets ? p->documents : p->B;
    if (p->offsets &&
        (count < p->B || p->offsets[0] != 0 || p->offsets[count] != (int64_t)p->B * p->T))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "document offsets must run from 0 to B*T = %lld and start every row",
                       (long long)p->B * p->T);
    SR_TRY(sr_alloc((void **)&plan->spans, (size_t)count, sizeof *plan->spans));
    SR_TRY(sr_alloc((void **)&plan->first, (size_t)p->B * (size_t)p->T, sizeof *plan->first));
    plan->span_count = count;
    for (int64_t n = 0; n < count; n++) {
        int64_t first = p->offsets ? p->offsets[n] : n * p->T;
        int64_t past = p->offsets ? p->offsets[n + 1] : (n + 1) * p->T;
        if (past <= first || first / p->T != (past - 1) / p->T)
            return SR_FAIL(
                SRNN_ERR_ARGUMENT,
                "document %lld, tokens %lld to %lld, is empty or crosses a row of %d tokens",
                (long long)n, (long long)first, (long long)past, p->T);
        plan->spans[n] = (sr_span){first / p->T, first % p->T, past - first};
        for (int64_t token = first; token < past; token++)
            plan->first[token] = (int32_t)(first % p->T);
    }
    return SRNN_OK;
}

/* ---- choosing ---- */

/* Multiply-adds of a token in the parallel form, and in the chunked form with its state. */
static bool chunked_is_cheaper(const srnn_problem *p) {
    double state = (double)srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    double pair = (double)(p->D + p->Dv);
    /* Reading and updating the state, a chunk of pairs, and the features; against half of T pairs.
     */
    double chunked = 2.5 * state + pair * p->chunk;
    return chunked < 0.5 * pair * p->T;
}

static size_t states_bytes(const srnn_problem *p) {
    size_t numbers = srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    size_t heads = (size_t)p->Hkv * (size_t)p->B;
    size_t size = p->dtype == SRNN_F64 ? sizeof(double) : sizeof(float);
    return numbers > SIZE_MAX / heads / size ? SIZE_MAX : numbers * heads * size;
}

/* Whether a problem may use a fixed-size state, with the reason if not. */
static srnn_status check_state(const srnn_problem *p) {
    char text[256];
    srnn_attention_print(text, sizeof text, &p->attention);
    if (!srnn_attention_has_state(&p->attention))
        return SR_FAIL(
            SRNN_ERR_UNSUPPORTED,
            "%s has no fixed-size state (exp and clamped scores are no finite power series): "
            "use the parallel form",
            text);
    if (states_bytes(p) > p->state_limit)
        return SR_FAIL(
            SRNN_ERR_LIMIT,
            "%s with D=%d needs %.3g bytes of state for %d x %d heads, over the limit of %.3g: "
            "raise the limit, lower the order or the head size, or use the parallel form",
            text, p->D, (double)states_bytes(p), p->B, p->Hkv, (double)p->state_limit);
    return SRNN_OK;
}

static srnn_form choose_form(const srnn_problem *p) {
    if (p->form != SRNN_FORM_AUTO)
        return p->form;
    bool fits = srnn_attention_has_state(&p->attention) && states_bytes(p) <= p->state_limit;
    return fits && chunked_is_cheaper(p) ? SRNN_FORM_CHUNKED : SRNN_FORM_PARALLEL;
}

static srnn_status unknown_kernel(const char *name) {
    const char *names[16];
    size_t count = 0;
    for (; srnn_kernel_name(count) && count < 16; count++)
        names[count] = srnn_kernel_name(count);
    const char *nearest = sr_nearest_word(name, names, count);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no kernel '%s'%s%s%s", name,
                   nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static srnn_status choose_kernel(srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    bool known = !p->kernel;
    for (const sr_attention_kernel *const *k = sr_cpu_attention_kernels(); *k; k++) {
        if (p->kernel && strcmp(p->kernel, (*k)->name) != 0)
            continue;
        known = true;
        if ((*k)->dtype == p->dtype && (*k)->form == p->form && (*k)->supports(p)) {
            plan->kernel = *k;
            return SRNN_OK;
        }
    }
    if (!known)
        return unknown_kernel(p->kernel);
    static const char *const forms[] = {"auto", "parallel", "chunked", "recurrent"};
    char text[256];
    srnn_attention_print(text, sizeof text, &p->attention);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "kernel '%s' has no %s form of %s",
                   p->kernel ? p->kernel : "any", forms[p->form], text);
}

/* ---- plans ---- */

static srnn_status fill_problem(srnn_problem *p) {
    if (p->Hkv == 0)
        p->Hkv = p->H;
    if (p->Dv == 0)
        p->Dv = p->D;
    if (p->state_limit == 0)
        p->state_limit = DEFAULT_STATE_LIMIT;
    SR_TRY(srnn_attention_check(&p->attention));
    SR_TRY(check_sizes(p));
    p->threads = sr_thread_count(p->threads);
    if (p->chunk == 0 || p->chunk > LONGEST_CHUNK)
        p->chunk = LONGEST_CHUNK;
    return SRNN_OK;
}

static srnn_status plan_fill(srnn_plan *plan, const srnn_problem *problem) {
    srnn_problem *p = &plan->problem;
    *p = *problem;
    SR_TRY(fill_problem(p));
    SR_TRY(make_spans(plan, p));
    p->offsets = NULL;
    /* A kernel that was asked for by name brings its form. */
    for (const sr_attention_kernel *const *k = sr_cpu_attention_kernels(); *k; k++)
        if (p->kernel && p->form == SRNN_FORM_AUTO && strcmp((*k)->name, p->kernel) == 0)
            p->form = (*k)->form;
    p->form = choose_form(p);
    if (p->form == SRNN_FORM_RECURRENT)
        p->chunk = 1;
    if (p->form == SRNN_FORM_CHUNKED || p->form == SRNN_FORM_RECURRENT)
        SR_TRY(check_state(p));
    SR_TRY(choose_kernel(plan));
    plan->scratch_bytes = plan->kernel->scratch(plan);
    return sr_alloc(&plan->scratch, plan->scratch_bytes, 1);
}

srnn_status srnn_plan_create(srnn_plan **plan, const srnn_problem *problem) {
    *plan = NULL;
    srnn_plan *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    srnn_status status = plan_fill(made, problem);
    if (status != SRNN_OK) {
        srnn_plan_free(made);
        return status;
    }
    *plan = made;
    return SRNN_OK;
}

void srnn_plan_free(srnn_plan *plan) {
    if (!plan)
        return;
    free(plan->spans);
    free(plan->first);
    free(plan->scratch);
    free(plan);
}

const char *srnn_plan_kernel(const srnn_plan *plan) {
    return plan->kernel->name;
}

srnn_form srnn_plan_form(const srnn_plan *plan) {
    return plan->problem.form;
}

size_t srnn_plan_scratch_bytes(const srnn_plan *plan) {
    return plan->scratch_bytes;
}

static sr_saved place_saved(const srnn_problem *p, sr_layout *layout) {
    size_t rows = (size_t)p->B * (size_t)p->H * (size_t)p->T;
    size_t size = p->dtype == SRNN_F64 ? sizeof(double) : sizeof(float);
    sr_saved saved;
    saved.numerator = sr_layout_take(layout, rows * (size_t)p->Dv, size);
    saved.row_sum = sr_layout_take(layout, rows, size);
    saved.maximum = sr_layout_take(layout, rows, size);
    return saved;
}

size_t srnn_plan_saved_bytes(const srnn_plan *plan) {
    sr_layout layout = {0};
    place_saved(&plan->problem, &layout);
    return layout.used;
}

const char *srnn_kernel_name(size_t index) {
    const sr_attention_kernel *const *kernels = sr_cpu_attention_kernels();
    for (size_t n = 0; kernels[n]; n++)
        if (kernels[n]->dtype == SRNN_F32 && index-- == 0)
            return kernels[n]->name;
    return NULL;
}

/* ---- running ---- */

static srnn_tensor strided(srnn_tensor t, const srnn_problem *p, int heads, int width) {
    if (t.batch == 0 && t.head == 0 && t.time == 0) {
        t.time = width;
        t.head = (int64_t)width * p->T;
        t.batch = t.head * heads;
    }
    return t;
}

static srnn_operands strided_operands(const srnn_operands *in, const srnn_problem *p) {
    srnn_operands out = *in;
    out.q = strided(in->q, p, p->H, p->D);
    out.k = strided(in->k, p, p->Hkv, p->D);
    out.v = strided(in->v, p, p->Hkv, p->Dv);
    out.value_gate = strided(in->value_gate, p, p->Hkv, 1);
    out.output_gate = strided(in->output_gate, p, p->H, 1);
    out.decay = strided(in->decay, p, p->Hkv, 1);
    return out;
}

static srnn_status check_operands(const srnn_operands *in, const srnn_attention *a) {
    const struct {
        const void *data;
        bool needed;
        const char *name;
    } operands[] = {
        {in->q.data, true, "q"},
        {in->k.data, true, "k"},
        {in->v.data, true, "v"},
        {in->value_gate.data, a->value_gate, "value_gate"},
        {in->output_gate.data, sr_uses_output_gate(a), "output_gate"},
        {in->decay.data, a->decay == SRNN_DECAY_LEARNED, "decay"},
        {in->norm_weight, a->norm == SRNN_NORM_LAYER || a->norm == SRNN_NORM_RMS, "norm_weight"},
        {in->norm_bias, a->norm == SRNN_NORM_LAYER, "norm_bias"},
        {in->value_power, a->normaliser == SRNN_NORMALISER_VALUE_POWER, "value_power"},
    };
    for (size_t n = 0; n < sizeof operands / sizeof *operands; n++)
        if (operands[n].needed && !operands[n].data) {
            char text[256];
            srnn_attention_print(text, sizeof text, a);
            return SR_FAIL(SRNN_ERR_ARGUMENT, "the operand '%s' is missing: %s needs it",
                           operands[n].name, text);
        }
    return SRNN_OK;
}

srnn_status srnn_attention_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                   void *saved) {
    const srnn_problem *p = &plan->problem;
    SR_TRY(check_operands(in, &p->attention));
    srnn_operands operands = strided_operands(in, p);
    sr_layout layout = {saved, 0};
    sr_attention_call call = {.plan = plan,
                              .in = &operands,
                              .o = strided(o, p, p->H, p->Dv),
                              .saved = place_saved(p, &layout)};
    plan->kernel->forward(&call);
    return SRNN_OK;
}

srnn_status srnn_attention_backward(srnn_plan *plan, const srnn_operands *gradients,
                                    srnn_tensor d_o, const srnn_operands *in, const void *saved) {
    const srnn_problem *p = &plan->problem;
    SR_TRY(check_operands(in, &p->attention));
    if (!plan->kernel->backward)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "the %s kernel has no backward: use the parallel or chunked form",
                       plan->kernel->name);
    if (!saved)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "backward needs what forward saved");
    srnn_operands operands = strided_operands(in, p), wanted = strided_operands(gradients, p);
    sr_layout layout = {(char *)(uintptr_t)saved,
                        0}; /* kernels only read it in the backward pass */
    sr_attention_call call = {.plan = plan,
                              .in = &operands,
                              .gradients = &wanted,
                              .o = strided(d_o, p, p->H, p->Dv),
                              .saved = place_saved(p, &layout)};
    plan->kernel->backward(&call);
    return SRNN_OK;
}
