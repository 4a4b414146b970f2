/* backward.c: the parallel form in tiles, backward; weights are recomputed.
 *
 * A task is a group of key tiles of one kv head. For each key tile it walks the query tiles that
 * see it: two GEMMs compute logits and gradients of weights, three more add to the gradients of
 * values, keys and queries. The number of groups per head depends on the problem alone, and each
 * group has its own sum for the queries; these are added in order afterwards, so that bits do not
 * depend on the number of threads. */
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/shared/tiles.h"
#include "base/cancel.h"
#include "base/threads.h"

/* Every group has its own gradients of all queries, so that more groups need more memory. */
enum { TASKS_WANTED = 8, GROUPS_MAX = 4 };

typedef struct workspace {
    real *queries;     /* (T rounded up, stride of D) */
    real *d_numerator; /* (T rounded up, stride of Dv) */
    real *d_keys;      /* (T rounded up, stride of D) */
    real *d_values;    /* (T rounded up, stride of Dv) */
    real *key_rows;    /* (TILE, stride of D) */
    real *value_rows;  /* (TILE, stride of Dv) */
    real *keys;        /* (D, stride of TILE): transposed */
    real *values;      /* (Dv, stride of TILE): transposed */
    real *s, *d;       /* (TILE, stride of TILE) */
    real *decay;       /* (2, TILE) */
    real *pairs;       /* (TILE): what the pairs of a row add to the gradient of C_i */
    real *query_norm;  /* (tiles): the largest |query| of the tile */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    real *d_queries; /* (groups, B, H, T rounded up, stride of D) */
    /* (groups, B, Hkv, 2, T rounded up): of C, or NULL; second those of earlier keys */
    double *d_decay;
    workspace *workers;
    int64_t groups;
    score_rule rule;
} context;

static int64_t groups_of(const srnn_problem *p) {
    int64_t heads = (int64_t)p->B * p->Hkv, tiles = tiles_in(p->T);
    int64_t groups = (TASKS_WANTED + heads - 1) / heads;
    groups = groups < GROUPS_MAX ? groups : GROUPS_MAX;
    return groups < tiles ? groups : tiles;
}

/* The first key tile of a group: groups have about the same number of (query, key) tile pairs. */
static int64_t group_start(const srnn_plan *plan, int64_t group, int64_t groups) {
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

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t T = tiles_in(p->T) * TILE;
    context x = {.groups = groups_of(p)};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, true, layout);
    x.d_queries = take_reals(layout, x.groups * p->B * p->H * T, ld.d);
    if (sr_operand_used(SR_OPERAND_DECAY, &p->attention))
        x.d_decay =
            sr_layout_take(layout, (size_t)(x.groups * p->B * p->Hkv * 2 * T), sizeof *x.d_decay);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .queries = take_reals(layout, T, ld.d),
            .d_numerator = take_reals(layout, T, ld.dv),
            .d_keys = take_reals(layout, T, ld.d),
            .d_values = take_reals(layout, T, ld.dv),
            .key_rows = take_reals(layout, TILE, ld.d),
            .value_rows = take_reals(layout, TILE, ld.dv),
            .keys = take_reals(layout, p->D, ld.tile),
            .values = take_reals(layout, p->Dv, ld.tile),
            .s = take_reals(layout, TILE, ld.tile),
            .d = take_reals(layout, TILE, ld.tile),
            .decay = take_reals(layout, 2 * TILE, 1),
            .pairs = take_reals(layout, TILE, 1),
            .query_norm = take_reals(layout, tiles_in(p->T), 1),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t flash_backward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
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
    real key_norm;        /* of the current key tile */
    tile_pairs pairs;     /* of the current query and key tiles */
    decay_range range;    /* of their decays */
} position;

static int64_t rows_in(const srnn_problem *p, int64_t tile) {
    return p->T - tile * TILE < TILE ? p->T - tile * TILE : TILE;
}

