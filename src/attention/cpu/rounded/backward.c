/* backward.c: the flash kernel's backward with products of bf16 numbers.
 *
 * Tasks are those of flash (flash/keys.h). What products read is rounded: queries, keys, values and
 * gradients of numerators once, weights and gradients of logits once per pair of tiles; all sums
 * are float. Gradients of keys and values are summed transposed: both operands of their products
 * are then in the order in which they are made. */
#include "attention/cpu/rounded/rounded.h"

#include "attention/cpu/flash/keys.h"
#include "attention/cpu/rounded/pack.h"

typedef struct workspace {
    real *rows;                    /* (TILE, stride of D or Dv): of whatever is packed */
    real *transposed;              /* (width of D or Dv, stride of TILE): the same */
    real *d_keys;                  /* (tiles, width of D, stride of TILE): transposed */
    real *d_values;                /* (tiles, width of Dv, stride of TILE): transposed */
    real *value_rows;              /* (TILE, stride of Dv) */
    uint16_t *queries;             /* (T rounded up, width of D) */
    uint16_t *query_columns;       /* (tiles, width of D, TILE): transposed */
    uint16_t *d_numerator;         /* (T rounded up, width of Dv) */
    uint16_t *d_numerator_columns; /* (tiles, width of Dv, TILE): transposed */
    uint16_t *narrow;              /* (TILE, width of D or Dv): room for packing */
    uint16_t *d_logits;            /* (TILE, TILE) */
    uint32_t *keys;                /* (width of D / 2, TILE): pairs of columns */
    uint32_t *values;              /* (width of Dv / 2, TILE): pairs of columns */
    uint32_t *key_pairs;           /* (TILE / 2, width of D): pairs of rows */
    uint32_t *weight_pairs; /* (TILE / 2, TILE): pairs of rows of weights, then of gradients */
    pair_workspace tile;
} workspace;

typedef struct context {
    key_pass pass;
    padded_widths widths;
    real logit_factor;
    workspace *workers;
} context;

static uint16_t *take_narrow(sr_layout *layout, int64_t rows, int64_t width) {
    return sr_layout_take(layout, (size_t)(rows * width), sizeof(uint16_t));
}

static uint32_t *take_pairs(sr_layout *layout, int64_t rows, int64_t width) {
    return sr_layout_take(layout, (size_t)(rows * width), sizeof(uint32_t));
}

static workspace place_worker(const srnn_problem *p, tile_strides ld, sr_layout *layout) {
    const padded_widths widths = padded_widths_of(p);
    const int64_t tiles = tiles_in(p->T), T = tiles * TILE;
    const int64_t wider = widths.d > widths.dv ? widths.d : widths.dv;
    return (workspace){
        .rows = take_reals(layout, TILE, row_stride(wider)),
        .transposed = take_reals(layout, wider, ld.tile),
        .d_keys = take_reals(layout, tiles * widths.d, ld.tile),
        .d_values = take_reals(layout, tiles * widths.dv, ld.tile),
        .value_rows = take_reals(layout, TILE, ld.dv),
        .queries = take_narrow(layout, T, widths.d),
        .query_columns = take_narrow(layout, T, widths.d),
        .d_numerator = take_narrow(layout, T, widths.dv),
        .d_numerator_columns = take_narrow(layout, T, widths.dv),
        .narrow = take_narrow(layout, TILE, wider),
        .d_logits = take_narrow(layout, TILE, TILE),
        .keys = take_pairs(layout, widths.d / 2, TILE),
        .values = take_pairs(layout, widths.dv / 2, TILE),
        .key_pairs = take_pairs(layout, TILE / 2, widths.d),
        .weight_pairs = take_pairs(layout, TILE / 2, TILE),
        .tile = pair_workspace_place(p, layout),
    };
}

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const tile_strides ld = padded_strides_of(p);
    context x = {.pass = key_pass_place(plan, ld, layout),
                 .widths = padded_widths_of(p),
                 .logit_factor = logit_factor_of(&plan->problem)};
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        const workspace w = place_worker(p, ld, layout);
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t rounded_backward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

