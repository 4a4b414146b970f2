/* keys.h (private): what backward does with a tile of keys and a tile of queries beside the products
 * that differ with the type of their operands. */
#ifndef SR_ATTENTION_CPU_FLASH_KEYS_H
#define SR_ATTENTION_CPU_FLASH_KEYS_H

#include "attention/cpu/shared/tiles.h"
#include "base/cancel.h"
#include "base/threads.h"

/* Every group has its own gradients of all queries, so that more groups need more memory. */
enum { TASKS_WANTED = 8, GROUPS_MAX = 4 };

/* One thread's buffers for two tiles. */
typedef struct pair_workspace {
    real *s, *d;      /* (TILE, stride of TILE) */
    real *decay;      /* (2, TILE) */
    real *pairs;      /* (TILE): what the pairs of a row add to the gradient of C_i */
    real *query_norm; /* (tiles): the largest |query| of the tile */
} pair_workspace;

static inline pair_workspace pair_workspace_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t ld = row_stride(TILE);
    return (pair_workspace){
        .s = take_reals(layout, TILE, ld),
        .d = take_reals(layout, TILE, ld),
        .decay = take_reals(layout, 2 * TILE, 1),
        .pairs = take_reals(layout, TILE, 1),
        .query_norm = take_reals(layout, tiles_in(p->T), 1),
    };
}

/* A call, and what its tasks share. */
typedef struct key_pass {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    real *d_queries; /* (groups, B, H, T rounded up, stride of D) */
    /* (groups, B, Hkv, 2, T rounded up): of C, or NULL; second those of earlier keys */
    double *d_decay;
    tile_strides ld; /* of all buffers */
    int64_t groups;
    score_rule rule;
} key_pass;

static inline int64_t groups_of(const srnn_problem *p) {
    int64_t heads = (int64_t)p->B * p->Hkv, tiles = tiles_in(p->T);
    int64_t groups = (TASKS_WANTED + heads - 1) / heads;
    groups = groups < GROUPS_MAX ? groups : GROUPS_MAX;
    return groups < tiles ? groups : tiles;
}

/* The first key tile of a group: groups have about the same number of (query, key) tile pairs. */
static inline int64_t group_start(const srnn_plan *plan, int64_t group, int64_t groups) {
    const srnn_problem *p = &plan->core;
    if (plan->earlier.gap)
        return tiles_in(p->T) * group / groups;
    const int64_t tiles = tiles_in(p->T), window = p->attention.window;
    const int64_t most = window && tiles_in(window) + 1 < tiles ? tiles_in(window) + 1 : tiles;
    int64_t pairs = most * (most + 1) / 2 + (tiles - most) * most, before = 0, tile = 0;
    while (tile < tiles && before * groups < group * pairs) {
        before += tiles - tile < most ? tiles - tile : most;
        tile++;
    }
    return tile;
}

/* Takes what tasks share, for rows of these strides. */
static inline key_pass key_pass_place(const srnn_plan *plan, tile_strides ld, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const int64_t T = tiles_in(p->T) * TILE;
    key_pass x = {.groups = groups_of(p), .ld = ld, .rule = score_rule_of(&p->attention)};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, true, layout);
    x.d_queries = take_reals(layout, x.groups * p->B * p->H * T, ld.d);
    if (sr_operand_used(SR_OPERAND_DECAY, &p->attention))
        x.d_decay =
            sr_layout_take(layout, (size_t)(x.groups * p->B * p->Hkv * 2 * T), sizeof *x.d_decay);
    return x;
}

/* One query head against one key tile, or a range of both. */
typedef struct position {
    int64_t b;
    int h, kv;
    const int32_t *first; /* (T): the first key that a query may see */
    int64_t gap;          /* of earlier keys */
    tile_sums decay;      /* (T) each, or NULL */
    tile_sums sums;       /* of the current query and key tiles */
    real *d_queries;      /* (T rounded up, stride of D) */
    double *d_decay;      /* (T rounded up), or NULL: of queries, and of their own keys */
    double *d_key_decay;  /* the same, or of earlier keys */
    int64_t from, past;   /* key tiles of the group */
    int64_t begin;        /* the first query tile that sees one of them */
    real key_norm;        /* of the current key tile */
    tile_pairs pairs;     /* of the current query and key tiles */
    decay_range range;    /* of their decays */
} position;

static inline int64_t rows_in(const srnn_problem *p, int64_t tile) {
    return p->T - tile * TILE < TILE ? p->T - tile * TILE : TILE;
}

