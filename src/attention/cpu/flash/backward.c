/* backward.c: the parallel form in tiles, backward; weights are recomputed.
 *
 * A task is a group of key tiles of one kv head. For each key tile it walks the query tiles that
 * see it: two GEMMs compute logits and gradients of weights, three more add to the gradients of
 * values, keys and queries. The number of groups per head depends on the problem alone, and each
 * group has its own sum for the queries; these are added in order afterwards, so that bits do not
 * depend on the number of threads. */
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/flash/keys.h"

typedef struct workspace {
    real *queries;     /* (T rounded up, stride of D) */
    real *d_numerator; /* (T rounded up, stride of Dv) */
    real *d_keys;      /* (T rounded up, stride of D) */
    real *d_values;    /* (T rounded up, stride of Dv) */
    real *key_rows;    /* (TILE, stride of D) */
    real *value_rows;  /* (TILE, stride of Dv) */
    real *keys;        /* (D, stride of TILE): transposed */
    real *values;      /* (Dv, stride of TILE): transposed */
    pair_workspace tile;
} workspace;

typedef struct context {
    key_pass pass;
    workspace *workers;
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t T = tiles_in(p->T) * TILE;
    context x = {.pass = key_pass_place(plan, ld, layout)};
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
            .tile = pair_workspace_place(p, layout),
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

/* Queries and numerator gradients of one head, from row `t` on, padded with zeros to whole tiles.
 */
static void load_head(const key_pass *x, const workspace *w, const position *at, int64_t t) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t padded = tiles_in(p->T) * TILE;
    SR_ISA_REAL(sr_prologue_query_rows)
    (w->queries + t * ld.d, ld.d, &x->row_work, x->call, (sr_rows){at->b, at->h, t, p->T - t});
    clear_rows_from(w->queries, ld.d, p->T, padded);
    for (int64_t tile = t / TILE; tile < tiles_in(p->T); tile++)
        w->tile.query_norm[tile] = largest_norm(w->queries + tile * TILE * ld.d, ld.d, TILE, p->D);
    const real *d_numerator =
        x->row_work.d_numerator + sr_row_index(p, p->H, at->b, at->h, 0) * p->Dv;
    for (int64_t i = t; i < p->T; i++)
        memcpy(w->d_numerator + i * ld.dv, d_numerator + i * p->Dv, (size_t)p->Dv * sizeof(real));
    clear_rows_from(w->d_numerator, ld.dv, p->T, padded);
}

static void load_keys(const key_pass *x, const workspace *w, const position *at, int64_t tile) {
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

/* True if no GEMM of these tiles multiplies a non-finite number with the zero of a hidden pair. */
static bool pair_is_safe(const key_pass *x, const workspace *w, const position *at, int64_t tile,
                         int64_t own) {
    const srnn_problem *p = &x->call->plan->core;
    const int64_t rows = rows_in(p, own), first = own * TILE, ld = row_stride(p->Dv);
    return !tile_hides_keys(&at->pairs, rows_in(p, tile)) ||
           (isfinite(w->tile.query_norm[own]) && isfinite(at->key_norm) &&
            rows_are_finite(w->d_numerator + first * ld, ld, rows, p->Dv));
}

/* Key tile `tile` against query tile `own`: five GEMMs, each called separately so that the compiler
 * knows the orientation of its operands. */
static void tile_pair(const key_pass *x, const workspace *w, const position *at, int64_t tile,
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

    product((product_target){w->tile.s, ld.tile, false}, (product_operand){q.data, ld.d, 1},
            (product_rows){w->keys, ld.tile}, (product_size){padded, width, p->D}, lower);
    product((product_target){w->tile.d, ld.tile, false}, (product_operand){dn.data, ld.dv, 1},
            (product_rows){w->values, ld.tile}, (product_size){padded, width, p->Dv}, lower);
    weigh_tile(x, &w->tile, at, tile, own, width);

    const product_target d_values = {w->d_values + tile * TILE * ld.dv, ld.dv, true},
                         d_keys = {w->d_keys + tile * TILE * ld.d, ld.d, true},
                         d_queries = {at->d_queries + own * TILE * ld.d, ld.d, true};
    const product_operand weights = {w->tile.s, 1, ld.tile}, d_of_keys = {w->tile.d, 1, ld.tile},
                          d_of_queries = {w->tile.d, ld.tile, 1};
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
static void write_keys(const key_pass *x, const workspace *w, const position *at, int64_t tile) {
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

static void keys_task(void *untyped, int64_t task, int worker) {
    const context *job = untyped;
    const key_pass *x = &job->pass;
    const srnn_problem *p = &x->call->plan->core;
    const workspace *w = &job->workers[worker];
    const tile_strides ld = x->ld;
    const int heads = p->H / p->Hkv;
    position at = position_of(x, task);
    const int64_t from = at.from * TILE, rows = (at.past - at.from) * TILE;
    memset(w->d_keys + from * ld.d, 0, (size_t)(rows * ld.d) * sizeof(real));
    memset(w->d_values + from * ld.dv, 0, (size_t)(rows * ld.dv) * sizeof(real));
    for (int h = at.kv * heads; h < (at.kv + 1) * heads; h++) {
        position_next_head(x, &at, task, h);
        load_head(x, w, &at, at.begin * TILE);
        for (int64_t tile = at.from; tile < at.past; tile++) {
            load_keys(x, w, &at, tile);
            at.key_norm = largest_norm(w->key_rows, ld.d, TILE, p->D);
            for (int64_t own = at.gap ? 0 : tile; sees_tile(x, &at, own, tile); own++)
                if (position_meets(x, &w->tile, &at, tile, own))
                    tile_pair(x, w, &at, tile, own);
        }
    }
    for (int64_t tile = at.from; tile < at.past; tile++)
        write_keys(x, w, &at, tile);
}

srnn_status flash_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context job = place(plan, &layout);
    key_pass *const x = &job.pass;
    x->call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x->row_work, plan, call->in, NULL);
    if (plan->decays.d_own) {
        memcpy(x->row_work.d_decay, plan->decays.d_own,
               (size_t)p->B * (size_t)p->Hkv * (size_t)p->T * sizeof(double));
        SR_ISA_REAL(sr_prologue_backward)(&x->row_work, call);
        return SRNN_OK;
    }
    sums_backward(x);
    sr_parallel(keys_task, &job, x->groups * p->B * p->Hkv, p->threads);
    sr_parallel(queries_task, x, tiles_in(p->T) * p->B * p->H, p->threads);
    SR_ISA_REAL(sr_prologue_backward)(&x->row_work, call);
    return SRNN_OK;
}
