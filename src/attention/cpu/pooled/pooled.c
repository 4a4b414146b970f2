/* pooled.c: pooled keys in tiles, forward and backward; never a T x T matrix.
 *
 * A row sees the last token of each earlier chunk of its document, and itself. A task is one kv
 * head of one document: it packs the last tokens of the chunks in tiles and runs tiles of queries
 * against them, after the pair of each row with itself. */
#include "attention/cpu/pooled/pooled.h"

#include "attention/cpu/shared/tiles.h"
#include "base/cancel.h"
#include "base/threads.h"

typedef struct workspace {
    tile_workspace tile;
    real *own_keys, *own_values; /* (TILE, stride of D), (.., of Dv): of the tile's tokens */
    real *keys;                  /* (tiles of chunks, D, stride of TILE): transposed */
    real *key_rows;              /* (chunks rounded up, stride of D) */
    real *values;                /* (chunks rounded up, stride of Dv) */
    /* Backward only: */
    real *value_columns;         /* (tiles of chunks, Dv, stride of TILE): transposed values */
    real *d;                     /* (TILE, stride of TILE) */
    real *d_numerator, *d_query; /* (TILE, stride of Dv), (.., of D) */
    real *d_seen_k, *d_seen_v;   /* (chunks rounded up, stride of D), (.., of Dv) */
    real *d_keys, *d_values;     /* (T, stride of D), (.., of Dv): of every token */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    workspace *workers; /* (threads) */
    score_rule rule;
    bool subtract; /* the row maximum may be subtracted */
} context;

static context place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const tile_strides ld = tile_strides_of(p);
    const int64_t tiles = tiles_in(p->T / p->attention.pool), back = backward ? 1 : 0;
    context x = {.rule = score_rule_of(&p->attention),
                 .subtract = sr_row_scale_invariant(&p->attention)};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, backward, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        const workspace w = {
            .tile = tile_workspace_place(p, layout),
            .own_keys = take_reals(layout, TILE, ld.d),
            .own_values = take_reals(layout, TILE, ld.dv),
            .keys = take_reals(layout, tiles * p->D, ld.tile),
            .key_rows = take_reals(layout, tiles * TILE, ld.d),
            .values = take_reals(layout, tiles * TILE, ld.dv),
            .value_columns = take_reals(layout, back * tiles * p->Dv, ld.tile),
            .d = take_reals(layout, back * TILE, ld.tile),
            .d_numerator = take_reals(layout, back * TILE, ld.dv),
            .d_query = take_reals(layout, back * TILE, ld.d),
            .d_seen_k = take_reals(layout, back * tiles * TILE, ld.d),
            .d_seen_v = take_reals(layout, back * tiles * TILE, ld.dv),
            .d_keys = take_reals(layout, back * p->T, ld.d),
            .d_values = take_reals(layout, back * p->T, ld.dv),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t pooled_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, true, &layout);
    return layout.used;
}

/* One query head and its kv head in one document, and a tile of its rows. */
typedef struct head {
    const context *x;
    const srnn_problem *p; /* of the core */
    const workspace *w;
    const sr_document_range *document;
    tile_strides ld;
    int h, kv;
    int64_t seen;     /* number of chunks whose last token some row sees */
    real seen_norm;   /* their largest |key| */
    int64_t t, count; /* first row of the tile, relative to the document's start, and its number of
                       * rows */
    real bound;       /* on the tile's logits; infinity or NaN if unknown */
} head;

static head head_of(const context *x, const workspace *w, int64_t task) {
    const srnn_problem *p = &x->call->plan->core;
    const sr_document_range *document = &x->call->plan->documents[task / p->Hkv];
    return (head){.x = x,
                  .p = p,
                  .w = w,
                  .document = document,
                  .ld = tile_strides_of(p),
                  .kv = (int)(task % p->Hkv),
                  .seen = (document->length - 1) / p->attention.pool};
}

static int64_t keys_in(const head *a, int64_t tile) {
    return a->seen - tile * TILE < TILE ? a->seen - tile * TILE : TILE;
}

