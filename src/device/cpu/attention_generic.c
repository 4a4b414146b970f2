/* attention_generic.c: the equation as plainly as it can be written; supports everything.
 *
 * Sums in double, one row at a time, O(T) memory a thread. A head is a row of queries after the other against
 * its keys; with the delta rule, segment by segment (see segment below). */
#include "attention/attention.h"
#include "attention/score.h"
#include "base/threads.h"
#include "device/cpu/attention_edges.h"
#include "device/cpu/attention_kernels.h"
#include "device/cpu/attention_rows.h"

#include <math.h>
#include <string.h>

/* What one thread works with: one head of keys and values of one document. */
typedef struct workspace {
    real *keys,
        *turned;  /* (T, D): features; turned where the numerator takes others than the row sum */
    real *values; /* (T, Dv) */
    real *query, *turned_query; /* (D) */
    real *row;                  /* (max(D, Dv)) */
    double *s;                  /* (T): s_ij, then w_ij */
    double *d_weight;           /* (T): gradient of w_ij without its level */
    double *numerators;         /* (T, Dv) of one head of queries */
    double *row_sums, *maxima;  /* (T) */
    double *u, *error;          /* (T, Dv): what the delta rule writes, and that by beta */
    double *d_u;                /* (T, Dv) */
    double *d_queries;          /* (T, D) of one head of queries */
    double *d_turned_queries;   /* (T, D): the same of turned ones */
    double *d_keys, *d_turned;  /* (T, D) */
    double *d_values;           /* (T, Dv) */
    double *column_dot;         /* (T) */
} workspace;

typedef struct scratch {
    sr_edges edges;
    workspace *workers; /* NULL while measuring */
} scratch;

static bool is_turned(const srnn_problem *p) {
    return p->attention.position == SRNN_POSITION_ROPE_FEATURES;
}

static scratch place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const size_t T = (size_t)p->T, D = (size_t)p->D, Dv = (size_t)p->Dv;
    const size_t turned = is_turned(p) ? 1 : 0, delta = p->attention.write == SRNN_WRITE_DELTA;
    const size_t back = backward ? 1 : 0;
    scratch s = {0};
    SR_ISA_REAL(sr_edges_place)(&s.edges, plan, backward, layout);
    s.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *s.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .keys = sr_layout_take(layout, T * D, sizeof(real)),
            .turned = sr_layout_take(layout, turned * T * D, sizeof(real)),
            .values = sr_layout_take(layout, T * Dv, sizeof(real)),
            .query = sr_layout_take(layout, D, sizeof(real)),
            .turned_query = sr_layout_take(layout, turned * D, sizeof(real)),
            .row = sr_layout_take(layout, D > Dv ? D : Dv, sizeof(real)),
            .s = sr_layout_take(layout, T, sizeof(double)),
            .d_weight = sr_layout_take(layout, back * T, sizeof(double)),
            .numerators = sr_layout_take(layout, T * Dv, sizeof(double)),
            .row_sums = sr_layout_take(layout, T, sizeof(double)),
            .maxima = sr_layout_take(layout, T, sizeof(double)),
            .u = sr_layout_take(layout, delta * T * Dv, sizeof(double)),
            .error = sr_layout_take(layout, delta * T * Dv, sizeof(double)),
            .d_u = sr_layout_take(layout, back * delta * T * Dv, sizeof(double)),
            .d_queries = sr_layout_take(layout, back * T * D, sizeof(double)),
            .d_turned_queries = sr_layout_take(layout, back * turned * T * D, sizeof(double)),
            .d_keys = sr_layout_take(layout, back * T * D, sizeof(double)),
            .d_turned = sr_layout_take(layout, back * turned * T * D, sizeof(double)),
            .d_values = sr_layout_take(layout, back * T * Dv, sizeof(double)),
            .column_dot = sr_layout_take(layout, back * T, sizeof(double)),
        };
        if (!turned) {
            w.turned = w.keys;
            w.turned_query = w.query;
            w.d_turned_queries = w.d_queries;
            w.d_turned = w.d_keys;
        }
        if (s.workers)
            s.workers[n] = w;
    }
    return s;
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {0};
    place(plan, true, &layout);
    return layout.used;
}