/* Queries and numerator gradients of one head, from row `t` on, padded with zeros to whole tiles.
 */
static void load_head(const context *x, const workspace *w, const position *at, int64_t t) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t padded = tiles_in(p->T) * TILE;
    SR_ISA_REAL(sr_prologue_query_rows)
    (w->queries + t * ld.d, ld.d, &x->row_work, x->call, (sr_rows){at->b, at->h, t, p->T - t});
    clear_rows_from(w->queries, ld.d, p->T, padded);
    for (int64_t tile = t / TILE; tile < tiles_in(p->T); tile++)
        w->query_norm[tile] = largest_norm(w->queries + tile * TILE * ld.d, ld.d, TILE, p->D);
    const real *d_numerator =
        x->row_work.d_numerator + sr_row_index(p, p->H, at->b, at->h, 0) * p->Dv;
    for (int64_t i = t; i < p->T; i++)
        memcpy(w->d_numerator + i * ld.dv, d_numerator + i * p->Dv, (size_t)p->Dv * sizeof(real));
    clear_rows_from(w->d_numerator, ld.dv, p->T, padded);
}

static void load_keys(const context *x, const workspace *w, const position *at, int64_t tile) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t count = rows_in(p, tile);
    SR_ISA_REAL(sr_prologue_key_rows)
    (w->key_rows, ld.d, &x->row_work, x->call, (sr_rows){at->b, at->kv, tile * TILE, count});
    clear_rows_from(w->key_rows, ld.d, count, TILE);
    transpose_rows(w->keys, ld.tile, w->key_rows, ld.d, count, p->D, TILE);
    SR_ISA_REAL(sr_prologue_value_rows)
    (w->value_rows, ld.dv, &x->row_work, x->call, (sr_rows){at->b, at->kv, tile * TILE, count});
    clear_rows_from(w->value_rows, ld.dv, count, TILE);
    transpose_rows(w->values, ld.tile, w->value_rows, ld.dv, count, p->Dv, TILE);
}

/* Bound on |s| of the current key tile and query tile `own`. */
static real pair_bound(const context *x, const workspace *w, const position *at, int64_t own) {
    return sr_decay_may_rise(&x->call->plan->core.attention)
               ? (real)INFINITY
               : capped_bound(&x->rule, w->query_norm[own] * at->key_norm);
}

/* True if decay reduces all weights of the two tiles to zero, taking the subtracted maximum into
 * account. */
static bool is_hidden(const context *x, const workspace *w, const position *at, int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    const real *maximum =
        (const real *)x->call->saved.maximum + sr_row_index(p, p->H, at->b, at->h, own * TILE);
    real least = 0;
    for (int64_t r = 0; r < rows_in(p, own); r++)
        least = maximum[r] < least ? maximum[r] : least;
    return at->decay.rows && decay_hides(&x->rule, at->range, pair_bound(x, w, at, own) - least);
}