/* Bound on |s| of the current key tile and query tile `own`. */
static inline real pair_bound(const key_pass *x, const pair_workspace *w, const position *at,
                              int64_t own) {
    return sr_decay_may_rise(&x->call->plan->core.attention)
               ? (real)INFINITY
               : capped_bound(&x->rule, w->query_norm[own] * at->key_norm);
}

/* True if decay reduces all weights of the two tiles to zero, taking the subtracted maximum into
 * account. */
static inline bool is_hidden(const key_pass *x, const pair_workspace *w, const position *at,
                             int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    const real *maximum =
        (const real *)x->call->saved.maximum + sr_row_index(p, p->H, at->b, at->h, own * TILE);
    real least = 0;
    for (int64_t r = 0; r < rows_in(p, own); r++)
        least = maximum[r] < least ? maximum[r] : least;
    return at->decay.rows && decay_hides(&x->rule, at->range, pair_bound(x, w, at, own) - least);
}

static inline void weigh_tile(const key_pass *x, const pair_workspace *w, const position *at,
                              int64_t tile, int64_t own, int64_t width) {
    const srnn_problem *p = &x->call->plan->core;
    const tile_strides ld = x->ld;
    int64_t rows = rows_in(p, own), keys = rows_in(p, tile);
    int64_t base = sr_row_index(p, p->H, at->b, at->h, own * TILE);
    real bound = pair_bound(x, w, at, own);
    const bool near = at->decay.rows && !x->rule.logit_decay && decay_is_near(at->range, bound);
    tile_decays decays;
    tile_decays_set(&decays, w->decay, at->sums, &at->pairs);
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = own * TILE + r, high = at->gap + i + 1 - tile * TILE;
        const seen_keys seen = query_sees(&at->pairs, r, keys);
        real d_row_sum = x->row_work.d_row_sum[base + r];
        score_row row = {
            .s = w->s + r * ld.tile,
            .low = (int)seen.low,
            .high = (int)seen.high,
            .width = (int)width,
            .maximum = ((const real *)x->call->saved.maximum)[base + r],
            .bound = bound,
            .near = near,
        };
        row_set_decay(&row, &decays, r);
        real *const d = w->d + r * ld.tile;
        if (at->d_decay)
            at->d_decay[i] +=
                decays_between(at->d_key_decay + tile * TILE,
                               row_weights_decay_backward(&row, &x->rule, d, d_row_sum, w->pairs),
                               high - 1 < keys ? high - 1 : keys);
        else
            row_weights_cap_backward(&row, &x->rule, d, d_row_sum);
    }
    clear_rows_from(w->s, ld.tile, rows, TILE);
    clear_rows_from(w->d, ld.tile, rows, TILE);
}

/* True if query tile `own` is one and a query of it sees a key of `tile`: if any does, the first one
 * does. False after a cancellation too. */
static inline bool sees_tile(const key_pass *x, const position *at, int64_t own, int64_t tile) {
    const srnn_problem *p = &x->call->plan->core;
    return own < tiles_in(p->T) &&
           first_key(at->first[own * TILE], at->gap + own * TILE, p->attention.window) <
               (tile + 1) * TILE &&
           !sr_cancelled();
}

/* C of the head whose numbers begin at `base`. */
static inline tile_sums decays_of(const key_pass *x, int64_t base) {
    const sr_earlier_keys *earlier = &x->call->plan->earlier;
    const double *own = x->row_work.decay;
    if (!own)
        return (tile_sums){0};
    return (tile_sums){(earlier->query_decay ? earlier->query_decay : own) + base,
                       (earlier->key_decay ? earlier->key_decay : own) + base};
}

/* Where task `task` begins, a group of a kv head; clears the group's gradients of C. */
static inline position position_of(const key_pass *x, int64_t task) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    const int64_t tiles = tiles_in(p->T), group = task % x->groups, head = task / x->groups;
    position at = {.b = head / p->Hkv,
                   .kv = (int)(head % p->Hkv),
                   .gap = plan->earlier.gap,
                   .from = group_start(plan, group, x->groups),
                   .past = group_start(plan, group + 1, x->groups)};
    at.first = (at.gap ? plan->earlier.first : plan->first) + at.b * p->T;
    at.begin = at.gap ? 0 : at.from;
    at.decay = decays_of(x, sr_row_index(p, p->Hkv, at.b, at.kv, 0));
    if (x->d_decay) {
        at.d_decay = x->d_decay + (group * p->B * p->Hkv + head) * 2 * tiles * TILE;
        at.d_key_decay = at.gap ? at.d_decay + tiles * TILE : at.d_decay;
        memset(at.d_decay, 0, (size_t)(2 * tiles * TILE) * sizeof(double));
    }
    return at;
}