typedef struct context {
    const sr_attention_call *call;
    scratch scratch;
} context;

/* One head of queries and one of keys and values of one document, on one thread. */
typedef struct head {
    const context *x;
    const srnn_problem *p; /* the core's */
    const workspace *w;
    const sr_span *span;
    int h, kv;
    const double *decay; /* (length, width), or NULL */
    double *d_decay;     /* the same, or NULL where sums over rows and columns tell it */
    int width;           /* numbers of a decay: 1 or D */
} head;

static head head_of(const context *x, const workspace *w, const sr_span *span, int kv) {
    const srnn_plan *plan = x->call->plan;
    const sr_edges *edges = &x->scratch.edges;
    head a = {.x = x, .p = &plan->core, .w = w, .span = span, .kv = kv};
    a.width = sr_decay_numbers(&a.p->attention, plan->problem.D);
    const int64_t base = sr_row_index(a.p, a.p->Hkv, span->b, kv, span->start) * a.width;
    a.decay = edges->decay ? edges->decay + base : NULL;
    a.d_decay = edges->d_decay ? edges->d_decay + base : NULL;
    return a;
}

/* ---- pairs ---- */

/* w_ij without its level, and its derivative by s_ij. */
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

/* The same of a key for a key, which no clamp and no maximum touch. */
static pair kappa_of(const srnn_attention *a, double s, double decay) {
    srnn_attention free = *a;
    free.clamp = 0.0;
    return pair_of(&free, s, decay, 0.0);
}

/* C_i - C_j where it is a factor of the weight. */
static double weight_decay(const head *a, int64_t i, int64_t j) {
    if (!a->decay || sr_decay_in_logits(&a->p->attention))
        return 0.0;
    return a->decay[i] - a->decay[j];
}

/* <q_i, k_j> with the decay where it stands before the score. */
static double product_of(const head *a, const real *q, const real *k, int64_t i, int64_t j) {
    const int D = a->p->D;
    if (!a->decay || !sr_decay_in_logits(&a->p->attention))
        return row_dot(q, k, D);
    if (a->width == 1)
        return row_dot(q, k, D) * exp(a->decay[i] - a->decay[j]);
    double sum = 0.0;
    for (int d = 0; d < D; d++)
        sum += (double)q[d] * (double)k[d] * exp(a->decay[i * D + d] - a->decay[j * D + d]);
    return sum;
}

/* Adds what the gradient of that product means for q, k and C. */
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

/* Row i sees j: all, or the last of each earlier chunk and itself. */
static bool sees(const head *a, int64_t i, int64_t j) {
    const int64_t chunk = a->p->attention.pool;
    return !chunk || j == i || (j % chunk == chunk - 1 && j / chunk < i / chunk);
}

/* Bits of i xor j. */
static int level_of(int64_t i, int64_t j) {
    int bits = 0;
    for (int64_t rest = i ^ j; rest; rest >>= 1)
        bits++;
    return bits;
}

/* The levels of row i, or NULL. */
static double *row_levels(const head *a, double *levels, int64_t i) {
    const srnn_problem *p = a->p;
    return levels ? levels + sr_row_index(p, p->H, a->span->b, a->h, a->span->start + i) * p->levels
                  : NULL;
}

static double level_at(const double *levels, int64_t i, int64_t j) {
    return levels ? levels[level_of(i, j)] : 1.0;
}

/* ---- rows ---- */

