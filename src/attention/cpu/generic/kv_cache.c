/* kv_cache.c: the KV cache of the generic kernel: any equation, one token at a time.
 *
 * For variants that neither a recurrent state nor the tiles of the flash kernel support. With pool
 * the cache holds only the last token of each chunk, with a window only the tokens still inside
 * it. */
#include "attention/cpu/generic/kv_cache.h"

#include "attention/cpu/generic/pairs.h"
#include "base/cancel.h"
#include "base/threads.h"

#include <string.h>

static bool is_rotated(const srnn_problem *p) {
    return p->attention.position == SRNN_POSITION_ROPE_FEATURES;
}

static int decay_width(const srnn_problem *p) {
    return p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
}

int64_t SR_ISA_REAL(sr_kv_cache_entries)(const srnn_problem *p, int64_t tokens) {
    return p->attention.pool ? tokens / p->attention.pool : sr_keys_seen(&p->attention, tokens);
}

kv_cache_rows SR_ISA_REAL(sr_kv_cache_place)(const srnn_problem *p, int64_t capacity,
                                             sr_layout *layout) {
    const size_t entries =
        (size_t)(p->attention.pool ? capacity / p->attention.pool : capacity) + 1;
    const size_t delta = p->attention.write == SRNN_WRITE_DELTA, Dv = (size_t)p->Dv;
    kv_cache_rows rows = {
        .keys = sr_layout_take(layout, entries * (size_t)p->D, sizeof(real)),
        .values = sr_layout_take(layout, entries * Dv, sizeof(real)),
        .decay = sr_layout_take(layout, entries * (size_t)decay_width(p), sizeof(double)),
        .beta = sr_layout_take(layout, delta * entries, sizeof(real)),
        .u = sr_layout_take(layout, delta * entries * Dv, sizeof(double)),
        .weights = sr_layout_take(layout, entries, sizeof(double)),
    };
    rows.rotated =
        is_rotated(p) ? sr_layout_take(layout, entries * (size_t)p->D, sizeof(real)) : rows.keys;
    return rows;
}

typedef struct workspace {
    real *query, *rotated; /* (D) */
    double *numerator;     /* (Dv) */
    real *row;             /* (Dv) */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    workspace *workers;
    char *memory;
    int64_t capacity, position;
    size_t head_bytes;
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    context x = {0};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, false, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .query = sr_layout_take(layout, (size_t)p->D, sizeof(real)),
            .rotated = sr_layout_take(layout, (size_t)p->D, sizeof(real)),
            .numerator = sr_layout_take(layout, (size_t)p->Dv, sizeof(double)),
            .row = sr_layout_take(layout, (size_t)p->Dv, sizeof(real)),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t kv_cache_feed_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

/* One token of one head. Entry `last` of the `count` entries is the token's own; the others are the
 * tokens it sees, with a window possibly a superset. */
typedef struct place_of_token {
    const context *x;
    const srnn_problem *p;
    kv_cache_rows rows;
    int64_t b, t, last, count;
    int h, kv;
} place_of_token;

/* True if entry j is inside the window, given its distance in the ring from the last entry. */
static bool is_seen(const place_of_token *a, int64_t j) {
    const int64_t before = a->last - j + (j > a->last ? a->x->capacity : 0);
    return !a->p->attention.window || before < a->p->attention.window;
}

static const double *decay_at(const place_of_token *a, int64_t j) {
    const int width = decay_width(a->p);
    return width ? a->rows.decay + j * width : NULL;
}

static int64_t position_at(const place_of_token *a, int64_t j) {
    const int64_t own = a->x->position + a->t;
    return j == a->last ? own : a->p->attention.pool ? (j + 1) * a->p->attention.pool - 1 : j;
}

static double product_at(const place_of_token *a, const real *q, int64_t i, const real *keys,
                         int64_t j) {
    return pair_product(a->p, decay_width(a->p), q, keys + j * a->p->D, decay_at(a, i),
                        decay_at(a, j));
}

static double kappa_at(const place_of_token *a, int64_t j, int64_t m) {
    const double s = product_at(a, a->rows.rotated + j * a->p->D, j, a->rows.rotated, m);
    return kappa_of(&a->p->attention, s,
                    pair_decay(&a->p->attention, decay_at(a, j), decay_at(a, m)))
        .weight;
}

/* Writes the token's own entry. */
static void keep_token(const place_of_token *a) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows at = {a->b, a->kv, a->t, 1};
    const int64_t row = sr_row_index(p, p->Hkv, a->b, a->kv, a->t);
    const int width = decay_width(p);
    real *key = a->rows.keys + a->last * p->D, *rotated = a->rows.rotated + a->last * p->D;
    SR_ISA_REAL(sr_prologue_key_rows)(key, p->D, &x->row_work, x->call, at);
    if (rotated != key) {
        memcpy(rotated, key, (size_t)p->D * sizeof *key);
        SR_ISA_REAL(sr_prologue_rope)(rotated, p->D, &x->row_work, x->call, at, false);
    }
    SR_ISA_REAL(sr_prologue_value_rows)
    (a->rows.values + a->last * p->Dv, p->Dv, &x->row_work, x->call, at);
    if (width)
        memcpy(a->rows.decay + a->last * width, x->row_work.decay + row * width,
               (size_t)width * sizeof(double));
    if (p->attention.write != SRNN_WRITE_DELTA)
        return;
    const double beta = (double)x->row_work.beta[row];
    double *u = a->rows.u + a->last * p->Dv;
    a->rows.beta[a->last] = x->row_work.beta[row];
    for (int d = 0; d < p->Dv; d++)
        u[d] = beta * (double)a->rows.values[a->last * p->Dv + d];
    for (int64_t m = 0; x->row_work.level == NULL && m < a->last; m++) {
        const double kappa = kappa_at(a, a->last, m);
        for (int d = 0; d < p->Dv; d++)
            u[d] -= beta * kappa * a->rows.u[m * p->Dv + d];
    }
}

