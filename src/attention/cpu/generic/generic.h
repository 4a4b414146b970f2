/* generic.h (private): shared by forward and backward of the generic kernel: a head's rows, its
 * pairs, and the segments of the delta rule. */
#ifndef SR_ATTENTION_CPU_GENERIC_GENERIC_H
#define SR_ATTENTION_CPU_GENERIC_GENERIC_H

#include "attention/cpu/generic/pairs.h"
#include "attention/cpu/shared/prologue.h"
#include "base/cancel.h"

#include <string.h>

#define generic_backward SR_ISA_REAL(sr_generic_backward)

srnn_status generic_backward(const sr_attention_call *call);

/* The buffers of one thread, which works on one kv head of one document. */
typedef struct workspace {
    real *keys, *rotated; /* (T, D): features; `rotated` differs from `keys` if RoPE applies to the
                    * numerator only */
    real *values;         /* (T, Dv) */
    real *erase;   /* (T, D): the rule's erase rows; aliases `rotated` unless the rule has its
                    * own */
    real *removed; /* (T, D): the keys under which it erases; likewise */
    real *query, *rotated_query; /* (D) */
    real *row;                   /* (max(D, Dv)) */
    double *s;                   /* (T): s_ij, then w_ij */
    double *d_weight;            /* (T): gradient of w_ij without its level */
    double *numerators;          /* (T, Dv) of one query head */
    double *row_sums, *maxima;   /* (T) */
    double *u, *error;           /* (T, Dv): what the delta rule writes, beta times the error, and
                                  * the error */
    double *d_u;                 /* (T, Dv) */
    double *d_queries;           /* (T, D) of one query head */
    double *d_rotated_queries;   /* (T, D): of the rotated queries */
    double *d_keys, *d_rotated;  /* (T, D) */
    double *d_values;            /* (T, Dv) */
    double *d_erase, *d_removed; /* (T, D) */
    real *more;                  /* (2, D): gradients of erase rows, converted to `real` */
} workspace;

typedef struct scratch {
    sr_row_workspace row_work;
    workspace *workers; /* NULL while the layout is being measured */
} scratch;

static inline bool is_rotated(const srnn_problem *p) {
    return p->attention.position == SRNN_POSITION_ROPE_FEATURES;
}

static inline scratch generic_place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const size_t T = (size_t)p->T, D = (size_t)p->D, Dv = (size_t)p->Dv;
    const size_t rotated = is_rotated(p) ? 1 : 0, delta = p->attention.write != SRNN_WRITE_ADD;
    const size_t apart = sr_erases_apart(&p->attention) ? 1 : 0;
    const size_t removal = p->attention.write == SRNN_WRITE_REMOVAL;
    const size_t back = backward ? 1 : 0;
    scratch s = {0};
    SR_ISA_REAL(sr_workspace_place)(&s.row_work, plan, backward, layout);
    s.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *s.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .keys = sr_layout_take(layout, T * D, sizeof(real)),
            .rotated = sr_layout_take(layout, rotated * T * D, sizeof(real)),
            .values = sr_layout_take(layout, T * Dv, sizeof(real)),
            .query = sr_layout_take(layout, D, sizeof(real)),
            .rotated_query = sr_layout_take(layout, rotated * D, sizeof(real)),
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
            .d_rotated_queries = sr_layout_take(layout, back * rotated * T * D, sizeof(double)),
            .d_keys = sr_layout_take(layout, back * T * D, sizeof(double)),
            .d_rotated = sr_layout_take(layout, back * rotated * T * D, sizeof(double)),
            .d_values = sr_layout_take(layout, back * T * Dv, sizeof(double)),
            .erase = sr_layout_take(layout, apart * T * D, sizeof(real)),
            .removed = sr_layout_take(layout, removal * T * D, sizeof(real)),
            .d_erase = sr_layout_take(layout, back * apart * T * D, sizeof(double)),
            .d_removed = sr_layout_take(layout, back * removal * T * D, sizeof(double)),
            .more = sr_layout_take(layout, back * apart * 2 * D, sizeof(real)),
        };
        if (!rotated) {
            w.rotated = w.keys;
            w.rotated_query = w.query;
            w.d_rotated_queries = w.d_queries;
            w.d_rotated = w.d_keys;
        }
        if (!apart) {
            w.erase = w.rotated;
            w.d_erase = w.d_rotated;
        }
        if (!removal) {
            w.removed = w.rotated;
            w.d_removed = w.d_rotated;
        }
        if (s.workers)
            s.workers[n] = w;
    }
    return s;
}

