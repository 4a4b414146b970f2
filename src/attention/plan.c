/* plan.c: the public attention calls: check a problem, choose a kernel, run it. */
#include "attention/kernel.h"
#include "attention/problem.h"
#include "base/cancel.h"
#include "base/memory.h"
#include "base/text.h"
#include "device/device.h"
#include "equation/facts.h"
#include "equation/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checking ---- */

static srnn_status check_offsets(const srnn_problem *p, const int64_t *offsets, int64_t documents) {
    int64_t tokens = (int64_t)p->B * p->T;
    if (documents < p->B || documents > tokens || offsets[0] != 0 || offsets[documents] != tokens)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "document offsets must run from 0 to B*T = %lld and start every row",
                       (long long)tokens);
    for (int64_t n = 0; n < documents; n++) {
        int64_t first = offsets[n], past = offsets[n + 1];
        if (first < 0 || past > tokens || past <= first || first / p->T != (past - 1) / p->T)
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "document %lld, tokens %lld to %lld, is empty or crosses a row of %d "
                           "tokens",
                           (long long)n, (long long)first, (long long)past, p->T);
    }
    return SRNN_OK;
}

srnn_status srnn_plan_documents(srnn_plan *plan, const int64_t *offsets, int64_t documents) {
    const srnn_problem *p = &plan->problem;
    if (offsets)
        SR_TRY(check_offsets(p, offsets, documents));
    plan->document_count = offsets ? documents : p->B;
    for (int64_t n = 0, row = 0; n < plan->document_count; n++) {
        int64_t first = offsets ? offsets[n] : n * p->T;
        int64_t past = offsets ? offsets[n + 1] : (n + 1) * p->T;
        SR_TRY(sr_problem_check_length(p, past - first));
        plan->documents[n] = (sr_document_range){first / p->T, first % p->T, past - first, 0};
        for (int64_t token = first; token < past; token++)
            plan->host_first[token] = (int32_t)(first % p->T);
        while (row <= first / p->T)
            plan->row_documents[row++] = n;
    }
    plan->row_documents[p->B] = plan->document_count;
    if (plan->first == plan->host_first)
        return SRNN_OK;
    return sr_device_copy_in(plan->device, plan->first, plan->host_first,
                             (size_t)p->B * (size_t)p->T * sizeof *plan->first);
}

void sr_plan_continue(srnn_plan *plan, const int32_t *before, int first) {
    plan->continues = true;
    for (int64_t b = 0; b < plan->problem.B; b++)
        plan->documents[plan->row_documents[b]].before = before ? before[b] : first;
}

static srnn_status alloc_documents(srnn_plan *plan) {
    size_t B = (size_t)plan->problem.B, tokens = B * (size_t)plan->problem.T;
    SR_TRY(sr_alloc((void **)&plan->documents, tokens, sizeof *plan->documents));
    SR_TRY(sr_alloc((void **)&plan->row_documents, B + 1, sizeof *plan->row_documents));
    return sr_plan_take_first(plan);
}

/* ---- choosing ---- */

/* Through a state the terms of a high order cancel in float: such a form is used only on
 * request. */
enum { AUTO_ORDER_MAX = 8 };

bool sr_kernel_can(const sr_attention_kernel *kernel, const srnn_problem *problem) {
    return sr_computes(kernel->computes, &problem->attention, NULL) &&
           (!kernel->fits || kernel->fits(problem));
}

bool sr_kernel_serves(const sr_attention_kernel *kernel, const srnn_problem *problem,
                      srnn_form form) {
    return kernel->dtype == problem->dtype && kernel->form == form &&
           sr_kernel_can(kernel, problem) &&
           (problem->kernel || !kernel->pays || kernel->pays(problem));
}

/* Whether the device computes the problem in this form. */
static bool has_kernel(const srnn_plan *plan, srnn_form form) {
    const srnn_problem *p = &plan->problem;
    for (const sr_attention_kernel *const *k = plan->device->attention->list(); *k; k++)
        if (sr_kernel_serves(*k, p, form))
            return true;
    return false;
}

static srnn_form choose_form(const srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    if (p->form != SRNN_FORM_AUTO)
        return p->form;
    const bool chunked =
        sr_highest_order(&p->attention) <= AUTO_ORDER_MAX && sr_problem_check_state(p) == SRNN_OK &&
        plan->device->attention->chunked_pays(p) && has_kernel(plan, SRNN_FORM_CHUNKED);
    return chunked ? SRNN_FORM_CHUNKED : SRNN_FORM_PARALLEL;
}