static void load_keys_values(const head *a) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows rows = {a->span->b, a->kv, a->span->start, a->span->length};
    SR_ISA_REAL(sr_edges_key_rows)(a->w->keys, p->D, &x->scratch.edges, x->call, rows);
    SR_ISA_REAL(sr_edges_value_rows)(a->w->values, p->Dv, &x->scratch.edges, x->call, rows);
    if (!is_turned(p))
        return;
    memcpy(a->w->turned, a->w->keys, (size_t)(rows.count * p->D) * sizeof(real));
    SR_ISA_REAL(sr_edges_turn)(a->w->turned, p->D, &x->scratch.edges, x->call, rows, false);
}

static void load_query(const head *a, int64_t i) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows row = {a->span->b, a->h, a->span->start + i, 1};
    SR_ISA_REAL(sr_edges_query_rows)(a->w->query, p->D, &x->scratch.edges, x->call, row);
    if (!is_turned(p))
        return;
    memcpy(a->w->turned_query, a->w->query, (size_t)p->D * sizeof(real));
    SR_ISA_REAL(sr_edges_turn)(a->w->turned_query, p->D, &x->scratch.edges, x->call, row, false);
}

/* s_ij of a query for from <= j <= i into w->s; returns what the logarithms of the row's weights may be
 * reduced by. */
static double row_logits(const head *a, const real *query, const real *keys, int64_t i,
                         int64_t from) {
    const srnn_attention *v = &a->p->attention;
    double maximum = -INFINITY, largest = 0.0;
    for (int64_t j = from; j <= i; j++) {
        if (!sees(a, i, j))
            continue;
        double s = product_of(a, query, keys + j * a->p->D, i, j);
        double x = v->clamp != 0.0 && s > v->clamp ? v->clamp : s;
        maximum = fmax(maximum, x + weight_decay(a, i, j));
        largest = fmax(largest, fabs(x));
        a->w->s[j] = s;
    }
    if (!sr_row_scale_invariant(v))
        return 0.0;
    return v->score == SRNN_SCORE_EXP ? maximum : sr_score_log_scale(v->score, v->order, largest);
}

static pair pair_at(const head *a, int64_t i, int64_t j) {
    return pair_of(&a->p->attention, a->w->s[j], weight_decay(a, i, j), a->w->maxima[i]);
}

/* Adds the gradients of q_i (D), keys (T, D) and C of w->d_weight[j], from <= j <= i, where w->s holds the
 * logits. */
static void pairs_backward(const head *a, const real *query, const real *keys, double *d_query,
                           double *d_keys, int64_t i, int64_t from) {
    const workspace *w = a->w;
    const int D = a->p->D;
    const bool explicit_weight = a->d_decay && !sr_decay_in_logits(&a->p->attention);
    for (int64_t j = from; j <= i; j++) {
        if (!sees(a, i, j))
            continue;
        const pair own = pair_at(a, i, j);
        product_backward(a, query, keys + j * D, d_query, d_keys + j * D,
                         own.slope * w->d_weight[j], i, j);
        if (explicit_weight) {
            a->d_decay[i] += own.weight * w->d_weight[j];
            a->d_decay[j] -= own.weight * w->d_weight[j];
        }
    }
}

/* ---- the delta rule, segment by segment
 *
 * Without levels there is one segment: all tokens. With levels the weights of v are taken apart by level, and
 * a level sees of a stretch of the past only: its values are those of one block, read by the tokens of
 * the block behind it, while the rule runs over both. */
typedef struct segment {
    int64_t start, values_past, query_from, past;
    int level; /* -1: none */
} segment;

/* Calls `work` for every segment of the document. */
static void for_segments(const head *a, void (*work)(const head *a, const segment *s)) {
    const int64_t T = a->span->length;
    if (a->p->attention.levels == SRNN_LEVELS_NONE) {
        work(a, &(segment){0, T, 0, T, -1});
        return;
    }
    for (int64_t i = 0; i < T; i++)
        work(a, &(segment){i, i + 1, i, i + 1, 0});
    for (int level = 1; (int64_t)1 << (level - 1) < T; level++) {
        const int64_t block = (int64_t)1 << (level - 1);
        for (int64_t start = 0; start + block < T; start += 2 * block)
            work(a, &(segment){start, start + block, start + block,
                               start + 2 * block < T ? start + 2 * block : T, level});
    }
}