/* Turns weights of what the rule writes into weights of beta v, from the last entry to the
 * first. */
static void take_apart(const place_of_token *a) {
    double *weights = a->rows.weights;
    for (int64_t m = a->last; m > 0; m--)
        for (int64_t j = 0; j < m; j++)
            weights[j] -= weights[m] * (double)a->rows.beta[m] * kappa_at(a, m, j);
}

static double row_maximum(const place_of_token *a, const real *query, const real *keys) {
    const srnn_attention *v = &a->p->attention;
    double maximum = -INFINITY, largest = 0.0;
    for (int64_t j = 0; j < a->count; j++) {
        if (!is_seen(a, j))
            continue;
        const double s = product_at(a, query, a->last, keys, j);
        const double x = pair_logit(v, s);
        maximum = fmax(maximum, x + pair_decay(v, decay_at(a, a->last), decay_at(a, j)));
        largest = fmax(largest, fabs(x));
    }
    if (!sr_row_scale_invariant(v))
        return 0.0;
    return v->score == SRNN_SCORE_EXP ? maximum : sr_score_log_scale(v->score, v->order, largest);
}

/* Computes the weights (entries) of the row; returns their sum, levels included. */
static double weigh_row(const place_of_token *a, const real *query, const real *keys,
                        double maximum) {
    const srnn_problem *p = a->p;
    const double *levels =
        a->x->row_work.level
            ? a->x->row_work.level + sr_row_index(p, p->H, a->b, a->h, a->t) * p->levels
            : NULL;
    double sum = 0.0;
    for (int64_t j = 0; j < a->count; j++) {
        if (!is_seen(a, j))
            continue;
        const double s = product_at(a, query, a->last, keys, j);
        const double decay = pair_decay(&p->attention, decay_at(a, a->last), decay_at(a, j));
        a->rows.weights[j] = pair_of(&p->attention, s, decay, maximum).weight;
        sum += a->rows.weights[j] *
               (levels ? levels[pair_level(position_at(a, a->last), position_at(a, j))] : 1.0);
    }
    return sum;
}

