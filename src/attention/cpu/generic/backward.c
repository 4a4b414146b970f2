/* backward.c: backward of the generic kernel, one pair at a time. */
#include "attention/cpu/generic/generic.h"
#include "base/cancel.h"
#include "base/threads.h"

/* Adds the gradients of q, k and C, given the gradient of pair_product. Takes the forward's
 * parameters and the gradients. */
static void product_backward(const head *a, const real *q, const real *k, double *d_q, double *d_k,
                             double d_s, int64_t i, int64_t j) {
    const int D = a->p->D;
    const bool inside = a->decay && sr_decay_in_logits(&a->p->attention);
    const double factor = inside && a->width == 1 ? exp(a->decay[i] - a->decay[j]) : 1.0;
    double dot = 0.0;
    for (int d = 0; d < D; d++) {
        const double own =
            inside && a->width > 1 ? exp(a->decay[i * D + d] - a->decay[j * D + d]) : factor;
        const double along = d_s * own * (double)q[d] * (double)k[d];
        d_q[d] += d_s * own * (double)k[d];
        d_k[d] += d_s * own * (double)q[d];
        dot += along;
        if (inside && a->width > 1) {
            a->d_decay[i * D + d] += along;
            a->d_decay[j * D + d] -= along;
        }
    }
    if (inside && a->width == 1) {
        a->d_decay[i] += dot;
        a->d_decay[j] -= dot;
    }
}

/* Adds the gradients of q_i (D), keys (T, D) and C, given those of the weights in w->d_weight[j],
 * from <= j <= i; w->s holds the logits. Takes the forward's parameters and the gradients. */
static void pairs_backward(const head *a, const real *query, const real *keys, double *d_query,
                           double *d_keys, int64_t i, int64_t from) {
    const workspace *w = a->w;
    const int D = a->p->D;
    const bool explicit_weight = a->d_decay && !sr_decay_in_logits(&a->p->attention);
    for (int64_t j = first_seen(a, i, from); j <= i; j = next_seen(a, i, j)) {
        const pair own = pair_at(a, i, j);
        product_backward(a, query, keys + j * D, d_query, d_keys + j * D,
                         own.slope * w->d_weight[j], i, j);
        if (explicit_weight) {
            a->d_decay[i] += own.weight * w->d_weight[j];
            a->d_decay[j] -= own.weight * w->d_weight[j];
        }
    }
}

static const real *d_numerator_of(const head *a, int64_t i) {
    return a->x->scratch.row_work.d_numerator +
           sr_row_index(a->p, a->p->H, a->document->b, a->h, a->document->start + i) * a->p->Dv;
}

/* Inner product of a row of `real` and a row of double. */
static double mixed_dot(const real *a, const double *b, int n) {
    double sum = 0.0;
    for (int d = 0; d < n; d++)
        sum += (double)a[d] * b[d];
    return sum;
}

/* Backward of the row sum and, without the delta rule, of the numerator; w->s holds the logits of
 * whichever are requested. */
static void weights_backward(const head *a, int64_t i, bool sums, bool numerators) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_row_workspace *row_work = &a->x->scratch.row_work;
    const int64_t at = sr_row_index(p, p->H, a->document->b, a->h, a->document->start + i);
    const double d_row_sum = sums ? (double)row_work->d_row_sum[at] : 0.0;
    const real *d_numerator = d_numerator_of(a, i);
    const double *levels = row_levels(a, row_work->level, i);
    double *d_levels = row_levels(a, row_work->d_level, i);
    for (int64_t j = first_seen(a, i, 0); j <= i; j = next_seen(a, i, j)) {
        const double level = level_at(levels, i, j), weight = pair_at(a, i, j).weight;
        double d_weight = d_row_sum;
        if (numerators) {
            d_weight += row_dot(d_numerator, w->values + j * p->Dv, p->Dv);
            for (int d = 0; d < p->Dv; d++)
                w->d_values[j * p->Dv + d] += level * weight * (double)d_numerator[d];
        }
        w->d_weight[j] = level * d_weight;
        if (d_levels)
            d_levels[pair_level(i, j)] += weight * d_weight;
    }
}

static void backward_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const bool rotated = is_rotated(p), delta = p->attention.write == SRNN_WRITE_DELTA;
    load_query(a, i);
    row_logits(a, w->query, w->keys, i, 0);
    weights_backward(a, i, true, !rotated && !delta);
    pairs_backward(a, w->query, w->keys, w->d_queries + i * p->D, w->d_keys, i, 0);
    if (!rotated || delta)
        return;
    row_logits(a, w->rotated_query, w->rotated, i, 0);
    weights_backward(a, i, false, true);
    pairs_backward(a, w->rotated_query, w->rotated, w->d_rotated_queries + i * p->D, w->d_rotated,
                   i, 0);
}