typedef struct context {
    const sr_attention_call *call;
    scratch scratch;
} context;

/* One query head and its kv head in one document, on one thread. */
typedef struct head {
    const context *x;
    const srnn_problem *p; /* of the core */
    const workspace *w;
    const sr_document_range *document;
    int h, kv;
    const double *decay; /* (length, width), or NULL */
    double *d_decay;     /* of the same shape; NULL without decay */
    int width;           /* decay values per token: 1 or D */
} head;

static inline head head_of(const context *x, const workspace *w, const sr_document_range *document,
                           int kv) {
    const srnn_plan *plan = x->call->plan;
    const sr_row_workspace *row_work = &x->scratch.row_work;
    head a = {.x = x, .p = &plan->core, .w = w, .document = document, .kv = kv};
    a.width = sr_decay_numbers(&a.p->attention, plan->problem.D);
    const int64_t base = sr_row_index(a.p, a.p->Hkv, document->b, kv, document->start) * a.width;
    a.decay = row_work->decay ? row_work->decay + base : NULL;
    a.d_decay = row_work->d_decay ? row_work->d_decay + base : NULL;
    return a;
}

/* ---- pairs ---- */

/* C of a token; NULL without decay. */
static inline const double *decay_at(const head *a, int64_t i) {
    return a->decay ? a->decay + i * a->width : NULL;
}

static inline double weight_decay(const head *a, int64_t i, int64_t j) {
    return pair_decay(&a->p->attention, decay_at(a, i), decay_at(a, j));
}

static inline double product_of(const head *a, const real *q, const real *k, int64_t i, int64_t j) {
    return pair_product(a->p, a->width, q, k, decay_at(a, i), decay_at(a, j));
}

/* Iterates over the keys that row i sees: all, those of its window, or with pool the last key of
 * each earlier chunk and key i itself. */
static inline int64_t first_seen(const head *a, int64_t i, int64_t from) {
    const int64_t chunk = a->p->attention.pool;
    if (a->p->attention.window)
        return i + 1 - sr_keys_seen(&a->p->attention, i + 1);
    return !chunk ? from : i < chunk ? i : chunk - 1;
}

static inline int64_t next_seen(const head *a, int64_t i, int64_t j) {
    const int64_t chunk = a->p->attention.pool;
    if (!chunk || j == i)
        return j + 1;
    return (j + chunk) / chunk < i / chunk ? j + chunk : i;
}

/* The levels of row i; NULL without levels. */
static inline double *row_levels(const head *a, double *levels, int64_t i) {
    const srnn_problem *p = a->p;
    return levels ? levels + sr_row_index(p, p->H, a->document->b, a->h, a->document->start + i) *
                                 p->levels
                  : NULL;
}

static inline double level_at(const double *levels, int64_t i, int64_t j) {
    return levels ? levels[pair_level(i, j)] : 1.0;
}

/* ---- rows ---- */

static inline void load_keys_values(const head *a) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows rows = {a->document->b, a->kv, a->document->start, a->document->length};
    SR_ISA_REAL(sr_prologue_key_rows)(a->w->keys, p->D, &x->scratch.row_work, x->call, rows);
    SR_ISA_REAL(sr_prologue_value_rows)(a->w->values, p->Dv, &x->scratch.row_work, x->call, rows);
    if (sr_erases_apart(&p->attention))
        SR_ISA_REAL(sr_prologue_erase_rows)
    ((sr_erase_rows){a->w->erase, a->w->removed}, a->w->keys, p->D, x->call, rows);
    if (!is_rotated(p))
        return;
    memcpy(a->w->rotated, a->w->keys, (size_t)(rows.count * p->D) * sizeof(real));
    SR_ISA_REAL(sr_prologue_rope)(a->w->rotated, p->D, &x->scratch.row_work, x->call, rows, false);
}