/* ---- what products read */

/* Rounds the gradients of numerators, a tile of rows of one head, and changes those of row sums so
 * that sum_j w_ij dw_ij stays what it was: where a row's scale does not matter it is 0, and terms
 * that cancel must do so. Weights that may be negative have no row sum to divide by. */
static void round_gradients(void *untyped, int64_t task, int worker) {
    const key_pass *pass = untyped;
    const srnn_plan *plan = pass->call->plan;
    const srnn_problem *p = &plan->core;
    const int64_t tiles = tiles_in(p->T), tile = task % tiles;
    const int64_t base = task / tiles * p->T + tile * TILE;
    const sr_saved *saved = &pass->call->saved;
    const bool positive =
        p->attention.score == SRNN_SCORE_EXP || p->attention.score == SRNN_SCORE_SIGMOID;
    (void)worker;
    for (int64_t r = base; r < base + rows_in(p, tile); r++) {
        real *const gradient = pass->row_work.d_numerator + r * p->Dv;
        const real *const numerator = (const real *)saved->numerator + r * p->Dv;
        const real row_sum = ((const real *)saved->row_sum)[r];
        vec lost = {0};
        for (int64_t d = 0; d < p->Dv; d += LANES) {
            const int count = (int)(p->Dv - d);
            const vec exact = vec_load_part(gradient + d, count);
            const vec rounded = rounded_of(exact);
            lost += (exact - rounded) * vec_load_part(numerator + d, count);
            vec_store_part(gradient + d, rounded, count);
        }
        if (positive && row_sum > 0)
            pass->row_work.d_row_sum[r] += vec_sum(lost) / row_sum;
    }
}

/* out (TILE, width) = the rows rounded, and columns (width, TILE) the same transposed. */
static void round_both_ways(uint16_t *out, uint16_t *columns, int64_t width, const workspace *w,
                            float_rows rows) {
    const int64_t ld = row_stride(TILE);
    round_rows(out, width, TILE, rows);
    transpose_rows(w->transposed, ld, rows.data, rows.ld, rows.count, rows.columns, TILE);
    round_rows(columns, TILE, width, (float_rows){w->transposed, ld, rows.columns, TILE});
}

/* Queries and numerator gradients of one head, from tile `first` on. */
static void load_head(const context *x, const workspace *w, const position *at, int64_t first) {
    const key_pass *pass = &x->pass;
    const srnn_problem *p = &pass->call->plan->core;
    const tile_strides ld = pass->ld;
    const padded_widths widths = x->widths;
    for (int64_t tile = first; tile < tiles_in(p->T); tile++) {
        const int64_t t = tile * TILE, count = rows_in(p, tile);
        SR_ISA_REAL(sr_prologue_query_rows)
        (w->rows, ld.d, &pass->row_work, pass->call, (sr_rows){at->b, at->h, t, count});
        w->tile.query_norm[tile] = largest_norm(w->rows, ld.d, count, p->D);
        multiply_all(w->rows, ld.d, count, p->D, 1 / x->logit_factor);
        round_both_ways(w->queries + t * widths.d, w->query_columns + t * widths.d, widths.d, w,
                        (float_rows){w->rows, ld.d, count, p->D});
        const real *d_numerator =
            pass->row_work.d_numerator + sr_row_index(p, p->H, at->b, at->h, t) * p->Dv;
        for (int64_t r = 0; r < count; r++)
            memcpy(w->rows + r * ld.dv, d_numerator + r * p->Dv, (size_t)p->Dv * sizeof(real));
        round_both_ways(w->d_numerator + t * widths.dv, w->d_numerator_columns + t * widths.dv,
                        widths.dv, w, (float_rows){w->rows, ld.dv, count, p->Dv});
    }
}