/* Packs the keys and values that rows see besides their own. */
static void load_seen(head *a) {
    const workspace *w = a->w;
    const tile_strides ld = a->ld;
    const int64_t chunk = a->p->attention.pool;
    for (int64_t n = 0; n < a->seen; n++) {
        const sr_rows last = {a->document->b, a->kv, a->document->start + (n + 1) * chunk - 1, 1};
        SR_ISA_REAL(sr_prologue_key_rows)
        (w->key_rows + n * ld.d, ld.d, &a->x->row_work, a->x->call, last);
        SR_ISA_REAL(sr_prologue_value_rows)
        (w->values + n * ld.dv, ld.dv, &a->x->row_work, a->x->call, last);
    }
    const int64_t padded = tiles_in(a->seen) * TILE;
    clear_rows_from(w->key_rows, ld.d, a->seen, padded);
    clear_rows_from(w->values, ld.dv, a->seen, padded);
    for (int64_t tile = 0; tile < tiles_in(a->seen); tile++)
        transpose_rows(w->keys + tile * a->p->D * ld.tile, ld.tile,
                       w->key_rows + tile * TILE * ld.d, ld.d, keys_in(a, tile), a->p->D, TILE);
    a->seen_norm = largest_norm(w->key_rows, ld.d, a->seen, a->p->D);
}

/* Loads the tile at row t: its queries, keys and values. */
static void load_tile(head *a, int64_t t) {
    const workspace *w = a->w;
    const tile_strides ld = a->ld;
    a->t = t;
    a->count = a->document->length - t < TILE ? a->document->length - t : TILE;
    sr_rows rows = {a->document->b, a->h, a->document->start + t, a->count};
    SR_ISA_REAL(sr_prologue_query_rows)(w->tile.queries, ld.d, &a->x->row_work, a->x->call, rows);
    clear_rows_from(w->tile.queries, ld.d, a->count, TILE);
    rows.h = a->kv;
    SR_ISA_REAL(sr_prologue_key_rows)(w->own_keys, ld.d, &a->x->row_work, a->x->call, rows);
    SR_ISA_REAL(sr_prologue_value_rows)(w->own_values, ld.dv, &a->x->row_work, a->x->call, rows);
    const real own = largest_norm(w->own_keys, ld.d, a->count, a->p->D);
    a->bound = largest_norm(w->tile.queries, ld.d, a->count, a->p->D) *
               larger_or_nan(own, a->seen ? a->seen_norm : 0);
}

/* Number of keys of a tile that row r sees. */
static int seen_by(const head *a, int64_t r, int64_t tile) {
    const int64_t high = (a->t + r) / a->p->attention.pool - tile * TILE, keys = keys_in(a, tile);
    return high < 0 ? 0 : high < keys ? (int)high : (int)keys;
}

/* Number of key tiles that some row of the query tile sees. */
static int64_t tiles_seen(const head *a) {
    return tiles_in((a->t + a->count - 1) / a->p->attention.pool);
}

/* seen (TILE): the same for all rows; returns true if some row does not see all keys. */
static bool tile_seen(const head *a, seen_keys *seen, int64_t tile) {
    for (int64_t r = 0; r < TILE; r++)
        seen[r] = (seen_keys){0, r < a->count ? seen_by(a, r, tile) : 0};
    return seen[0].high < keys_in(a, tile) || a->count < TILE;
}

static void logits_of(const head *a, int64_t tile) {
    product((product_target){a->w->tile.s, a->ld.tile, false},
            (product_operand){a->w->tile.queries, a->ld.d, 1},
            (product_rows){a->w->keys + tile * a->p->D * a->ld.tile, a->ld.tile},
            (product_size){round_up(a->count, ROWS), tile_width(keys_in(a, tile)), a->p->D},
            PRODUCT_FULL);
}

static score_row row_of(const head *a, int64_t r, int64_t tile) {
    return (score_row){.s = a->w->tile.s + r * a->ld.tile,
                       .high = seen_by(a, r, tile),
                       .width = (int)tile_width(keys_in(a, tile)),
                       .maximum = a->w->tile.maximum[r],
                       .bound = a->bound};
}

