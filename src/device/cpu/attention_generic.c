/* attention_generic.c: the equation as plainly as it can be written; supports everything.
 *
 * Sums in double, one row at a time, O(T) memory a thread.
 */
#include "attention/attention.h"
#include "attention/score.h"
#include "base/threads.h"
#include "device/cpu/attention_edges.h"
#include "device/cpu/attention_kernels.h"
#include "device/cpu/attention_rows.h"

#include <math.h>
#include <string.h>

/* What one thread works with: one kv head of one document. */
typedef struct workspace {
    real *keys;         /* (T, D) */
    real *values;       /* (T, Dv) */
    real *query;        /* (D) */
    real *row;          /* (max(D, Dv)) */
    double *s;          /* (T): s_ij, then w_ij */
    double *numerator;  /* (Dv) */
    double *d_query;    /* (D) */
    double *d_keys;     /* (T, D) */
    double *d_values;   /* (T, Dv) */
    double *column_dot; /* (T) */
} workspace;

typedef struct scratch {
    sr_edges edges;
    workspace *workers; /* NULL while measuring */
} scratch;

static scratch place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    size_t T = (size_t)p->T, D = (size_t)p->D, Dv = (size_t)p->Dv;
    scratch s = {0};
    SR_ISA_REAL(sr_edges_place)(&s.edges, plan, backward, layout);
    s.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *s.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .keys = sr_layout_take(layout, T * D, sizeof(real)),
            .values = sr_layout_take(layout, T * Dv, sizeof(real)),
            .query = sr_layout_take(layout, D, sizeof(real)),
            .row = sr_layout_take(layout, D > Dv ? D : Dv, sizeof(real)),
            .s = sr_layout_take(layout, T, sizeof(double)),
            .numerator = sr_layout_take(layout, Dv, sizeof(double)),
        };
        if (backward) {
            w.d_query = sr_layout_take(layout, D, sizeof(double));
            w.d_keys = sr_layout_take(layout, T * D, sizeof(double));
            w.d_values = sr_layout_take(layout, T * Dv, sizeof(double));
            w.column_dot = sr_layout_take(layout, T, sizeof(double));
        }
        if (s.workers)
            s.workers[n] = w;
    }
    return s;
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, true, &layout);
    return layout.used;
}

typedef struct context {
    const sr_attention_call *call;
    scratch scratch;
} context;

/* w_ij and its derivative by s_ij. */
typedef struct pair {
    double weight, slope;
} pair;

static pair pair_of(const srnn_attention *a, double s, double decay, double maximum) {
    bool clamped = a->clamp != 0.0 && s > a->clamp;
    double x = clamped ? a->clamp : s;
    pair result;
    if (a->score == SRNN_SCORE_EXP) {
        result.weight = exp(x + decay - maximum);
        result.slope = result.weight;
    } else {
        double factor = exp(decay - (maximum == -INFINITY ? 0.0 : maximum));
        result.weight = factor * sr_score_value(a->score, a->order, x);
        result.slope = factor * sr_score_slope(a->score, a->order, x);
    }
    if (clamped)
        result.slope = 0.0;
    return result;
}

static double decay_between(const double *decay, int64_t i, int64_t j) {
    return decay ? decay[i] - decay[j] : 0.0;
}

/* s_ij for j <= i into w->s; returns what the logarithms of the row's weights may be reduced by. */
static double row_logits(const workspace *w, const srnn_problem *p, const double *decay,
                         int64_t i) {
    const srnn_attention *a = &p->attention;
    double maximum = -INFINITY, largest = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        double s = row_dot(w->query, w->keys + j * p->D, p->D);
        double x = a->clamp != 0.0 && s > a->clamp ? a->clamp : s;
        maximum = fmax(maximum, x + decay_between(decay, i, j));
        largest = fmax(largest, fabs(x));
        w->s[j] = s;
    }
    if (!sr_row_scale_invariant(a))
        return 0.0;
    return a->score == SRNN_SCORE_EXP ? maximum : sr_score_log_scale(a->score, a->order, largest);
}

static const double *decay_of(const sr_edges *edges, const srnn_problem *p, const sr_span *span,
                              int kv) {
    return edges->decay ? edges->decay + sr_row_index(p, p->Hkv, span->b, kv, span->start) : NULL;
}

static void load_keys_values(const context *x, const workspace *w, const sr_span *span, int kv) {
    const srnn_plan *plan = x->call->plan;
    SR_ISA_REAL(sr_edges_key_rows)
    (w->keys, plan->problem.D, &x->scratch.edges, x->call,
     (sr_rows){span->b, kv, span->start, span->length});
    SR_ISA_REAL(sr_edges_value_rows)
    (w->values, plan->problem.Dv, &x->scratch.edges, x->call,
     (sr_rows){span->b, kv, span->start, span->length});
}

static void forward_row(const context *x, const workspace *w, const sr_span *span, int h,
                        int64_t i) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->problem;
    const double *decay = decay_of(&x->scratch.edges, p, span, h / (p->H / p->Hkv));
    SR_ISA_REAL(sr_edges_query_rows)
    (w->query, p->D, &x->scratch.edges, x->call, (sr_rows){span->b, h, span->start + i, 1});
    double maximum = row_logits(w, p, decay, i), row_sum = 0.0;
    memset(w->numerator, 0, (size_t)p->Dv * sizeof *w->numerator);
    for (int64_t j = 0; j <= i; j++) {
        double weight = pair_of(&p->attention, w->s[j], decay_between(decay, i, j), maximum).weight;
        row_sum += weight;
        for (int d = 0; d < p->Dv; d++)
            w->numerator[d] += weight * (double)w->values[j * p->Dv + d];
    }
    for (int d = 0; d < p->Dv; d++)
        w->row[d] = (real)w->numerator[d];
    real sum = (real)row_sum;
    SR_ISA_REAL(sr_edges_output_rows)
    ((sr_row_results){w->row, p->Dv, &sum, i + 1}, &x->scratch.edges, x->call,
     (sr_rows){span->b, h, span->start + i, 1});
    const sr_saved *saved = &x->call->saved;
    if (saved->numerator) {
        int64_t at = sr_row_index(p, p->H, span->b, h, span->start + i);
        memcpy((real *)saved->numerator + at * p->Dv, w->row, (size_t)p->Dv * sizeof(real));
        ((real *)saved->row_sum)[at] = sum;
        ((real *)saved->maximum)[at] = (real)maximum;
    }
}

