/* forward.c: the parallel form in tiles of keys (FlashAttention on the CPU), forward; never a T x T
 * matrix.
 *
 * A task is one tile of query rows of one head. It walks the key tiles its rows can see: logits by
 * one GEMM, weights row by row in cache with an online softmax (running maximum, rescaled in
 * raise_maximum), numerators by a second GEMM. */
#include "attention/cpu/flash/flash.h"
#include "attention/cpu/flash/queries.h"

/* Lays out everything except the keys and values. */
static query_pass place_rows(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    query_pass x = {.rule = score_rule_of(&p->attention),
                    .subtract = sr_row_scale_invariant(&p->attention),
                    .sums = sr_needs_row_sum(&p->attention) || sr_floor_follows_rows(&p->attention),
                    .ld = tile_strides_of(p)};
    x.key_numbers = p->D * x.ld.tile;
    x.value_numbers = TILE * x.ld.dv;
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, false, layout);
    x.heads = sr_layout_take(layout, (size_t)p->B * (size_t)p->Hkv, sizeof *x.heads);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        tile_workspace workspace = tile_workspace_place(p, layout);
        if (x.workers)
            x.workers[n] = workspace;
    }
    return x;
}

static query_pass place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    query_pass x = place_rows(plan, layout);
    const double *key_decay = plan->earlier.key_decay; /* only read */
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv; n++) {
        packed_head head = packed_head_place(p, p->T, layout);
        if (x.row_work.decay)
            head.decay = (key_decay ? (double *)(uintptr_t)key_decay : x.row_work.decay) + n * p->T;
        if (x.heads)
            x.heads[n] = head;
    }
    return x;
}

size_t flash_forward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

static void pack_task(void *untyped, int64_t task, int worker) {
    const query_pass *x = untyped;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    int64_t tiles = tiles_in(p->T), tile = task % tiles, head = task / tiles, t = tile * TILE;
    int64_t count = p->T - t < TILE ? p->T - t : TILE;
    const packed_head *packed = &x->heads[head];
    real *rows = x->workers[worker].queries;
    SR_ISA_REAL(sr_prologue_key_rows)
    (rows, ld.d, &x->row_work, x->call, (sr_rows){head / p->Hkv, (int)(head % p->Hkv), t, count});
    transpose_rows(packed->keys + tile * p->D * ld.tile, ld.tile, rows, ld.d, count, p->D, TILE);
    packed->key_norm[tile] = largest_norm(rows, ld.d, count, p->D);
    real *values = packed->values + t * ld.dv;
    memset(values, 0, (size_t)(TILE * ld.dv) * sizeof(real));
    SR_ISA_REAL(sr_prologue_value_rows)
    (values, ld.dv, &x->row_work, x->call,
     (sr_rows){head / p->Hkv, (int)(head % p->Hkv), t, count});
}

/* Adds the tile's values by the weights of a strip. */
static void add_values(const query_pass *x, const tile_workspace *w, const query_tile *q,
                       query_strip strip, int64_t tile, int64_t keys) {
    const int64_t Dv = x->call->plan->core.Dv;
    const product_target numerator = {w->numerator + strip.first * x->ld.dv, x->ld.dv, true};
    const product_operand weights = {w->s, x->ld.tile, 1};
    const product_rows values = {q->head->values + packed_tile(q->head, tile) * x->value_numbers,
                                 x->ld.dv};
    const product_size size = {strip.past - strip.first, round_up(Dv, COLUMNS), keys};
    if (tile_hides_keys(&q->pairs, keys) && !rows_are_finite(values.data, values.ld, keys, Dv)) {
        seen_keys seen[TILE];
        tile_seen_keys(seen, &q->pairs);
        product_seen(numerator, weights, values, size, seen, SEEN_FROM_ROWS);
    } else {
        product(numerator, weights, values, size,
                tile * TILE == q->at ? PRODUCT_A_LOWER : PRODUCT_FULL);
    }
}

/* Logits of a strip against a tile of keys. */
static void multiply_keys(const query_pass *x, const tile_workspace *w, const query_tile *q,
                          query_strip strip, int64_t tile, int64_t keys) {
    const tile_strides ld = x->ld;
    const real *packed = q->head->keys + packed_tile(q->head, tile) * x->key_numbers;
    product((product_target){w->s, ld.tile, false},
            (product_operand){w->queries + strip.first * ld.d, ld.d, 1},
            (product_rows){packed, ld.tile},
            (product_size){strip.past - strip.first, tile_width(keys), x->call->plan->core.D},
            tile * TILE == q->at ? PRODUCT_C_LOWER : PRODUCT_FULL);
}

/* Sums over the keys so far, which earlier ones are added to. Rows whose maximum was subtracted
 * then continue with it. */