/* The logit of row r with itself, as a row of one column. */
static score_row own_row(const head *a, real *s, int64_t r) {
    for (int n = 0; n < COLUMNS; n++)
        s[n] = 0;
    s[0] = (real)row_dot(a->w->tile.queries + r * a->ld.d, a->w->own_keys + r * a->ld.d, a->p->D);
    return (score_row){
        .s = s, .high = 1, .width = COLUMNS, .maximum = a->w->tile.maximum[r], .bound = a->bound};
}

/* ---- forward ---- */

/* A row of logits to weights, with the running maximum raised first if requested. */
static void weigh_row(const head *a, score_row *row, int64_t r, bool scaled) {
    tile_workspace w = a->w->tile;
    const bool sums = sr_needs_row_sum(&a->p->attention) || sr_floor_follows_rows(&a->p->attention);
    if (scaled && row->high)
        raise_maximum(&w, row, &a->x->rule, r, a->ld.dv);
    row_weights(row, &a->x->rule, sums ? &w.row_sums[r] : NULL);
}

static void see_themselves(const head *a, bool scaled) {
    const tile_workspace *w = &a->w->tile;
    real s[COLUMNS] __attribute__((aligned(64)));
    for (int64_t r = 0; r < a->count; r++) {
        score_row row = own_row(a, s, r);
        weigh_row(a, &row, r, scaled);
        for (int64_t d = 0; d < a->p->Dv; d++)
            w->numerator[r * a->ld.dv + d] = s[0] * a->w->own_values[r * a->ld.dv + d];
    }
}

static void see_tile(const head *a, int64_t tile, bool scaled) {
    const tile_workspace *w = &a->w->tile;
    const int64_t keys = keys_in(a, tile), padded = round_up(a->count, ROWS);
    const product_rows values = {a->w->values + tile * TILE * a->ld.dv, a->ld.dv};
    seen_keys seen[TILE];
    const bool hides = tile_seen(a, seen, tile);
    logits_of(a, tile);
    for (int64_t r = 0; r < a->count; r++) {
        score_row row = row_of(a, r, tile);
        weigh_row(a, &row, r, scaled);
    }
    clear_rows_from(w->s, a->ld.tile, a->count, padded);
    const product_target numerator = {w->numerator, a->ld.dv, true};
    const product_size size = {padded, round_up(a->p->Dv, COLUMNS), keys};
    if (hides && !rows_are_finite(values.data, values.ld, keys, a->p->Dv))
        product_seen(numerator, (product_operand){w->s, a->ld.tile, 1}, values, size, seen,
                     SEEN_FROM_ROWS);
    else
        product(numerator, (product_operand){w->s, a->ld.tile, 1}, values, size, PRODUCT_FULL);
}

static void forward_tile(const head *a) {
    const tile_workspace *w = &a->w->tile;
    const bool scaled = a->x->subtract && !logits_are_tame(&a->x->rule, a->bound);
    const sr_rows rows = {a->document->b, a->h, a->document->start + a->t, a->count};
    memset(w->numerator, 0, (size_t)(TILE * a->ld.dv) * sizeof(real));
    memset(w->row_sums, 0, TILE * sizeof *w->row_sums);
    for (int64_t r = 0; r < TILE; r++)
        w->maximum[r] = scaled ? (real)-INFINITY : 0;
    see_themselves(a, scaled);
    for (int64_t tile = 0; tile < tiles_seen(a); tile++)
        see_tile(a, tile, scaled);
    for (int64_t r = 0; r < a->count; r++)
        w->row_sum[r] = vec_sum(w->row_sums[r]);
    const sr_row_results results = {w->numerator, a->ld.dv, w->row_sum, w->maximum, a->t + 1};
    SR_ISA_REAL(sr_epilogue_rows)(results, &a->x->row_work, a->x->call, rows);
    save_rows(a->x->call, rows, results);
}

static void forward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    head a = head_of(x, &x->workers[worker], task);
    const int group = a.p->H / a.p->Hkv;
    load_seen(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++)
        for (int64_t t = 0; t < a.document->length && !sr_cancelled(); t += TILE) {
            load_tile(&a, t);
            forward_tile(&a);
        }
}

srnn_status pooled_forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, false, &layout);
    x.call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    sr_parallel(forward_task, &x, plan->document_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_epilogue_finish)(&x.row_work, call);
    return SRNN_OK;
}