static void add_values(const place_of_token *a, double *numerator) {
    const srnn_problem *p = a->p;
    const bool delta = p->attention.write == SRNN_WRITE_DELTA;
    const double *levels =
        a->x->row_work.level
            ? a->x->row_work.level + sr_row_index(p, p->H, a->b, a->h, a->t) * p->levels
            : NULL;
    memset(numerator, 0, (size_t)p->Dv * sizeof *numerator);
    for (int64_t j = 0; j < a->count; j++) {
        if (!is_seen(a, j))
            continue;
        const double level =
            levels ? levels[pair_level(position_at(a, a->last), position_at(a, j))] : 1.0;
        for (int d = 0; d < p->Dv; d++)
            numerator[d] +=
                level * a->rows.weights[j] *
                (delta ? a->rows.u[j * p->Dv + d] : (double)a->rows.values[j * p->Dv + d]);
    }
}

static void attend_row(const place_of_token *a, const workspace *w) {
    const context *x = a->x;
    const srnn_problem *p = a->p;
    const sr_rows at = {a->b, a->h, a->t, 1};
    const real *rotated = w->query;
    SR_ISA_REAL(sr_prologue_query_rows)(w->query, p->D, &x->row_work, x->call, at);
    double maximum = row_maximum(a, w->query, a->rows.keys);
    if (is_rotated(p)) {
        memcpy(w->rotated, w->query, (size_t)p->D * sizeof(real));
        SR_ISA_REAL(sr_prologue_rope)(w->rotated, p->D, &x->row_work, x->call, at, false);
        rotated = w->rotated;
        maximum = fmax(maximum, row_maximum(a, rotated, a->rows.rotated));
    }
    const real sum = (real)weigh_row(a, w->query, a->rows.keys, maximum);
    const real subtracted = (real)maximum;
    if (is_rotated(p))
        weigh_row(a, rotated, a->rows.rotated, maximum);
    if (p->attention.write == SRNN_WRITE_DELTA && x->row_work.level)
        take_apart(a);
    add_values(a, w->numerator);
    for (int d = 0; d < p->Dv; d++)
        w->row[d] = (real)w->numerator[d];
    SR_ISA_REAL(sr_epilogue_rows)
    ((sr_row_results){w->row, p->Dv, &sum, &subtracted, x->position + a->t + 1}, &x->row_work,
     x->call, at);
}

/* Sets the index of the token's own entry and the number of entries including it. */
static void place_token(place_of_token *a) {
    const int64_t position = a->x->position + a->t, capacity = a->x->capacity;
    a->last = SR_ISA_REAL(sr_kv_cache_entries)(a->p, position);
    a->count = a->last + 1;
    if (!a->p->attention.window)
        return;
    a->last = position % capacity;
    a->count = position < capacity ? position + 1 : capacity;
}

static void feed_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const int group = p->H / p->Hkv;
    sr_layout layout = {.base = x->memory + (size_t)task * x->head_bytes};
    place_of_token a = {.x = x,
                        .p = p,
                        .rows = SR_ISA_REAL(sr_kv_cache_place)(p, x->capacity, &layout),
                        .b = task / p->Hkv,
                        .kv = (int)(task % p->Hkv)};
    for (a.t = 0; a.t < p->T && !sr_cancelled(); a.t++) {
        place_token(&a);
        keep_token(&a);
        for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++)
            attend_row(&a, &x->workers[worker]);
    }
}

srnn_status kv_cache_feed(const sr_attention_call *call, char *cache, int64_t capacity,
                          sr_carry *carry) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true}, head = {0};
    context x = place(plan, &layout);
    SR_ISA_REAL(sr_kv_cache_place)(p, capacity, &head);
    x.call = call;
    x.memory = cache;
    x.capacity = capacity;
    x.position = *carry->position;
    x.head_bytes = head.used;
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, carry);
    sr_parallel(feed_task, &x, (int64_t)p->B * p->Hkv, p->threads);
    SR_ISA_REAL(sr_epilogue_finish)(&x.row_work, call);
    *carry->position += p->T;
    return SRNN_OK;
}