static const real *beta_of(const head *a) {
    return a->x->scratch.edges.beta +
           sr_row_index(a->p, a->p->Hkv, a->span->b, a->kv, a->span->start);
}

static pair kappa_at(const head *a, int64_t j, int64_t m) {
    const int D = a->p->D;
    const real *k = a->w->turned;
    return kappa_of(&a->p->attention, product_of(a, k + j * D, k + m * D, j, m),
                    weight_decay(a, j, m));
}

/* w->u = beta w->error, w->error_j = v_j - sum_{m<j} kappa_jm u_m, over the segment. */
static void write_segment(const head *a, const segment *s) {
    const workspace *w = a->w;
    const int Dv = a->p->Dv;
    const real *beta = beta_of(a);
    for (int64_t j = s->start; j < s->past; j++) {
        double *error = w->error + j * Dv;
        for (int d = 0; d < Dv; d++)
            error[d] = j < s->values_past ? (double)w->values[j * Dv + d] : 0.0;
        for (int64_t m = s->start; m < j; m++) {
            const double kappa = kappa_at(a, j, m).weight;
            for (int d = 0; d < Dv; d++)
                error[d] -= kappa * w->u[m * Dv + d];
        }
        for (int d = 0; d < Dv; d++)
            w->u[j * Dv + d] = (double)beta[j] * error[d];
    }
}

static void read_segment(const head *a, const segment *s) {
    const workspace *w = a->w;
    const int Dv = a->p->Dv;
    write_segment(a, s);
    for (int64_t i = s->query_from; i < s->past; i++) {
        const double *levels = row_levels(a, a->x->scratch.edges.level, i);
        const double level = levels ? levels[s->level] : 1.0;
        load_query(a, i);
        row_logits(a, w->turned_query, w->turned, i, s->start);
        for (int64_t j = s->start; j <= i; j++) {
            const double weight = level * pair_at(a, i, j).weight;
            for (int d = 0; d < Dv; d++)
                w->numerators[i * Dv + d] += weight * w->u[j * Dv + d];
        }
    }
}

/* ---- forward ---- */

/* Row i of the head: its maximum, its row sum, and without the delta rule its numerator. */
static void forward_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const bool turned = is_turned(p), delta = p->attention.write == SRNN_WRITE_DELTA;
    const double *levels = row_levels(a, a->x->scratch.edges.level, i);
    double *numerator = w->numerators + i * p->Dv, row_sum = 0.0;
    load_query(a, i);
    double maximum = turned ? row_logits(a, w->turned_query, w->turned, i, 0) : -INFINITY;
    maximum = fmax(maximum, row_logits(a, w->query, w->keys, i, 0));
    w->maxima[i] = maximum;
    memset(numerator, 0, (size_t)p->Dv * sizeof *numerator);
    for (int64_t j = 0; j <= i; j++) {
        if (!sees(a, i, j))
            continue;
        const double weight = level_at(levels, i, j) * pair_at(a, i, j).weight;
        row_sum += weight;
        for (int d = 0; !turned && !delta && d < p->Dv; d++)
            numerator[d] += weight * (double)w->values[j * p->Dv + d];
    }
    w->row_sums[i] = row_sum;
    if (!turned || delta)
        return;
    row_logits(a, w->turned_query, w->turned, i, 0);
    for (int64_t j = 0; j <= i; j++)
        for (int d = 0; sees(a, i, j) && d < p->Dv; d++)
            numerator[d] +=
                level_at(levels, i, j) * pair_at(a, i, j).weight * (double)w->values[j * p->Dv + d];
}