static void weigh_tile(const context *x, const workspace *w, const position *at, int64_t tile,
                       int64_t own, int64_t width) {
    const srnn_problem *p = &x->call->plan->core;
    tile_strides ld = tile_strides_of(p);
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

/* True if no GEMM of these tiles multiplies a non-finite number with the zero of a hidden pair. */
static bool pair_is_safe(const context *x, const workspace *w, const position *at, int64_t tile,
                         int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    const int64_t rows = rows_in(p, own), first = own * TILE, ld = row_stride(p->Dv);
    return !tile_hides_keys(&at->pairs, rows_in(p, tile)) ||
           (isfinite(w->query_norm[own]) && isfinite(at->key_norm) &&
            rows_are_finite(w->d_numerator + first * ld, ld, rows, p->Dv));
}

/* Key tile `tile` against query tile `own`: five GEMMs, each called separately so that the compiler
 * knows the orientation of its operands. */
static void tile_pair(const context *x, const workspace *w, const position *at, int64_t tile,
                      int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t rows = rows_in(p, own), padded = round_up(rows, ROWS), keys = rows_in(p, tile);
    int64_t width = tile_width(keys), key_blocks = round_up(keys, ROWS);
    int64_t D = round_up(p->D, COLUMNS), Dv = round_up(p->Dv, COLUMNS);
    const product_rows q = {w->queries + own * TILE * ld.d, ld.d}, k = {w->key_rows, ld.d};
    const product_rows dn = {w->d_numerator + own * TILE * ld.dv, ld.dv};
    const bool diagonal = tile == own && !x->call->plan->earlier.gap;
    const product_shape lower = diagonal ? PRODUCT_C_LOWER : PRODUCT_FULL;

    product((product_target){w->s, ld.tile, false}, (product_operand){q.data, ld.d, 1},
            (product_rows){w->keys, ld.tile}, (product_size){padded, width, p->D}, lower);
    product((product_target){w->d, ld.tile, false}, (product_operand){dn.data, ld.dv, 1},
            (product_rows){w->values, ld.tile}, (product_size){padded, width, p->Dv}, lower);
    weigh_tile(x, w, at, tile, own, width);

    const product_target d_values = {w->d_values + tile * TILE * ld.dv, ld.dv, true},
                         d_keys = {w->d_keys + tile * TILE * ld.d, ld.d, true},
                         d_queries = {at->d_queries + own * TILE * ld.d, ld.d, true};
    const product_operand weights = {w->s, 1, ld.tile}, d_of_keys = {w->d, 1, ld.tile},
                          d_of_queries = {w->d, ld.tile, 1};
    const product_size of_values = {key_blocks, Dv, rows}, of_keys = {key_blocks, D, rows},
                       of_queries = {padded, D, keys};
    if (pair_is_safe(x, w, at, tile, own)) {
        const product_shape A_upper = diagonal ? PRODUCT_A_UPPER : PRODUCT_FULL,
                            A_lower = diagonal ? PRODUCT_A_LOWER : PRODUCT_FULL;
        product(d_values, weights, dn, of_values, A_upper);
        product(d_keys, d_of_keys, q, of_keys, A_upper);
        product(d_queries, d_of_queries, k, of_queries, A_lower);
        return;
    }
    seen_keys seen[TILE];
    tile_seen_keys(seen, &at->pairs);
    product_seen(d_values, weights, dn, of_values, seen, SEEN_FROM_SUM);
    product_seen(d_keys, d_of_keys, q, of_keys, seen, SEEN_FROM_SUM);
    product_seen(d_queries, d_of_queries, k, of_queries, seen, SEEN_FROM_ROWS);
}

/* Writes the gradients of a group's keys and values, after every query head has contributed. */
static void write_keys(const context *x, const workspace *w, const position *at, int64_t tile) {
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t t = tile * TILE, count = rows_in(p, tile);
    load_keys(x, w, at, tile);
    SR_ISA_REAL(sr_prologue_key_rows_backward)
    (w->d_keys + t * ld.d, ld.d, &x->row_work, call, (sr_rows){at->b, at->kv, t, count});
    SR_ISA_REAL(sr_prologue_value_rows_backward)
    (w->d_values + t * ld.dv, w->value_rows, ld.dv, &x->row_work, call,
     (sr_rows){at->b, at->kv, t, count});
}

/* True if a query of tile `own` sees a key of `tile`: if any does, the first one does. */
static bool sees_tile(const position *at, int64_t own, int64_t tile, int64_t window) {
    return first_key(at->first[own * TILE], at->gap + own * TILE, window) < (tile + 1) * TILE;
}

/* C of the head whose numbers begin at `base`. */
static tile_sums decays_of(const context *x, int64_t base) {
    const sr_earlier_keys *earlier = &x->call->plan->earlier;
    const double *own = x->row_work.decay;
    if (!own)
        return (tile_sums){0};
    return (tile_sums){(earlier->query_decay ? earlier->query_decay : own) + base,
                       (earlier->key_decay ? earlier->key_decay : own) + base};
}

static void keys_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const workspace *w = &x->workers[worker];
    tile_strides ld = tile_strides_of(p);
    int64_t tiles = tiles_in(p->T), group = task % x->groups, head = task / x->groups;
    const srnn_plan *plan = x->call->plan;
    int64_t from = group_start(plan, group, x->groups);
    int64_t past = group_start(plan, group + 1, x->groups);
    const int64_t window = p->attention.window;
    int heads = p->H / p->Hkv;
    position at = {.b = head / p->Hkv, .kv = (int)(head % p->Hkv)};
    at.gap = plan->earlier.gap;
    at.first = (at.gap ? plan->earlier.first : plan->first) + at.b * p->T;
    const int64_t begin = at.gap ? 0 : from; /* the first query tile that sees a key tile */
    at.decay = decays_of(x, sr_row_index(p, p->Hkv, at.b, at.kv, 0));
    memset(w->d_keys + from * TILE * ld.d, 0, (size_t)((past - from) * TILE * ld.d) * sizeof(real));
    memset(w->d_values + from * TILE * ld.dv, 0,
           (size_t)((past - from) * TILE * ld.dv) * sizeof(real));
    if (x->d_decay) {
        at.d_decay = x->d_decay + (group * p->B * p->Hkv + head) * 2 * tiles * TILE;
        at.d_key_decay = at.gap ? at.d_decay + tiles * TILE : at.d_decay;
        memset(at.d_decay, 0, (size_t)(2 * tiles * TILE) * sizeof(double));
    }
    for (at.h = at.kv * heads; at.h < (at.kv + 1) * heads; at.h++) {
        at.d_queries = x->d_queries + ((group * p->B + at.b) * p->H + at.h) * tiles * TILE * ld.d;
        memset(at.d_queries + begin * TILE * ld.d, 0,
               (size_t)((tiles - begin) * TILE * ld.d) * sizeof(real));
        load_head(x, w, &at, begin * TILE);
        for (int64_t tile = from; tile < past; tile++) {
            load_keys(x, w, &at, tile);
            at.key_norm = largest_norm(w->key_rows, ld.d, TILE, p->D);
            for (int64_t own = at.gap ? 0 : tile;
                 own < tiles && sees_tile(&at, own, tile, window) && !sr_cancelled(); own++) {
                at.pairs = (tile_pairs){at.first + own * TILE,
                                        at.gap + own * TILE,
                                        rows_in(p, own),
                                        tile,
                                        p->T,
                                        window};
                if (at.decay.rows)
                    at.sums = (tile_sums){at.decay.rows + own * TILE, at.decay.keys + tile * TILE};
                at.range = tile_decay(at.sums, &at.pairs);
                if (!is_hidden(x, w, &at, own))
                    tile_pair(x, w, &at, tile, own);
            }
        }
    }
    for (int64_t tile = from; tile < past; tile++)
        write_keys(x, w, &at, tile);
}

/* Gradients of C of a tile: the sum over the groups that saw it, in order. */
static void add_decay(const context *x, int64_t head, int64_t tile) {
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
static void queries_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    tile_strides ld = tile_strides_of(p);
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
static void sums_backward(context *x) {
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

srnn_status flash_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.call = call;
    x.rule = score_rule_of(&p->attention);
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    if (plan->decays.d_own) {
        memcpy(x.row_work.d_decay, plan->decays.d_own,
               (size_t)p->B * (size_t)p->Hkv * (size_t)p->T * sizeof(double));
        SR_ISA_REAL(sr_prologue_backward)(&x.row_work, call);
        return SRNN_OK;
    }
    sums_backward(&x);
    sr_parallel(keys_task, &x, x.groups * p->B * p->Hkv, p->threads);
    sr_parallel(queries_task, &x, tiles_in(p->T) * p->B * p->H, p->threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.row_work, call);
    return SRNN_OK;
}