static void load_keys(const context *x, const workspace *w, position *at, int64_t tile) {
    const key_pass *pass = &x->pass;
    const srnn_problem *p = &pass->call->plan->core;
    const tile_strides ld = pass->ld;
    const int64_t count = rows_in(p, tile);
    const sr_rows rows = {at->b, at->kv, tile * TILE, count};
    SR_ISA_REAL(sr_prologue_key_rows)(w->rows, ld.d, &pass->row_work, pass->call, rows);
    at->key_norm = largest_norm(w->rows, ld.d, count, p->D);
    const float_rows keys = {w->rows, ld.d, count, p->D};
    round_column_pairs(w->keys, w->narrow, x->widths.d, keys);
    round_row_pairs(w->key_pairs, x->widths.d, keys);
    SR_ISA_REAL(sr_prologue_value_rows)(w->rows, ld.dv, &pass->row_work, pass->call, rows);
    round_column_pairs(w->values, w->narrow, x->widths.dv,
                       (float_rows){w->rows, ld.dv, count, p->Dv});
}

/* ---- two tiles */

/* Logits, and gradients of weights. */
static void multiply_rows(const context *x, const workspace *w, int64_t own, bool diagonal) {
    const padded_widths widths = x->widths;
    const pair_shape lower = diagonal ? PAIRS_C_LOWER : PAIRS_FULL;
    pair_product product = {.c = w->tile.s,
                            .c_stride = x->pass.ld.tile,
                            .a = w->queries + own * TILE * widths.d,
                            .a_stride = widths.d,
                            .a_step = PAIR_TILE,
                            .b = w->keys,
                            .b_stride = TILE,
                            .b_step = PAIR_HALF,
                            .m = TILE,
                            .n = TILE,
                            .k = widths.d,
                            .shape = lower};
    pair_multiply(&product);
    multiply_all(w->tile.s, x->pass.ld.tile, TILE, TILE, x->logit_factor);
    product.c = w->tile.d;
    product.a = w->d_numerator + own * TILE * widths.dv;
    product.a_stride = product.k = widths.dv;
    product.b = w->values;
    pair_multiply(&product);
}

/* The transposed gradients (width, stride of TILE) of a tile of keys or values, and the columns of
 * queries or numerator gradients that are added to them. */
typedef struct column_sum {
    real *gradients;
    int64_t width;
    const uint16_t *columns; /* (width, TILE) */
} column_sum;

/* Adds the columns times the weights or gradients in s, rounded. */
static void add_columns(const context *x, const workspace *w, column_sum to, const real *s,
                        bool diagonal) {
    const int64_t ld = x->pass.ld.tile;
    round_row_pairs(w->weight_pairs, TILE, (float_rows){s, ld, TILE, TILE});
    pair_multiply(&(pair_product){.c = to.gradients,
                                  .c_stride = ld,
                                  .accumulate = true,
                                  .a = to.columns,
                                  .a_stride = TILE,
                                  .a_step = PAIR_TILE,
                                  .b = w->weight_pairs,
                                  .b_stride = TILE,
                                  .b_step = PAIR_HALF,
                                  .m = to.width,
                                  .n = TILE,
                                  .k = TILE,
                                  .shape = diagonal ? PAIRS_B_LOWER : PAIRS_FULL});
}

static void add_queries(const context *x, const workspace *w, real *gradients, bool diagonal) {
    round_rows(w->d_logits, TILE, TILE, (float_rows){w->tile.d, x->pass.ld.tile, TILE, TILE});
    pair_multiply(&(pair_product){.c = gradients,
                                  .c_stride = x->pass.ld.d,
                                  .accumulate = true,
                                  .a = w->d_logits,
                                  .a_stride = TILE,
                                  .a_step = PAIR_TILE,
                                  .b = w->key_pairs,
                                  .b_stride = x->widths.d,
                                  .b_step = PAIR_HALF,
                                  .m = TILE,
                                  .n = x->widths.d,
                                  .k = TILE,
                                  .shape = diagonal ? PAIRS_A_LOWER : PAIRS_FULL});
}