/* ---- backward ---- */

/* Loads the saved maxima and the gradients of the numerators of the tile's rows; clears the
 * gradients of their queries. */
static void load_gradients(const head *a) {
    const workspace *w = a->w;
    const int64_t first =
        sr_row_index(a->p, a->p->H, a->document->b, a->h, a->document->start + a->t);
    const int64_t Dv = a->p->Dv;
    memcpy(w->tile.maximum, (const real *)a->x->call->saved.maximum + first,
           (size_t)a->count * sizeof(real));
    for (int64_t r = 0; r < a->count; r++)
        memcpy(w->d_numerator + r * a->ld.dv, a->x->row_work.d_numerator + (first + r) * Dv,
               (size_t)Dv * sizeof(real));
    clear_rows_from(w->d_numerator, a->ld.dv, a->count, TILE);
    memset(w->d_query, 0, (size_t)(TILE * a->ld.d) * sizeof(real));
}

static const real *d_row_sums(const head *a) {
    return a->x->row_work.d_row_sum +
           sr_row_index(a->p, a->p->H, a->document->b, a->h, a->document->start + a->t);
}

static void see_themselves_backward(const head *a) {
    const workspace *w = a->w;
    const tile_strides ld = a->ld;
    real s[COLUMNS] __attribute__((aligned(64))), d[COLUMNS] __attribute__((aligned(64))) = {0};
    for (int64_t r = 0; r < a->count; r++) {
        const real *d_numerator = w->d_numerator + r * ld.dv, *query = w->tile.queries + r * ld.d;
        real *d_key = w->d_keys + (a->t + r) * ld.d, *d_value = w->d_values + (a->t + r) * ld.dv;
        const score_row row = own_row(a, s, r);
        d[0] = (real)row_dot(d_numerator, w->own_values + r * ld.dv, a->p->Dv);
        row_weights_backward(&row, &a->x->rule, d, d_row_sums(a)[r]);
        for (int64_t n = 0; n < a->p->D; n++) {
            w->d_query[r * ld.d + n] += d[0] * w->own_keys[r * ld.d + n];
            d_key[n] += d[0] * query[n];
        }
        for (int64_t n = 0; n < a->p->Dv; n++)
            d_value[n] += s[0] * d_numerator[n];
    }
}

/* A GEMM over the visible pairs, or over all pairs (seen NULL) if hidden ones contribute zeros.
 * Takes the parameters of both product functions. */
static void add_product(product_target c, product_operand left, product_rows right,
                        product_size size, const seen_keys *seen, seen_from from) {
    if (seen)
        product_seen(c, left, right, size, seen, from);
    else
        product(c, left, right, size, PRODUCT_FULL);
}

static void see_tile_backward(const head *a, int64_t tile) {
    const workspace *w = a->w;
    const tile_strides ld = a->ld;
    const int64_t keys = keys_in(a, tile), padded = round_up(a->count, ROWS);
    const int64_t key_blocks = round_up(keys, ROWS), at = tile * TILE;
    const int64_t D = round_up(a->p->D, COLUMNS), Dv = round_up(a->p->Dv, COLUMNS);
    const product_rows queries = {w->tile.queries, ld.d}, d_numerator = {w->d_numerator, ld.dv};
    logits_of(a, tile);
    product((product_target){w->d, ld.tile, false}, (product_operand){w->d_numerator, ld.dv, 1},
            (product_rows){w->value_columns + tile * a->p->Dv * ld.tile, ld.tile},
            (product_size){padded, tile_width(keys), a->p->Dv}, PRODUCT_FULL);
    for (int64_t r = 0; r < a->count; r++) {
        const score_row row = row_of(a, r, tile);
        row_weights_backward(&row, &a->x->rule, w->d + r * ld.tile, d_row_sums(a)[r]);
    }
    clear_rows_from(w->tile.s, ld.tile, a->count, padded);
    clear_rows_from(w->d, ld.tile, a->count, padded);
    seen_keys ranges[TILE];
    const bool harmless =
        !tile_seen(a, ranges, tile) ||
        (isfinite(a->bound) && rows_are_finite(w->d_numerator, ld.dv, a->count, a->p->Dv));
    const seen_keys *seen = harmless ? NULL : ranges;
    add_product((product_target){w->d_seen_v + at * ld.dv, ld.dv, true},
                (product_operand){w->tile.s, 1, ld.tile}, d_numerator,
                (product_size){key_blocks, Dv, a->count}, seen, SEEN_FROM_SUM);
    add_product((product_target){w->d_seen_k + at * ld.d, ld.d, true},
                (product_operand){w->d, 1, ld.tile}, queries,
                (product_size){key_blocks, D, a->count}, seen, SEEN_FROM_SUM);
    add_product((product_target){w->d_query, ld.d, true}, (product_operand){w->d, ld.tile, 1},
                (product_rows){w->key_rows + at * ld.d, ld.d}, (product_size){padded, D, keys},
                seen, SEEN_FROM_ROWS);
}