static srnn_status unknown_kernel(const srnn_device *device, const char *name) {
    const char *names[16];
    size_t count = 0;
    for (; srnn_kernel_name(device, count) && count < 16; count++)
        names[count] = srnn_kernel_name(device, count);
    const char *nearest = sr_nearest_word(name, names, count);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "%s has no kernel '%s'%s%s%s", device->name, name,
                   nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

/* ": it does not compute this decay_width" where an axis is the reason why no kernel of this type
 * and form takes the problem; "" where it is another. Of several kernels, what the one lacks that
 * covers most of the axes. */
static const char *missing_axis(char text[96], const srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    const sr_axis *missing = NULL, *own = NULL;
    text[0] = '\0';
    for (const sr_attention_kernel *const *k = plan->device->attention->list(); *k; k++) {
        if ((*k)->dtype != p->dtype || (*k)->form != p->form ||
            (p->kernel && strcmp(p->kernel, (*k)->name) != 0))
            continue;
        if (sr_computes((*k)->computes, &p->attention, &own))
            return text;
        missing = !missing || own > missing ? own : missing; /* in the order of the table */
    }
    if (missing)
        snprintf(text, 96, ": it does not compute this %s (see `softrnn variants --support`)",
                 missing->name);
    return text;
}

static srnn_status choose_kernel(srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    bool known = !p->kernel;
    for (const sr_attention_kernel *const *k = plan->device->attention->list(); *k; k++) {
        if (p->kernel && strcmp(p->kernel, (*k)->name) != 0)
            continue;
        known = true;
        if (sr_kernel_serves(*k, p, p->form)) {
            plan->kernel = *k;
            return SRNN_OK;
        }
    }
    if (!known)
        return unknown_kernel(plan->device, p->kernel);
    static const char *const forms[] = {"auto", "parallel", "chunked", "recurrent"};
    char text[SR_ATTENTION_TEXT], why[96];
    srnn_attention_print(text, sizeof text, &p->attention);
    missing_axis(why, plan);
    if (!p->kernel)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s has no kernel for the %s form of %s in %s%s",
                       plan->device->name, forms[p->form], text, sr_element_name(p->dtype), why);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "kernel '%s' has no %s form of %s in %s%s", p->kernel,
                   forms[p->form], text, sr_element_name(p->dtype), why);
}

/* ---- plans ---- */

static srnn_status take_scratch(srnn_plan *plan) {
    plan->scratch_bytes = plan->kernel->scratch(plan);
    return sr_device_allocate(plan->device, &plan->scratch, plan->scratch_bytes);
}

static srnn_status plan_fill(srnn_plan *plan, const srnn_problem *problem) {
    srnn_problem *p = &plan->problem;
    *p = *problem;
    SR_TRY(sr_problem_fill(p));
    plan->device = p->device;
    SR_TRY(alloc_documents(plan));
    SR_TRY(srnn_plan_documents(plan, p->offsets, p->documents));
    p->offsets = NULL;
    /* A kernel requested by name determines the form. */
    for (const sr_attention_kernel *const *k = plan->device->attention->list(); *k; k++)
        if (p->kernel && p->form == SRNN_FORM_AUTO && strcmp((*k)->name, p->kernel) == 0)
            p->form = (*k)->form;
    p->form = choose_form(plan);
    if (p->form == SRNN_FORM_RECURRENT)
        p->chunk = 1;
    if (p->form == SRNN_FORM_CHUNKED || p->form == SRNN_FORM_RECURRENT)
        SR_TRY(sr_problem_check_state(p));
    SR_TRY(choose_kernel(plan));
    sr_plan_fill_core(plan);
    return take_scratch(plan);
}

srnn_status sr_plan_round(srnn_plan *plan) {
    const sr_attention_kernels *kernels = plan->device->attention;
    const sr_attention_kernel *rounded = kernels->rounded ? kernels->rounded(plan) : NULL;
    if (!rounded)
        return SRNN_OK;
    sr_device_release(plan->device, plan->scratch);
    plan->scratch = NULL;
    plan->kernel = rounded;
    return take_scratch(plan);
}

srnn_status srnn_plan_create(srnn_plan **plan, const srnn_problem *problem) {
    if (!plan || !problem)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "srnn_plan_create was given no %s (NULL)",
                       plan ? "problem" : "place for the plan");
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
    sr_plan_clear(plan);
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