/* Adds the gradients of the weights that read a segment's u, and of u itself. */
static void read_segment_backward(const head *a, const segment *s) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_row_workspace *row_work = &a->x->scratch.row_work;
    for (int64_t i = s->query_from; i < s->past && !sr_cancelled(); i++) {
        const real *d_numerator = d_numerator_of(a, i);
        const double *levels = row_levels(a, row_work->level, i);
        double *d_levels = row_levels(a, row_work->d_level, i);
        const double level = levels ? levels[s->level] : 1.0;
        load_query(a, i);
        row_logits(a, w->rotated_query, w->removed, i, s->start);
        for (int64_t j = s->start; j <= i; j++) {
            const double weight = pair_at(a, i, j).weight;
            const double d_weight = mixed_dot(d_numerator, w->u + j * p->Dv, p->Dv);
            w->d_weight[j] = level * d_weight;
            if (d_levels)
                d_levels[s->level] += weight * d_weight;
            for (int d = 0; d < p->Dv; d++)
                w->d_u[j * p->Dv + d] += level * weight * (double)d_numerator[d];
        }
        pairs_backward(a, w->rotated_query, w->removed, w->d_rotated_queries + i * p->D,
                       w->d_removed, i, s->start);
    }
}

/* The erase row of token j against the key that token m wrote under. */
typedef struct erase_place {
    const real *keys;
    double *d_keys; /* (T, D) */
    int64_t j, m;
} erase_place;

/* Adds the gradients of both rows and of C, given the gradient of the pair's weight. */
static void erase_backward(const head *a, erase_place at, pair kappa, double d_kappa) {
    const workspace *w = a->w;
    const int64_t D = a->p->D, i = erase_time(a, at.j);
    product_backward(a, w->erase + at.j * D, at.keys + at.m * D, w->d_erase + at.j * D,
                     at.d_keys + at.m * D, kappa.slope * d_kappa, i, at.m);
    if (a->d_decay && !sr_decay_in_logits(&a->p->attention)) {
        a->d_decay[i] += kappa.weight * d_kappa;
        a->d_decay[at.m] -= kappa.weight * d_kappa;
    }
}

/* With removal: backward of what token j, whose R is given, reads of the values themselves. */
static void removal_backward(const head *a, const double *R, int64_t j, int64_t m) {
    const workspace *w = a->w;
    const int Dv = a->p->Dv;
    const pair read = erase_pair(a, w->keys, j, m);
    double d_read = 0.0;
    for (int d = 0; d < Dv; d++) {
        d_read -= R[d] * (double)w->values[m * Dv + d];
        w->d_values[m * Dv + d] -= read.weight * R[d];
    }
    erase_backward(a, (erase_place){w->keys, w->d_keys, j, m}, read, d_read);
}

/* Backward of the delta rule itself, from the last token to the first: w->d_u becomes R = X^T
 * d_u. */
static void segment_backward(const head *a, const segment *s) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const int Dv = p->Dv;
    const bool removal = is_removal(a);
    double *d_beta = a->x->scratch.row_work.d_beta;
    if (d_beta)
        d_beta += sr_row_index(p, p->Hkv, a->document->b, a->kv, a->document->start);
    write_segment(a, s);
    memset(w->d_u + s->start * Dv, 0, (size_t)((s->past - s->start) * Dv) * sizeof *w->d_u);
    read_segment_backward(a, s);
    for (int64_t j = s->past - 1; j >= s->start && !sr_cancelled(); j--) {
        const double *R = w->d_u + j * Dv, beta = beta_at(a, j);
        for (int d = 0; d < Dv; d++) {
            if (d_beta)
                d_beta[j] += R[d] * w->error[j * Dv + d];
            if (j < s->values_past && !removal)
                w->d_values[j * Dv + d] += beta * R[d];
        }
        for (int64_t m = s->start; m < j; m++) {
            const pair kappa = kappa_at(a, j, m);
            double d_kappa = 0.0;
            for (int d = 0; d < Dv; d++) {
                d_kappa -= beta * R[d] * w->u[m * Dv + d];
                w->d_u[m * Dv + d] -= beta * kappa.weight * R[d];
            }
            erase_backward(a, (erase_place){w->removed, w->d_removed, j, m}, kappa, d_kappa);
            if (removal)
                removal_backward(a, R, j, m);
        }
    }
}