static inline void load_query(const head *a, int64_t i) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows row = {a->document->b, a->h, a->document->start + i, 1};
    SR_ISA_REAL(sr_prologue_query_rows)(a->w->query, p->D, &x->scratch.row_work, x->call, row);
    if (!is_rotated(p))
        return;
    memcpy(a->w->rotated_query, a->w->query, (size_t)p->D * sizeof(real));
    SR_ISA_REAL(sr_prologue_rope)
    (a->w->rotated_query, p->D, &x->scratch.row_work, x->call, row, false);
}

/* Writes s_ij of a query for from <= j <= i to w->s. Returns the maximum that is subtracted from
 * the logarithms of the row's weights. */
static inline double row_logits(const head *a, const real *query, const real *keys, int64_t i,
                                int64_t from) {
    const srnn_attention *v = &a->p->attention;
    double maximum = -INFINITY, largest = 0.0;
    for (int64_t j = first_seen(a, i, from); j <= i; j = next_seen(a, i, j)) {
        double s = product_of(a, query, keys + j * a->p->D, i, j);
        double x = pair_logit(v, s);
        maximum = fmax(maximum, x + weight_decay(a, i, j));
        largest = fmax(largest, fabs(x));
        a->w->s[j] = s;
    }
    if (!sr_row_scale_invariant(v))
        return 0.0;
    return v->score == SRNN_SCORE_EXP ? maximum : sr_score_log_scale(v->score, v->order, largest);
}

static inline pair pair_at(const head *a, int64_t i, int64_t j) {
    return pair_of(&a->p->attention, a->w->s[j], weight_decay(a, i, j), a->w->maxima[i]);
}

/* ---- the delta rule, segment by segment
 *
 * Without levels there is one segment: all tokens. With levels the weights of v are split by level,
 * and a level covers only part of the past: its values belong to one block and are read by the
 * tokens of the next block, while the rule runs over both. */
typedef struct segment {
    int64_t start, values_past, query_from, past;
    int level; /* -1: no levels */
} segment;

/* Calls `work` for every segment of the document. */
static inline void for_segments(const head *a, void (*work)(const head *a, const segment *s)) {
    const int64_t T = a->document->length;
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

static inline double beta_at(const head *a, int64_t j) {
    const real *beta = a->x->scratch.row_work.beta;
    const int64_t from = sr_row_index(a->p, a->p->Hkv, a->document->b, a->kv, a->document->start);
    return beta ? (double)beta[from + j] : 1.0;
}

static inline bool is_removal(const head *a) {
    return a->p->attention.write == SRNN_WRITE_REMOVAL;
}

/* The token up to which decay applies when token j erases: with removal the state is read before
 * the gate of token j. */
static inline int64_t erase_time(const head *a, int64_t j) {
    return is_removal(a) ? j - 1 : j;
}

/* The weight with which token j erases what token m wrote under its key (D). */
static inline pair erase_pair(const head *a, const real *keys, int64_t j, int64_t m) {
    const int D = a->p->D;
    const int64_t i = erase_time(a, j);
    return kappa_of(&a->p->attention, product_of(a, a->w->erase + j * D, keys + m * D, i, m),
                    weight_decay(a, i, m));
}

static inline pair kappa_at(const head *a, int64_t j, int64_t m) {
    return erase_pair(a, a->w->removed, j, m);
}

/* w->u = beta w->error, w->error_j = v_j - sum_{m<j} kappa_jm u_m, over the segment. With removal
 * v_j is written separately, and w->u = -e: the negative of what the erase row reads of everything
 * written so far. */
static inline void write_segment(const head *a, const segment *s) {
    const workspace *w = a->w;
    const int Dv = a->p->Dv;
    const bool removal = is_removal(a);
    for (int64_t j = s->start; j < s->past && !sr_cancelled(); j++) {
        double *error = w->error + j * Dv;
        for (int d = 0; d < Dv; d++)
            error[d] = j < s->values_past && !removal ? (double)w->values[j * Dv + d] : 0.0;
        for (int64_t m = s->start; m < j; m++) {
            const double kappa = kappa_at(a, j, m).weight;
            const double read = removal ? erase_pair(a, w->keys, j, m).weight : 0.0;
            for (int d = 0; d < Dv; d++)
                error[d] -= kappa * w->u[m * Dv + d];
            for (int d = 0; removal && d < Dv; d++)
                error[d] -= read * (double)w->values[m * Dv + d];
        }
        for (int d = 0; d < Dv; d++)
            w->u[j * Dv + d] = beta_at(a, j) * error[d];
    }
}

#endif