static sr_saved place_saved(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    size_t rows = (size_t)p->B * (size_t)p->H * (size_t)p->T;
    size_t statistic = sr_element_bytes(sr_element_accumulator(p->dtype));
    size_t number = plan->kernel->saves_wide ? statistic : sr_element_bytes(p->dtype);
    sr_saved saved;
    saved.numerator = sr_layout_take(layout, rows * (size_t)p->Dv, number);
    saved.row_sum = sr_layout_take(layout, rows, statistic);
    saved.maximum = sr_layout_take(layout, rows, statistic);
    return saved;
}

sr_saved sr_plan_saved(const srnn_plan *plan, void *saved) {
    sr_layout layout = {.base = saved};
    return place_saved(plan, &layout);
}

size_t srnn_plan_saved_bytes(const srnn_plan *plan) {
    sr_layout layout = {0};
    place_saved(plan, &layout);
    return layout.used;
}

/* A name may stand for several number types; it is listed once. */
const char *srnn_kernel_name(const srnn_device *device, size_t index) {
    const sr_attention_kernel *const *kernels =
        (device ? device : sr_device_cpu())->attention->list();
    for (size_t n = 0; kernels[n]; n++) {
        size_t before = 0;
        while (before < n && strcmp(kernels[before]->name, kernels[n]->name) != 0)
            before++;
        if (before == n && index-- == 0)
            return kernels[n]->name;
    }
    return NULL;
}

/* ---- running ---- */

static srnn_status check_plan(const srnn_plan *plan) {
    return plan ? SRNN_OK
                : SR_FAIL(SRNN_ERR_ARGUMENT,
                          "no plan was given (NULL): did srnn_plan_create succeed?");
}

/* Kernels read and write it in whole vectors. */
static srnn_status check_saved(const void *saved) {
    enum { ALIGNMENT = 64 };
    if ((uintptr_t)saved % ALIGNMENT == 0)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "the memory for what forward saves must be aligned to %d bytes, as "
                   "aligned_alloc(%d, ...) gives it",
                   ALIGNMENT, ALIGNMENT);
}

srnn_status srnn_attention_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                   void *saved) {
    SR_TRY(check_plan(plan));
    const srnn_problem *p = &plan->problem;
    SR_TRY(sr_problem_check_operands(in, p));
    SR_TRY(sr_problem_check_output(o, p, "o"));
    SR_TRY(check_saved(saved));
    srnn_operands operands = sr_problem_stride_operands(in, p);
    sr_attention_call call = {.plan = plan,
                              .in = &operands,
                              .o = sr_problem_stride(o, p, p->H, p->Dv),
                              .saved = sr_plan_saved(plan, saved)};
    sr_cancel_begin();
    return sr_cancel_end(plan->kernel->forward(&call));
}

srnn_status srnn_attention_backward(srnn_plan *plan, const srnn_operands *gradients,
                                    srnn_tensor d_o, const srnn_operands *in, const void *saved) {
    sr_rope_inverse nothing = {0};
    return sr_attention_rope_backward(plan, gradients, d_o, in, saved, &nothing);
}

srnn_status sr_attention_rope_backward(srnn_plan *plan, const srnn_operands *gradients,
                                       srnn_tensor d_o, const srnn_operands *in, const void *saved,
                                       sr_rope_inverse *back) {
    back->done = false;
    SR_TRY(check_plan(plan));
    const srnn_problem *p = &plan->problem;
    SR_TRY(sr_problem_check_operands(in, p));
    SR_TRY(sr_problem_check_gradients(gradients, p));
    SR_TRY(sr_problem_check_output(d_o, p, "d_o"));
    SR_TRY(check_saved(saved));
    if (!plan->kernel->backward)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "the %s kernel has no backward: use the parallel or chunked form",
                       plan->kernel->name);
    if (!saved)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "backward needs what forward saved");
    srnn_operands operands = sr_problem_stride_operands(in, p),
                  wanted = sr_problem_stride_operands(gradients, p);
    sr_attention_call call = {.plan = plan,
                              .in = &operands,
                              .gradients = &wanted,
                              .o = sr_problem_stride(d_o, p, p->H, p->Dv),
                              /* kernels only read it in the backward pass */
                              .saved = sr_plan_saved(plan, (void *)(uintptr_t)saved),
                              .rope = back->rope,
                              .rope_inverted = &back->done};
    sr_cancel_begin();
    return sr_cancel_end(plan->kernel->backward(&call));
}