/* Clears the gradients that the head accumulates. */
static void clear_gradients(const head *a) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const size_t T = (size_t)a->document->length, D = (size_t)p->D, Dv = (size_t)p->Dv;
    double *d_beta = a->x->scratch.row_work.d_beta;
    memset(w->d_keys, 0, T * D * sizeof *w->d_keys);
    memset(w->d_rotated, 0, T * D * sizeof *w->d_rotated);
    memset(w->d_values, 0, T * Dv * sizeof *w->d_values);
    if (sr_erases_apart(&p->attention))
        memset(w->d_erase, 0, T * D * sizeof *w->d_erase);
    if (is_removal(a))
        memset(w->d_removed, 0, T * D * sizeof *w->d_removed);
    if (a->d_decay)
        memset(a->d_decay, 0, T * (size_t)a->width * sizeof *a->d_decay);
    if (d_beta)
        memset(d_beta + sr_row_index(p, p->Hkv, a->document->b, a->kv, a->document->start), 0,
               T * sizeof *d_beta);
}

/* w->row = gradients of the plain features plus those of the rotated ones with the inverse RoPE
 * applied. */
static void join_rows(const head *a, const double *plain, const double *rotated, sr_rows at) {
    const workspace *w = a->w;
    const int D = a->p->D;
    for (int d = 0; d < D; d++)
        w->row[d] = (real)rotated[d];
    if (plain == rotated)
        return;
    SR_ISA_REAL(sr_prologue_rope)(w->row, D, &a->x->scratch.row_work, a->x->call, at, true);
    for (int d = 0; d < D; d++)
        w->row[d] += (real)plain[d];
}

static void backward_query_head(const head *a) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_row_workspace *row_work = &a->x->scratch.row_work;
    const size_t T = (size_t)a->document->length, D = (size_t)p->D;
    const int64_t first = sr_row_index(p, p->H, a->document->b, a->h, a->document->start);
    memset(w->d_queries, 0, T * D * sizeof *w->d_queries);
    memset(w->d_rotated_queries, 0, T * D * sizeof *w->d_rotated_queries);
    if (row_work->d_level)
        memset(row_work->d_level + first * p->levels, 0, T * (size_t)p->levels * sizeof(double));
    for (int64_t i = 0; i < a->document->length; i++)
        w->maxima[i] = (double)((const real *)a->x->call->saved.maximum)[first + i];
    for (int64_t i = 0; i < a->document->length && !sr_cancelled(); i++)
        backward_row(a, i);
    if (p->attention.write != SRNN_WRITE_ADD)
        for_segments(a, segment_backward);
    for (int64_t i = 0; i < a->document->length && !sr_cancelled(); i++) {
        const sr_rows at = {a->document->b, a->h, a->document->start + i, 1};
        join_rows(a, w->d_queries + i * p->D, w->d_rotated_queries + i * p->D, at);
        SR_ISA_REAL(sr_prologue_query_rows_backward)(w->row, p->D, row_work, a->x->call, at);
    }
}

/* Adds to w->row, the gradient of key j, the part that comes through its erase rows. */
static void join_erased(const head *a, int64_t j) {
    const workspace *w = a->w;
    const int D = a->p->D;
    const sr_rows at = {a->document->b, a->kv, a->document->start + j, 1};
    if (!sr_erases_apart(&a->p->attention))
        return;
    for (int d = 0; d < D; d++) {
        w->more[d] = (real)w->d_erase[j * D + d];
        w->more[D + d] = is_removal(a) ? (real)w->d_removed[j * D + d] : 0;
    }
    SR_ISA_REAL(sr_prologue_erase_rows_backward)
    (w->row, (sr_erase_rows){w->more, w->more + D}, w->keys + j * D, D, &a->x->scratch.row_work,
     a->x->call, at);
}

static void backward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const sr_row_workspace *row_work = &x->scratch.row_work;
    const workspace *w = &x->scratch.workers[worker];
    const int group = p->H / p->Hkv;
    head a = head_of(x, w, &x->call->plan->documents[task / p->Hkv], (int)(task % p->Hkv));
    load_keys_values(&a);
    clear_gradients(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++)
        backward_query_head(&a);
    for (int64_t j = 0; j < a.document->length; j++) {
        const sr_rows at = {a.document->b, a.kv, a.document->start + j, 1};
        join_rows(&a, w->d_keys + j * p->D, w->d_rotated + j * p->D, at);
        join_erased(&a, j);
        SR_ISA_REAL(sr_prologue_key_rows_backward)(w->row, p->D, row_work, x->call, at);
        for (int d = 0; d < p->Dv; d++)
            w->row[d] = (real)w->d_values[j * p->Dv + d];
        SR_ISA_REAL(sr_prologue_value_rows_backward)
        (w->row, w->values + j * p->Dv, p->Dv, row_work, x->call, at);
    }
}

srnn_status generic_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = {call, generic_place(plan, true, &layout)};
    SR_ISA_REAL(sr_prologue_prepare)(&x.scratch.row_work, plan, call->in, NULL);
    SR_ISA_REAL(sr_epilogue_backward)(&x.scratch.row_work, call);
    sr_parallel(backward_task, &x, plan->document_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.scratch.row_work, call);
    return SRNN_OK;
}
