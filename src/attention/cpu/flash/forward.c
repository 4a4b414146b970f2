/* forward.c: the parallel form in tiles of keys (FlashAttention on the CPU), forward; never a T x T
 * matrix.
 *
 * A task is one tile of query rows of one head. It walks the key tiles its rows can see: logits by
 * one GEMM, weights row by row in cache with an online softmax (running maximum, rescaled in
 * raise_maximum), numerators by a second GEMM. */
#include "attention/cpu/flash/flash.h"

#include "attention/cpu/shared/tiles.h"
#include "base/threads.h"

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    packed_head *heads;      /* (B, Hkv) */
    tile_workspace *workers; /* (threads) */
    score_rule rule;
    bool subtract;    /* the row maximum may be subtracted */
    int64_t position; /* tokens in the cache before those of the call, or from earlier keys on */
    const int32_t *first; /* (B, T): the first key that a query may see */
} context;

/* Lays out everything except the keys and values. */
static context place_rows(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    context x = {.rule = score_rule_of(&p->attention),
                 .subtract = sr_row_scale_invariant(&p->attention)};
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

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    context x = place_rows(plan, layout);
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
    const context *x = untyped;
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

/* The tile of query rows a task works on. */
typedef struct query_tile {
    int64_t b, t, rows, padded; /* first row, rows, rows rounded up to whole blocks */
    int64_t at;                 /* position of the first row among the keys */
    int h;
    const int32_t *first; /* of these rows: start of their documents in the call */
    tile_sums decay;      /* of these rows and of the current key tile */
    real bound;           /* on the logits; infinity or NaN if unknown */
    bool scaled;          /* row maxima are subtracted */
    tile_pairs pairs;     /* with the current key tile */
    decay_range range;    /* of their decays */
} query_tile;

/* Prefetches row r's share of the next key tile, so that it is in cache when the weights are
 * done. */
static void prefetch_share(const packed_head *head, int64_t tile, int64_t r, const srnn_problem *p,
                           tile_strides ld) {
    enum { CACHE_LINE = 64 };
    const int64_t place = packed_tile(head, tile);
    const char *keys = (const char *)(head->keys + place * p->D * ld.tile);
    const char *values = (const char *)(head->values + place * TILE * ld.dv);
    int64_t key_bytes = p->D * ld.tile * (int64_t)sizeof(real);
    int64_t value_bytes = TILE * ld.dv * (int64_t)sizeof(real);
    for (int64_t at = r * CACHE_LINE; at < key_bytes; at += TILE * CACHE_LINE)
        __builtin_prefetch(keys + at, 0, 2);
    for (int64_t at = r * CACHE_LINE; at < value_bytes; at += TILE * CACHE_LINE)
        __builtin_prefetch(values + at, 0, 2);
}

static void weigh_tile(const context *x, tile_workspace *w, const query_tile *q,
                       const packed_head *head, int64_t tile, int64_t keys) {
    const srnn_problem *p = &x->call->plan->core;
    tile_strides ld = tile_strides_of(p);
    tile_decays decays;
    tile_decays_set(&decays, w->decay, q->decay, &q->pairs);
    const bool sums = sr_needs_row_sum(&p->attention) || sr_floor_follows_rows(&p->attention);
    const bool scaled = q->scaled;
    const bool near = q->decay.rows && !x->rule.logit_decay && decay_is_near(q->range, q->bound);
    int width = (int)tile_width(keys);
    for (int64_t r = 0; r < q->rows; r++) {
        const seen_keys seen = query_sees(&q->pairs, r, keys);
        score_row row = {
            .s = w->s + r * ld.tile,
            .low = (int)seen.low,
            .high = (int)seen.high,
            .width = width,
            .bound = q->bound,
            .near = near,
        };
        if (row.low >= row.high) {
            row_clear_hidden(row.s, 0, 0, width);
            continue;
        }
        if (q->at + r >= tile * TILE + keys && q->pairs.past > tile * TILE + keys) /* more tiles */
            prefetch_share(head, tile + 1, r, p, ld);
        row_set_decay(&row, &decays, r);
        if (x->rule.logit_decay)
            row_decay_logits(&row, &x->rule, NULL);
        vec *const sum = sums ? &w->row_sums[r] : NULL;
        if (row_is_whole(&row) && row_is_plain_capped(&row, &x->rule)) {
            row_weights_plain_capped(row.s, row.width, row.bound, &x->rule, sum);
            continue;
        }
        if (x->rule.capped)
            row_cap_logits(&row, &x->rule, NULL);
        /* Online softmax: a row whose maximum rises in this tile has its row sum and numerator
         * rescaled. */
        if (scaled)
            raise_maximum(w, &row, &x->rule, r, ld.dv);
        row_weights(&row, &x->rule, sum);
    }
    clear_rows_from(w->s, ld.tile, q->rows, q->padded);
}

/* Adds the tile's values by their weights. */
static void add_values(const tile_workspace *w, const query_tile *q, const packed_head *head,
                       int64_t tile, int64_t keys, int64_t Dv) {
    const int64_t ld = row_stride(TILE), ld_values = row_stride(Dv);
    const product_target numerator = {w->numerator, ld_values, true};
    const product_operand weights = {w->s, ld, 1};
    const product_rows values = {head->values + packed_tile(head, tile) * TILE * ld_values,
                                 ld_values};
    const product_size size = {q->padded, round_up(Dv, COLUMNS), keys};
    if (tile_hides_keys(&q->pairs, keys) && !rows_are_finite(values.data, values.ld, keys, Dv)) {
        seen_keys seen[TILE];
        tile_seen_keys(seen, &q->pairs);
        product_seen(numerator, weights, values, size, seen, SEEN_FROM_ROWS);
    } else {
        product(numerator, weights, values, size,
                tile * TILE == q->at ? PRODUCT_A_LOWER : PRODUCT_FULL);
    }
}

/* A bound on the logits of these rows against these key tiles: |s| <= |q| |k|. */
static real logit_bound(const tile_workspace *w, const packed_head *head, const query_tile *q,
                        int64_t from, int64_t past, int D) {
    real norm = 0;
    for (int64_t tile = from; tile < past; tile++)
        norm = larger_or_nan(norm, head->key_norm[packed_tile(head, tile)]);
    return largest_norm(w->queries, row_stride(D), q->rows, D) * norm;
}

/* Outputs of finished rows, one call per run of rows that belong to one document. */
static void write_outputs(const context *x, const tile_workspace *w, const query_tile *q) {
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->core;
    tile_strides ld = tile_strides_of(p);
    const sr_earlier_keys *earlier = &call->plan->earlier;
    const int32_t *first = earlier->gap ? call->plan->first + q->b * p->T + q->t : q->first;
    const int64_t at = q->at - earlier->gap, written = earlier->visitors ? 0 : q->rows;
    for (int64_t r = 0, past; r < written; r = past) {
        for (past = r + 1; past < written && first[past] == first[r];)
            past++;
        SR_ISA_REAL(sr_epilogue_rows)
        ((sr_row_results){w->numerator + r * ld.dv, ld.dv, w->row_sum + r, w->maximum + r,
                          at + r - first[r] + 1},
         &x->row_work, call, (sr_rows){q->b, q->h, q->t + r, past - r});
    }
    save_rows(call, (sr_rows){q->b, q->h, q->t, q->rows},
              (sr_row_results){w->numerator, ld.dv, w->row_sum, w->maximum, 0});
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
    const context *x = untyped;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    tile_strides ld = tile_strides_of(p);
    tile_workspace *w = &x->workers[worker];
    /* Head by head, so that keys and values stay in cache, and long rows first, so that threads
     * finish together. */
    int64_t tiles = tiles_in(p->T), own = tiles - 1 - task % tiles, head = task / tiles;
    query_tile q = {.b = head / p->H, .h = (int)(head % p->H), .t = own * TILE};
    const packed_head *packed = &x->heads[q.b * p->Hkv + q.h / (p->H / p->Hkv)];
    q.at = x->position + q.t;
    q.rows = p->T - q.t < TILE ? p->T - q.t : TILE;
    q.padded = round_up(q.rows, ROWS);
    q.first = x->first + q.b * p->T + q.t;
    const double *const decay =
        plan->earlier.query_decay ? plan->earlier.query_decay : x->row_work.decay;
    if (packed->decay)
        q.decay.rows = decay + sr_row_index(p, p->Hkv, q.b, q.h / (p->H / p->Hkv), q.t);

    SR_ISA_REAL(sr_prologue_query_rows)
    (w->queries, ld.d, &x->row_work, x->call, (sr_rows){q.b, q.h, q.t, q.rows});
    clear_rows_from(w->queries, ld.d, q.rows, q.padded);
    memset(w->numerator, 0, (size_t)(q.padded * ld.dv) * sizeof(real));
    memset(w->row_sums, 0, TILE * sizeof *w->row_sums);
    const int64_t window = p->attention.window;
    int64_t keys_seen = plan->earlier.gap ? p->T : q.at + q.rows,
            from = first_key(q.first[0], q.at, window) / TILE, past = tiles_in(keys_seen);
    const real products = logit_bound(w, packed, &q, from, past, p->D);
    const bool may_rise = sr_decay_may_rise(&p->attention); /* from key to query */
    q.bound = may_rise ? (real)INFINITY : capped_bound(&x->rule, products);
    q.scaled = x->subtract && !logits_are_tame(&x->rule, q.bound);
    for (int64_t r = 0; r < TILE; r++)
        w->maximum[r] = q.scaled ? (real)-INFINITY : 0;
    if (plan->earlier.gap && !plan->earlier.visitors)
        load_rows(w, &q, x->call);

    for (int64_t tile = from; tile < past; tile++) {
        int64_t keys = keys_seen - tile * TILE < TILE ? keys_seen - tile * TILE : TILE;
        q.pairs = (tile_pairs){q.first, q.at, q.rows, tile, keys_seen, window};
        const int64_t place = packed_tile(packed, tile);
        if (packed->decay)
            q.decay.keys = packed->decay + place * TILE;
        q.range = tile_decay(q.decay, &q.pairs);
        if (packed->decay && !q.scaled && decay_hides(&x->rule, q.range, q.bound))
            continue;
        product((product_target){w->s, ld.tile, false}, (product_operand){w->queries, ld.d, 1},
                (product_rows){packed->keys + place * p->D * ld.tile, ld.tile},
                (product_size){q.padded, tile_width(keys), p->D},
                tile * TILE == q.at ? PRODUCT_C_LOWER : PRODUCT_FULL);
        weigh_tile(x, w, &q, packed, tile, keys);
        add_values(w, &q, packed, tile, keys, p->Dv);
    }
    for (int64_t r = 0; r < q.rows; r++)
        w->row_sum[r] = vec_sum(w->row_sums[r]);
    /* A maximum of 0 would hide the sums that these are added to. */
    for (int64_t r = 0; plan->earlier.visitors && x->subtract && r < q.rows; r++)
        if (first_key(q.first[r], q.at + r, window) >= keys_seen)
            w->maximum[r] = (real)-INFINITY;
    write_outputs(x, w, &q);
}

/* Number of threads worth waking for the call's queries against `keys` keys. */
static int workers_for(const srnn_problem *p, int64_t keys) {
    double pairs = (double)p->B * p->H * p->T * (double)sr_keys_seen(&p->attention, keys);
    return sr_workers_worth(pairs * (p->D + p->Dv), p->threads);
}

srnn_status flash_forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
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
    const context *x = untyped;
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
    context x = place_rows(plan, &layout);
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