/* Continues with query head h; clears the group's gradients of its queries. */
static inline void position_next_head(const key_pass *x, position *at, int64_t task, int h) {
    const srnn_problem *p = &x->call->plan->core;
    const int64_t tiles = tiles_in(p->T), group = task % x->groups, ld = x->ld.d;
    at->h = h;
    at->d_queries = x->d_queries + ((group * p->B + at->b) * p->H + h) * tiles * TILE * ld;
    memset(at->d_queries + at->begin * TILE * ld, 0,
           (size_t)((tiles - at->begin) * TILE * ld) * sizeof(real));
}

/* Continues with query tile `own` and key tile `tile`; false if their weights are zero. */
static inline bool position_meets(const key_pass *x, const pair_workspace *w, position *at,
                                  int64_t tile, int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    at->pairs =
        (tile_pairs){at->first + own * TILE, at->gap + own * TILE, rows_in(p, own), tile, p->T,
                     p->attention.window};
    if (at->decay.rows)
        at->sums = (tile_sums){at->decay.rows + own * TILE, at->decay.keys + tile * TILE};
    at->range = tile_decay(at->sums, &at->pairs);
    return !is_hidden(x, w, at, own);
}

/* Gradients of C of a tile: the sum over the groups that saw it, in order. */
static inline void add_decay(const key_pass *x, int64_t head, int64_t tile) {
    const srnn_problem *p = &x->call->plan->core;
    int64_t tiles = tiles_in(p->T), heads = (int64_t)p->B * p->Hkv;
    const sr_earlier_keys *earlier = &x->call->plan->earlier;
    double *const out[] = {earlier->gap ? earlier->d_query_decay : x->row_work.d_decay,
                           earlier->d_key_decay};
    for (int which = 0; which < 2; which++)
        for (int64_t r = 0; out[which] && r < rows_in(p, tile); r++) {
            const double *one = x->d_decay + (2 * head + which) * tiles * TILE + tile * TILE + r;
            double sum = 0.0;
            for (int64_t group = 0; group < x->groups; group++)
                sum += one[group * heads * 2 * tiles * TILE];
            out[which][head * p->T + tile * TILE + r] = sum;
        }
}

/* Gradients of a tile of queries: the sum over the groups that saw it, in order. */
static inline void queries_task(void *untyped, int64_t task, int worker) {
    const key_pass *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const tile_strides ld = x->ld;
    int64_t tiles = tiles_in(p->T), tile = task % tiles, head = task / tiles,
            heads = (int64_t)p->B * p->H;
    real *sum = x->d_queries + (head * tiles + tile) * TILE * ld.d;
    (void)worker;
    const srnn_plan *plan = x->call->plan;
    const bool all = plan->earlier.gap > 0;
    for (int64_t group = 1;
         group < x->groups && (all || group_start(plan, group, x->groups) <= tile); group++) {
        const real *part = x->d_queries + ((group * heads + head) * tiles + tile) * TILE * ld.d;
        for (int64_t n = 0; n < TILE * ld.d; n++)
            sum[n] += part[n];
    }
    SR_ISA_REAL(sr_prologue_query_rows_backward)
    (sum, ld.d, &x->row_work, x->call,
     (sr_rows){head / p->H, (int)(head % p->H), tile * TILE, rows_in(p, tile)});
    if (x->d_decay && head % (p->H / p->Hkv) == 0)
        add_decay(x, head / (p->H / p->Hkv), tile);
}

/* The gradients of sums, of the call's outputs or as another rank has them. */
static inline void sums_backward(key_pass *x) {
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->core;
    const sr_saved *saved = &call->saved, *d_sums = call->plan->earlier.d_sums;
    const size_t rows = (size_t)p->B * (size_t)p->H * (size_t)p->T;
    if (call->plan->earlier.visitors) {
        x->row_work.d_numerator = saved->numerator;
        x->row_work.d_row_sum = saved->row_sum;
        return;
    }
    SR_ISA_REAL(sr_epilogue_backward)(&x->row_work, call);
    if (!d_sums)
        return;
    memcpy(d_sums->numerator, x->row_work.d_numerator, rows * (size_t)p->Dv * sizeof(real));
    memcpy(d_sums->row_sum, x->row_work.d_row_sum, rows * sizeof(real));
    memcpy(d_sums->maximum, saved->maximum, rows * sizeof(real));
}

#endif