static void load_rows(const tile_workspace *w, query_tile *q, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->core;
    const int64_t at = sr_row_index(p, p->H, q->b, q->h, q->t), ld = row_stride(p->Dv);
    for (int64_t r = 0; r < q->rows; r++) {
        memcpy(w->numerator + r * ld, (const real *)call->saved.numerator + (at + r) * p->Dv,
               (size_t)p->Dv * sizeof(real));
        memcpy(&w->row_sums[r], (const real *)call->saved.row_sum + at + r, sizeof(real));
        w->maximum[r] = ((const real *)call->saved.maximum)[at + r];
        q->scaled = q->scaled || w->maximum[r] != 0;
    }
}

static void rows_task(void *untyped, int64_t task, int worker) {
    const query_pass *x = untyped;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_workspace *w = &x->workers[worker];
    query_tile q = query_tile_of(x, task, ROWS);
    query_tile_begin(x, w, &q);
    if (plan->earlier.gap && !plan->earlier.visitors)
        load_rows(w, &q, x->call);
    for (int64_t tile = q.from; tile < q.past; tile++) {
        const int64_t keys = query_tile_meets(x, w, &q, tile);
        for (query_strip strip = {0, 0}; keys && strip.past < q.padded;) {
            strip = query_strip_of(&q, keys, strip.past, TILE);
            multiply_keys(x, w, &q, strip, tile, keys);
            weigh_strip(x, w, &q, strip, tile, keys);
            add_values(x, w, &q, strip, tile, keys);
        }
    }
    for (int64_t r = 0; r < q.rows; r++)
        w->row_sum[r] = vec_sum(w->row_sums[r]);
    /* A maximum of 0 would hide the sums that these are added to. */
    for (int64_t r = 0; plan->earlier.visitors && x->subtract && r < q.rows; r++)
        if (first_key(q.first[r], q.at + r, p->attention.window) >= q.keys_seen)
            w->maximum[r] = (real)-INFINITY;
    write_outputs(x, w, &q);
}

srnn_status flash_forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    query_pass x = place(plan, &layout);
    x.call = call;
    x.position = plan->earlier.gap;
    x.first = plan->earlier.gap ? plan->earlier.first : plan->first;
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    int64_t tiles = tiles_in(p->T);
    int workers = workers_for(p, p->T);
    sr_parallel(pack_task, &x, tiles * p->B * p->Hkv, workers);
    sr_parallel(rows_task, &x, tiles * p->B * p->H, workers);
    if (!plan->earlier.visitors)
        SR_ISA_REAL(sr_epilogue_finish)(&x.row_work, call);
    return SRNN_OK;
}

/* ---- the same against a KV cache ---- */

size_t flash_feed_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place_rows(plan, &layout);
    return layout.used;
}

/* Appends the keys and values of the call to the cache, tile by tile. */
static void keep_task(void *untyped, int64_t task, int worker) {
    const query_pass *x = untyped;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    const packed_head *head = &x->heads[task];
    real *rows = x->workers[worker].queries;
    int64_t b = task / p->Hkv;
    int kv = (int)(task % p->Hkv);
    for (int64_t t = 0, count; t < p->T; t += count) {
        const int64_t left = TILE - (x->position + t) % TILE;
        const int64_t place = packed_row(head, x->position + t);
        count = p->T - t < left ? p->T - t : left;
        const sr_rows piece = {b, kv, t, count};
        SR_ISA_REAL(sr_prologue_key_rows)(rows, ld.d, &x->row_work, x->call, piece);
        packed_head_keep_keys(head, p, rows, ld.d, x->position + t, count);
        SR_ISA_REAL(sr_prologue_value_rows)
        (head->values + place * ld.dv, ld.dv, &x->row_work, x->call, piece);
        if (head->decay)
            memcpy(head->decay + place, x->row_work.decay + task * p->T + t,
                   (size_t)count * sizeof *head->decay);
    }
}

srnn_status flash_feed(const sr_attention_call *call, char *cache, int64_t capacity,
                       sr_carry *carry) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true}, memory = {.base = cache};
    query_pass x = place_rows(plan, &layout);
    x.call = call;
    x.first = plan->first;
    x.position = *carry->position;
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv; n++)
        x.heads[n] = kv_cache_head_place(p, capacity, &memory);
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, carry);
    int workers = workers_for(p, x.position + p->T);
    sr_parallel(keep_task, &x, (int64_t)p->B * p->Hkv, workers);
    sr_parallel(rows_task, &x, tiles_in(p->T) * p->B * p->H, workers);
    SR_ISA_REAL(sr_epilogue_finish)(&x.row_work, call);
    *carry->position += p->T;
    return SRNN_OK;
}