static void write_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_attention_call *call = a->x->call;
    const real sum = (real)w->row_sums[i];
    for (int d = 0; d < p->Dv; d++)
        w->row[d] = (real)w->numerators[i * p->Dv + d];
    SR_ISA_REAL(sr_edges_output_rows)
    ((sr_row_results){w->row, p->Dv, &sum, i + 1}, &a->x->scratch.edges, call,
     (sr_rows){a->span->b, a->h, a->span->start + i, 1});
    if (!call->saved.numerator)
        return;
    const int64_t at = sr_row_index(p, p->H, a->span->b, a->h, a->span->start + i);
    memcpy((real *)call->saved.numerator + at * p->Dv, w->row, (size_t)p->Dv * sizeof(real));
    ((real *)call->saved.row_sum)[at] = sum;
    ((real *)call->saved.maximum)[at] = (real)w->maxima[i];
}

static void forward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const int group = p->H / p->Hkv;
    head a = head_of(x, &x->scratch.workers[worker], &x->call->plan->spans[task / p->Hkv],
                     (int)(task % p->Hkv));
    load_keys_values(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++) {
        for (int64_t i = 0; i < a.span->length; i++)
            forward_row(&a, i);
        if (p->attention.write == SRNN_WRITE_DELTA)
            for_segments(&a, read_segment);
        for (int64_t i = 0; i < a.span->length; i++)
            write_row(&a, i);
    }
}

static srnn_status forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {plan->scratch, 0};
    context x = {call, place(plan, false, &layout)};
    SR_ISA_REAL(sr_edges_prepare)(&x.scratch.edges, plan, call->in, NULL);
    sr_parallel(forward_task, &x, plan->span_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_edges_finish)(&x.scratch.edges, call);
    return SRNN_OK;
}

/* ---- backward ---- */

static const real *d_numerator_of(const head *a, int64_t i) {
    return a->x->scratch.edges.d_numerator +
           sr_row_index(a->p, a->p->H, a->span->b, a->h, a->span->start + i) * a->p->Dv;
}

/* <a, b> of a row of gradients and one of double. */
static double mixed_dot(const real *a, const double *b, int n) {
    double sum = 0.0;
    for (int d = 0; d < n; d++)
        sum += (double)a[d] * b[d];
    return sum;
}

/* Through the row sum, and without the delta rule through the numerator: w->s holds the logits of one or
 * both. */
static void weights_backward(const head *a, int64_t i, bool sums, bool numerators) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_edges *edges = &a->x->scratch.edges;
    const int64_t at = sr_row_index(p, p->H, a->span->b, a->h, a->span->start + i);
    const double d_row_sum = sums ? (double)edges->d_row_sum[at] : 0.0;
    const real *d_numerator = d_numerator_of(a, i);
    const double *levels = row_levels(a, edges->level, i);
    double *d_levels = row_levels(a, edges->d_level, i);
    for (int64_t j = 0; j <= i; j++) {
        if (!sees(a, i, j))
            continue;
        const double level = level_at(levels, i, j), weight = pair_at(a, i, j).weight;
        double d_weight = d_row_sum;
        if (numerators) {
            d_weight += row_dot(d_numerator, w->values + j * p->Dv, p->Dv);
            for (int d = 0; d < p->Dv; d++)
                w->d_values[j * p->Dv + d] += level * weight * (double)d_numerator[d];
        }
        w->d_weight[j] = level * d_weight;
        w->column_dot[j] += level * weight * d_row_sum;
        if (d_levels)
            d_levels[level_of(i, j)] += weight * d_weight;
    }
}

static void backward_row(const head *a, int64_t i) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const bool turned = is_turned(p), delta = p->attention.write == SRNN_WRITE_DELTA;
    load_query(a, i);
    row_logits(a, w->query, w->keys, i, 0);
    weights_backward(a, i, true, !turned && !delta);
    pairs_backward(a, w->query, w->keys, w->d_queries + i * p->D, w->d_keys, i, 0);
    if (!turned || delta)
        return;
    row_logits(a, w->turned_query, w->turned, i, 0);
    weights_backward(a, i, false, true);
    pairs_backward(a, w->turned_query, w->turned, w->d_turned_queries + i * p->D, w->d_turned, i,
                   0);
}