static void forward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->problem;
    const sr_span *span = &x->call->plan->spans[task / p->Hkv];
    const workspace *w = &x->scratch.workers[worker];
    int kv = (int)(task % p->Hkv), group = p->H / p->Hkv;
    load_keys_values(x, w, span, kv);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < span->length; i++)
            forward_row(x, w, span, h, i);
}

static srnn_status forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {plan->scratch, .apart = true};
    context x = {call, place(plan, false, &layout)};
    SR_ISA_REAL(sr_edges_prepare)(&x.scratch.edges, plan, call->in, NULL);
    sr_parallel(forward_task, &x, plan->span_count * plan->problem.Hkv, plan->problem.threads);
    return SRNN_OK;
}

static void backward_row(const context *x, const workspace *w, const sr_span *span, int h,
                         int64_t i) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->problem;
    const sr_edges *edges = &x->scratch.edges;
    const double *decay = decay_of(edges, p, span, h / (p->H / p->Hkv));
    int64_t at = sr_row_index(p, p->H, span->b, h, span->start + i);
    const real *d_numerator = edges->d_numerator + at * p->Dv;
    double d_row_sum = (double)edges->d_row_sum[at];
    double maximum = (double)((const real *)x->call->saved.maximum)[at];
    SR_ISA_REAL(sr_edges_query_rows)
    (w->query, p->D, edges, x->call, (sr_rows){span->b, h, span->start + i, 1});
    row_logits(w, p, decay, i);
    memset(w->d_query, 0, (size_t)p->D * sizeof *w->d_query);
    for (int64_t j = 0; j <= i; j++) {
        pair pair_ij = pair_of(&p->attention, w->s[j], decay_between(decay, i, j), maximum);
        double d_weight = d_row_sum + row_dot(d_numerator, w->values + j * p->Dv, p->Dv);
        double d_s = pair_ij.slope * d_weight;
        for (int d = 0; d < p->D; d++) {
            w->d_query[d] += d_s * (double)w->keys[j * p->D + d];
            w->d_keys[j * p->D + d] += d_s * (double)w->query[d];
        }
        for (int d = 0; d < p->Dv; d++)
            w->d_values[j * p->Dv + d] += pair_ij.weight * (double)d_numerator[d];
        w->column_dot[j] += pair_ij.weight * d_row_sum;
    }
    for (int d = 0; d < p->D; d++)
        w->row[d] = (real)w->d_query[d];
    SR_ISA_REAL(sr_edges_query_rows_backward)
    (w->row, p->D, x->call, (sr_rows){span->b, h, span->start + i, 1});
}

static void backward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->problem;
    const sr_edges *edges = &x->scratch.edges;
    const sr_span *span = &x->call->plan->spans[task / p->Hkv];
    const workspace *w = &x->scratch.workers[worker];
    int kv = (int)(task % p->Hkv), group = p->H / p->Hkv;
    load_keys_values(x, w, span, kv);
    memset(w->d_keys, 0, (size_t)(span->length * p->D) * sizeof *w->d_keys);
    memset(w->d_values, 0, (size_t)(span->length * p->Dv) * sizeof *w->d_values);
    memset(w->column_dot, 0, (size_t)span->length * sizeof *w->column_dot);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < span->length; i++)
            backward_row(x, w, span, h, i);
    for (int64_t j = 0; j < span->length; j++) {
        for (int d = 0; d < p->D; d++)
            w->row[d] = (real)w->d_keys[j * p->D + d];
        SR_ISA_REAL(sr_edges_key_rows_backward)
        (w->row, p->D, x->call, (sr_rows){span->b, kv, span->start + j, 1});
        for (int d = 0; d < p->Dv; d++)
            w->row[d] = (real)w->d_values[j * p->Dv + d];
        SR_ISA_REAL(sr_edges_value_rows_backward)
        (w->row, w->values + j * p->Dv, p->Dv, edges, x->call,
         (sr_rows){span->b, kv, span->start + j, 1});
        if (edges->column_dot)
            edges->column_dot[sr_row_index(p, p->Hkv, span->b, kv, span->start + j)] =
                w->column_dot[j];
    }
}

static srnn_status backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {plan->scratch, .apart = true};
    context x = {call, place(plan, true, &layout)};
    SR_ISA_REAL(sr_edges_prepare)(&x.scratch.edges, plan, call->in, NULL);
    SR_ISA_REAL(sr_edges_backward_outputs)(&x.scratch.edges, call);
    sr_parallel(backward_task, &x, plan->span_count * plan->problem.Hkv, plan->problem.threads);
    SR_ISA_REAL(sr_edges_backward_inputs)(&x.scratch.edges, call);
    return SRNN_OK;
}

static bool supports(const srnn_problem *problem) {
    return !sr_beyond_plain(&problem->attention);
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_generic) = {
    "generic", SRNN_FORM_PARALLEL, SR_REAL_DTYPE, supports, scratch_bytes, forward, backward,
};