static void clear_gradients(const head *a) {
    const workspace *w = a->w;
    const size_t T = (size_t)a->document->length, seen = (size_t)(tiles_in(a->seen) * TILE);
    memset(w->d_keys, 0, T * (size_t)a->ld.d * sizeof(real));
    memset(w->d_values, 0, T * (size_t)a->ld.dv * sizeof(real));
    memset(w->d_seen_k, 0, seen * (size_t)a->ld.d * sizeof(real));
    memset(w->d_seen_v, 0, seen * (size_t)a->ld.dv * sizeof(real));
}

/* Writes the gradients of keys and values, after every query head has contributed. */
static void write_keys(const head *a) {
    const workspace *w = a->w;
    const tile_strides ld = a->ld;
    for (int64_t n = 0; n < a->seen; n++) {
        const int64_t last = (n + 1) * a->p->attention.pool - 1;
        for (int64_t d = 0; d < a->p->D; d++)
            w->d_keys[last * ld.d + d] += w->d_seen_k[n * ld.d + d];
        for (int64_t d = 0; d < a->p->Dv; d++)
            w->d_values[last * ld.dv + d] += w->d_seen_v[n * ld.dv + d];
    }
    for (int64_t t = 0; t < a->document->length; t += TILE) {
        const int64_t count = a->document->length - t < TILE ? a->document->length - t : TILE;
        const sr_rows rows = {a->document->b, a->kv, a->document->start + t, count};
        SR_ISA_REAL(sr_prologue_key_rows_backward)
        (w->d_keys + t * ld.d, ld.d, &a->x->row_work, a->x->call, rows);
        SR_ISA_REAL(sr_prologue_value_rows)
        (w->own_values, ld.dv, &a->x->row_work, a->x->call, rows);
        SR_ISA_REAL(sr_prologue_value_rows_backward)
        (w->d_values + t * ld.dv, w->own_values, ld.dv, &a->x->row_work, a->x->call, rows);
    }
}

static void backward_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    head a = head_of(x, &x->workers[worker], task);
    const workspace *w = a.w;
    const int group = a.p->H / a.p->Hkv;
    load_seen(&a);
    for (int64_t tile = 0; tile < tiles_in(a.seen); tile++)
        transpose_rows(w->value_columns + tile * a.p->Dv * a.ld.tile, a.ld.tile,
                       w->values + tile * TILE * a.ld.dv, a.ld.dv, keys_in(&a, tile), a.p->Dv,
                       TILE);
    clear_gradients(&a);
    for (a.h = a.kv * group; a.h < (a.kv + 1) * group; a.h++)
        for (int64_t t = 0; t < a.document->length && !sr_cancelled(); t += TILE) {
            load_tile(&a, t);
            load_gradients(&a);
            see_themselves_backward(&a);
            for (int64_t tile = 0; tile < tiles_seen(&a); tile++)
                see_tile_backward(&a, tile);
            SR_ISA_REAL(sr_prologue_query_rows_backward)
            (w->d_query, a.ld.d, &x->row_work, x->call,
             (sr_rows){a.document->b, a.h, a.document->start + t, a.count});
        }
    write_keys(&a);
}

srnn_status pooled_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, true, &layout);
    x.call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    SR_ISA_REAL(sr_epilogue_backward)(&x.row_work, call);
    sr_parallel(backward_task, &x, plan->document_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.row_work, call);
    return SRNN_OK;
}