/* Gradients of the weights that read a segment's u, and of u. */
static void read_segment_backward(const head *a, const segment *s) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_edges *edges = &a->x->scratch.edges;
    for (int64_t i = s->query_from; i < s->past; i++) {
        const real *d_numerator = d_numerator_of(a, i);
        const double *levels = row_levels(a, edges->level, i);
        double *d_levels = row_levels(a, edges->d_level, i);
        const double level = levels ? levels[s->level] : 1.0;
        load_query(a, i);
        row_logits(a, w->turned_query, w->turned, i, s->start);
        for (int64_t j = s->start; j <= i; j++) {
            const double weight = pair_at(a, i, j).weight;
            const double d_weight = mixed_dot(d_numerator, w->u + j * p->Dv, p->Dv);
            w->d_weight[j] = level * d_weight;
            if (d_levels)
                d_levels[s->level] += weight * d_weight;
            for (int d = 0; d < p->Dv; d++)
                w->d_u[j * p->Dv + d] += level * weight * (double)d_numerator[d];
        }
        pairs_backward(a, w->turned_query, w->turned, w->d_turned_queries + i * p->D, w->d_turned,
                       i, s->start);
    }
}

/* Gradients through the rule itself, from the last token to the first: w->d_u becomes R = X^T d_u. */
static void segment_backward(const head *a, const segment *s) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const int D = p->D, Dv = p->Dv;
    const real *beta = beta_of(a);
    double *d_beta =
        a->x->scratch.edges.d_beta + sr_row_index(p, p->Hkv, a->span->b, a->kv, a->span->start);
    const bool weighted = a->d_decay && !sr_decay_in_logits(&p->attention);
    write_segment(a, s);
    memset(w->d_u + s->start * Dv, 0, (size_t)((s->past - s->start) * Dv) * sizeof *w->d_u);
    read_segment_backward(a, s);
    for (int64_t j = s->past - 1; j >= s->start; j--) {
        const double *R = w->d_u + j * Dv;
        for (int d = 0; d < Dv; d++) {
            d_beta[j] += R[d] * w->error[j * Dv + d];
            if (j < s->values_past)
                w->d_values[j * Dv + d] += (double)beta[j] * R[d];
        }
        for (int64_t m = s->start; m < j; m++) {
            const pair kappa = kappa_at(a, j, m);
            double d_kappa = 0.0;
            for (int d = 0; d < Dv; d++) {
                d_kappa -= (double)beta[j] * R[d] * w->u[m * Dv + d];
                w->d_u[m * Dv + d] -= (double)beta[j] * kappa.weight * R[d];
            }
            product_backward(a, w->turned + j * D, w->turned + m * D, w->d_turned + j * D,
                             w->d_turned + m * D, kappa.slope * d_kappa, j, m);
            if (weighted) {
                a->d_decay[j] += kappa.weight * d_kappa;
                a->d_decay[m] -= kappa.weight * d_kappa;
            }
        }
    }
}

/* Zeros for what the head adds to. */
static void clear_gradients(const head *a) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const size_t T = (size_t)a->span->length, D = (size_t)p->D, Dv = (size_t)p->Dv;
    double *d_beta = a->x->scratch.edges.d_beta;
    memset(w->d_keys, 0, T * D * sizeof *w->d_keys);
    memset(w->d_turned, 0, T * D * sizeof *w->d_turned);
    memset(w->d_values, 0, T * Dv * sizeof *w->d_values);
    memset(w->column_dot, 0, T * sizeof *w->column_dot);
    if (a->d_decay)
        memset(a->d_decay, 0, T * (size_t)a->width * sizeof *a->d_decay);
    if (d_beta)
        memset(d_beta + sr_row_index(p, p->Hkv, a->span->b, a->kv, a->span->start), 0,
               T * sizeof *d_beta);
}

