/* forward.c: the equation of softrnn.h, written as directly as possible; computes every variant.
 *
 *     s_ij                    row_logits (generic.h): q.k, with the decay if it acts on the logits
 *     w_ij                    pair_of (pairs.h): cap, clamp, score, decay; level_at (generic.h)
 *     sum_j w_ij u_j          forward_row below; read_segment with the delta rule
 *     y_i, o_i                sr_row_normaliser and the rest of equation/epilogue.h
 *
 * Sums are in double, one row at a time, with O(T) memory per thread. */
#include "attention/cpu/generic/generic.h"

#include "attention/cpu/kernels.h"
#include "attention/cpu/shared/computes.h"
#include "base/cancel.h"
#include "base/threads.h"

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    generic_place(plan, true, &layout);
    return layout.used;
}

static void read_segment(const head *a, const segment *s) {
    const workspace *w = a->w;
    const int Dv = a->p->Dv;
    write_segment(a, s);
    for (int64_t i = s->query_from; i < s->past && !sr_cancelled(); i++) {
        const double *levels = row_levels(a, a->x->scratch.row_work.level, i);
        const double level = levels ? levels[s->level] : 1.0;
        load_query(a, i);
        row_logits(a, w->rotated_query, w->removed, i, s->start);
        for (int64_t j = s->start; j <= i; j++) {
            const double weight = level * pair_at(a, i, j).weight;
            for (int d = 0; d < Dv; d++)
                w->numerators[i * Dv + d] += weight * w->u[j * Dv + d];
        }
    }
}

/* Row i of the head: its maximum, its row sum and, without the delta rule, its numerator. */
static void forward_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const bool rotated = is_rotated(p), delta = p->attention.write == SRNN_WRITE_DELTA;
    const double *levels = row_levels(a, a->x->scratch.row_work.level, i);
    double *numerator = w->numerators + i * p->Dv, row_sum = 0.0;
    load_query(a, i);
    double maximum = rotated ? row_logits(a, w->rotated_query, w->rotated, i, 0) : -INFINITY;
    maximum = fmax(maximum, row_logits(a, w->query, w->keys, i, 0));
    w->maxima[i] = maximum;
    memset(numerator, 0, (size_t)p->Dv * sizeof *numerator);
    for (int64_t j = first_seen(a, i, 0); j <= i; j = next_seen(a, i, j)) {
        const double weight = level_at(levels, i, j) * pair_at(a, i, j).weight;
        row_sum += weight;
        for (int d = 0; !rotated && !delta && d < p->Dv; d++)
            numerator[d] += weight * (double)w->values[j * p->Dv + d];
    }
    w->row_sums[i] = row_sum;
    if (!rotated || delta)
        return;
    row_logits(a, w->rotated_query, w->rotated, i, 0);
    for (int64_t j = first_seen(a, i, 0); j <= i; j = next_seen(a, i, j))
        for (int d = 0; d < p->Dv; d++)
            numerator[d] +=
                level_at(levels, i, j) * pair_at(a, i, j).weight * (double)w->values[j * p->Dv + d];
}

static void write_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_attention_call *call = a->x->call;
    const real sum = (real)w->row_sums[i], maximum = (real)w->maxima[i];
    for (int d = 0; d < p->Dv; d++)
        w->row[d] = (real)w->numerators[i * p->Dv + d];
    SR_ISA_REAL(sr_epilogue_rows)
    ((sr_row_results){w->row, p->Dv, &sum, &maximum, i + 1}, &a->x->scratch.row_work, call,
     (sr_rows){a->document->b, a->h, a->document->start + i, 1});
    if (!call->saved.numerator)
        return;
    const int64_t at = sr_row_index(p, p->H, a->document->b, a->h, a->document->start + i);
    memcpy((real *)call->saved.numerator + at * p->Dv, w->row, (size_t)p->Dv * sizeof(real));
    ((real *)call->saved.row_sum)[at] = sum;
    ((real *)call->saved.maximum)[at] = maximum;
}

static void forward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const int group = p->H / p->Hkv;
    head a = head_of(x, &x->scratch.workers[worker], &x->call->plan->documents[task / p->Hkv],
                     (int)(task % p->Hkv));
    load_keys_values(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++) {
        for (int64_t i = 0; i < a.document->length && !sr_cancelled(); i++)
            forward_row(&a, i);
        if (p->attention.write != SRNN_WRITE_ADD)
            for_segments(&a, read_segment);
        for (int64_t i = 0; i < a.document->length && !sr_cancelled(); i++)
            write_row(&a, i);
    }
}

static srnn_status forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = {call, generic_place(plan, false, &layout)};
    SR_ISA_REAL(sr_prologue_prepare)(&x.scratch.row_work, plan, call->in, NULL);
    sr_parallel(forward_task, &x, plan->document_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_epilogue_finish)(&x.scratch.row_work, call);
    return SRNN_OK;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_generic) = {
    .name = "generic",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SR_REAL_DTYPE,
    .computes = SR_CPU_EVERYTHING,
    .scratch = scratch_bytes,
    .forward = forward,
    .backward = generic_backward,
};