/* Key tile `tile` against query tile `own`. */
static void tile_pair(const context *x, const workspace *w, const position *at, int64_t tile,
                      int64_t own) {
    const padded_widths widths = x->widths;
    const int64_t ld = x->pass.ld.tile;
    const bool diagonal = tile == own;
    multiply_rows(x, w, own, diagonal);
    weigh_tile(&x->pass, &w->tile, at, tile, own, TILE);
    const column_sum values = {w->d_values + tile * widths.dv * ld, widths.dv,
                               w->d_numerator_columns + own * TILE * widths.dv};
    const column_sum keys = {w->d_keys + tile * widths.d * ld, widths.d,
                             w->query_columns + own * TILE * widths.d};
    add_columns(x, w, values, w->tile.s, diagonal);
    add_columns(x, w, keys, w->tile.d, diagonal);
    add_queries(x, w, at->d_queries + own * TILE * x->pass.ld.d, diagonal);
}

/* Writes the gradients of a group's keys and values, after every query head has contributed. */
static void write_keys(const context *x, const workspace *w, const position *at, int64_t tile) {
    const key_pass *pass = &x->pass;
    const srnn_problem *p = &pass->call->plan->core;
    const tile_strides ld = pass->ld;
    const padded_widths widths = x->widths;
    const sr_rows rows = {at->b, at->kv, tile * TILE, rows_in(p, tile)};
    transpose_rows(w->rows, ld.d, w->d_keys + tile * widths.d * ld.tile, ld.tile, widths.d, TILE,
                   widths.d);
    multiply_all(w->rows, ld.d, rows.count, p->D, x->logit_factor);
    SR_ISA_REAL(sr_prologue_key_rows_backward)(w->rows, ld.d, &pass->row_work, pass->call, rows);
    SR_ISA_REAL(sr_prologue_value_rows)(w->value_rows, ld.dv, &pass->row_work, pass->call, rows);
    transpose_rows(w->rows, ld.dv, w->d_values + tile * widths.dv * ld.tile, ld.tile, widths.dv,
                   TILE, widths.dv);
    SR_ISA_REAL(sr_prologue_value_rows_backward)
    (w->rows, w->value_rows, ld.dv, &pass->row_work, pass->call, rows);
}

static void keys_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const key_pass *pass = &x->pass;
    const srnn_problem *p = &pass->call->plan->core;
    const workspace *w = &x->workers[worker];
    const int heads = p->H / p->Hkv;
    const int64_t key_numbers = x->widths.d * pass->ld.tile,
                  value_numbers = x->widths.dv * pass->ld.tile;
    position at = position_of(pass, task);
    const size_t tiles = (size_t)(at.past - at.from);
    memset(w->d_keys + at.from * key_numbers, 0, tiles * (size_t)key_numbers * sizeof(real));
    memset(w->d_values + at.from * value_numbers, 0, tiles * (size_t)value_numbers * sizeof(real));
    pairs_begin();
    for (int h = at.kv * heads; h < (at.kv + 1) * heads; h++) {
        position_next_head(pass, &at, task, h);
        load_head(x, w, &at, at.begin);
        for (int64_t tile = at.from; tile < at.past; tile++) {
            load_keys(x, w, &at, tile);
            for (int64_t own = tile; sees_tile(pass, &at, own, tile); own++)
                if (position_meets(pass, &w->tile, &at, tile, own))
                    tile_pair(x, w, &at, tile, own);
        }
    }
    pairs_end();
    for (int64_t tile = at.from; tile < at.past; tile++)
        write_keys(x, w, &at, tile);
}

srnn_status rounded_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.pass.call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x.pass.row_work, plan, call->in, NULL);
    sums_backward(&x.pass);
    sr_parallel(round_gradients, &x.pass, tiles_in(p->T) * p->B * p->H, p->threads);
    sr_parallel(keys_task, &x, x.pass.groups * p->B * p->Hkv, p->threads);
    sr_parallel(queries_task, &x.pass, tiles_in(p->T) * p->B * p->H, p->threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.pass.row_work, call);
    return SRNN_OK;
}