/* The row of gradients of features in w->row: those of turned ones are turned back and added. */
static void join_rows(const head *a, const double *plain, const double *turned, sr_rows at) {
    const workspace *w = a->w;
    const int D = a->p->D;
    for (int d = 0; d < D; d++)
        w->row[d] = (real)turned[d];
    if (plain == turned)
        return;
    SR_ISA_REAL(sr_edges_turn)(w->row, D, &a->x->scratch.edges, a->x->call, at, true);
    for (int d = 0; d < D; d++)
        w->row[d] += (real)plain[d];
}

static void backward_query_head(const head *a) {
    const workspace *w = a->w;
    const srnn_problem *p = a->p;
    const sr_edges *edges = &a->x->scratch.edges;
    const size_t T = (size_t)a->span->length, D = (size_t)p->D;
    const int64_t first = sr_row_index(p, p->H, a->span->b, a->h, a->span->start);
    memset(w->d_queries, 0, T * D * sizeof *w->d_queries);
    memset(w->d_turned_queries, 0, T * D * sizeof *w->d_turned_queries);
    if (edges->d_level)
        memset(edges->d_level + first * p->levels, 0, T * (size_t)p->levels * sizeof(double));
    for (int64_t i = 0; i < a->span->length; i++)
        w->maxima[i] = (double)((const real *)a->x->call->saved.maximum)[first + i];
    for (int64_t i = 0; i < a->span->length; i++)
        backward_row(a, i);
    if (p->attention.write == SRNN_WRITE_DELTA)
        for_segments(a, segment_backward);
    for (int64_t i = 0; i < a->span->length; i++) {
        const sr_rows at = {a->span->b, a->h, a->span->start + i, 1};
        join_rows(a, w->d_queries + i * p->D, w->d_turned_queries + i * p->D, at);
        SR_ISA_REAL(sr_edges_query_rows_backward)(w->row, p->D, edges, a->x->call, at);
    }
}

static void backward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const sr_edges *edges = &x->scratch.edges;
    const workspace *w = &x->scratch.workers[worker];
    const int group = p->H / p->Hkv;
    head a = head_of(x, w, &x->call->plan->spans[task / p->Hkv], (int)(task % p->Hkv));
    load_keys_values(&a);
    clear_gradients(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++)
        backward_query_head(&a);
    for (int64_t j = 0; j < a.span->length; j++) {
        const sr_rows at = {a.span->b, a.kv, a.span->start + j, 1};
        join_rows(&a, w->d_keys + j * p->D, w->d_turned + j * p->D, at);
        SR_ISA_REAL(sr_edges_key_rows_backward)(w->row, p->D, edges, x->call, at);
        for (int d = 0; d < p->Dv; d++)
            w->row[d] = (real)w->d_values[j * p->Dv + d];
        SR_ISA_REAL(sr_edges_value_rows_backward)
        (w->row, w->values + j * p->Dv, p->Dv, edges, x->call, at);
        if (edges->column_dot)
            edges->column_dot[sr_row_index(p, p->Hkv, at.b, a.kv, at.t)] = w->column_dot[j];
    }
}

static srnn_status backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {plan->scratch, 0};
    context x = {call, place(plan, true, &layout)};
    SR_ISA_REAL(sr_edges_prepare)(&x.scratch.edges, plan, call->in, NULL);
    SR_ISA_REAL(sr_edges_backward_outputs)(&x.scratch.edges, call);
    sr_parallel(backward_task, &x, plan->span_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_edges_backward_inputs)(&x.scratch.edges, call);
    return SRNN_OK;
}

static bool supports(const srnn_problem *problem) {
    (void)problem;
    return true;
}

const sr_attention_kernel SR_ISA_REAL(sr_attention_generic) = {
    "generic", SRNN_FORM_PARALLEL, SR_REAL_DTYPE, supports, scratch_bytes, forward, backward,
};
