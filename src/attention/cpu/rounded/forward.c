/* forward.c: the flash kernel's forward with products of bf16 numbers.
 *
 * Queries, keys, weights and values are rounded; logits, sums and numerators are float, and so is
 * all that is done to them (flash/queries.h). A row sum is that of the rounded weights: it then
 * belongs to the numerator, and backward needs it in any case. Tasks are those of flash. */
#include "attention/cpu/rounded/rounded.h"

#include "attention/cpu/flash/queries.h"
#include "attention/cpu/rounded/pack.h"

/* One thread's rounded operands. */
typedef struct narrow_workspace {
    uint16_t *queries; /* (TILE, width of D) */
    uint16_t *weights; /* (TILE, TILE) */
} narrow_workspace;

/* Packed keys are (tiles, width of D / 2, TILE) pairs of columns, values (tiles, TILE / 2, width of
 * Dv) pairs of rows; a pair takes the place of one number. */
typedef struct context {
    query_pass pass;
    padded_widths widths;
    real logit_factor;
    narrow_workspace *narrow; /* (threads) */
} context;

static uint32_t *keys_of(const context *x, const packed_head *head, int64_t tile) {
    return (uint32_t *)(void *)head->keys + tile * x->pass.key_numbers;
}

static uint32_t *values_of(const context *x, const packed_head *head, int64_t tile) {
    return (uint32_t *)(void *)head->values + tile * x->pass.value_numbers;
}

static packed_head place_head(const context *x, int64_t tiles, sr_layout *layout) {
    return (packed_head){.keys = take_reals(layout, tiles, x->pass.key_numbers),
                         .values = take_reals(layout, tiles, x->pass.value_numbers),
                         .key_norm = take_reals(layout, tiles, 1)};
}

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const padded_widths widths = padded_widths_of(p);
    srnn_problem padded = *p;
    padded.D = (int)widths.d, padded.Dv = (int)widths.dv;
    context x = {.pass = {.rule = score_rule_of(&p->attention),
                          .subtract = sr_row_scale_invariant(&p->attention),
                          .ld = padded_strides_of(p),
                          .key_numbers = widths.d / 2 * TILE,
                          .value_numbers = TILE / 2 * widths.dv,
                          .first = plan->first},
                 .widths = widths,
                 .logit_factor = logit_factor_of(&plan->problem)};
    query_pass *const pass = &x.pass;
    SR_ISA_REAL(sr_workspace_place)(&pass->row_work, plan, false, layout);
    pass->heads = sr_layout_take(layout, (size_t)p->B * (size_t)p->Hkv, sizeof *pass->heads);
    pass->workers = sr_layout_take(layout, (size_t)p->threads, sizeof *pass->workers);
    x.narrow = sr_layout_take(layout, (size_t)p->threads, sizeof *x.narrow);
    for (int n = 0; n < p->threads; n++) {
        const tile_workspace wide = tile_workspace_place(&padded, layout);
        const narrow_workspace narrow = {
            .queries = sr_layout_take(layout, (size_t)(TILE * widths.d), sizeof(uint16_t)),
            .weights = sr_layout_take(layout, TILE * TILE, sizeof(uint16_t))};
        if (pass->workers)
            pass->workers[n] = wide, x.narrow[n] = narrow;
    }
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv; n++) {
        packed_head head = place_head(&x, tiles_in(p->T), layout);
        if (pass->row_work.decay)
            head.decay = pass->row_work.decay + n * p->T;
        if (pass->heads)
            pass->heads[n] = head;
    }
    return x;
}

size_t rounded_forward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

static void pack_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const query_pass *pass = &x->pass;
    const srnn_problem *p = &pass->call->plan->core;
    const tile_strides ld = pass->ld;
    const int64_t tiles = tiles_in(p->T), tile = task % tiles, head = task / tiles, t = tile * TILE;
    const int64_t count = p->T - t < TILE ? p->T - t : TILE;
    const sr_rows rows = {head / p->Hkv, (int)(head % p->Hkv), t, count};
    const packed_head *packed = &pass->heads[head];
    real *const keys = pass->workers[worker].queries, *const values =
                                                          pass->workers[worker].numerator;
    SR_ISA_REAL(sr_prologue_key_rows)(keys, ld.d, &pass->row_work, pass->call, rows);
    packed->key_norm[tile] = largest_norm(keys, ld.d, count, p->D);
    round_column_pairs(keys_of(x, packed, tile), x->narrow[worker].queries, x->widths.d,
                       (float_rows){keys, ld.d, count, p->D});
    SR_ISA_REAL(sr_prologue_value_rows)(values, ld.dv, &pass->row_work, pass->call, rows);
    round_row_pairs(values_of(x, packed, tile), x->widths.dv,
                    (float_rows){values, ld.dv, count, p->Dv});
}

/* Rounds a strip's weights and sums them. */
static void round_weights(uint16_t *out, const tile_workspace *w, query_strip strip, int64_t ld) {
    for (int64_t r = 0; r < strip.past - strip.first; r++) {
        vec sum = w->row_sums[strip.first + r];
        for (int64_t j = 0; j < TILE; j += LANES)
            sum += store_rounded(out + r * TILE + j, vec_load(w->s + r * ld + j));
        w->row_sums[strip.first + r] = sum;
    }
}

/* Logits of a strip against a tile of keys. */
static void multiply_keys(const context *x, int worker, const query_tile *q, query_strip strip,
                          int64_t tile) {
    const tile_workspace *w = &x->pass.workers[worker];
    const int64_t rows = strip.past - strip.first;
    pair_multiply(&(pair_product){.c = w->s,
                                  .c_stride = x->pass.ld.tile,
                                  .a = x->narrow[worker].queries + strip.first * x->widths.d,
                                  .a_stride = x->widths.d,
                                  .a_step = PAIR_TILE,
                                  .b = keys_of(x, q->head, tile),
                                  .b_stride = TILE,
                                  .b_step = PAIR_HALF,
                                  .m = rows,
                                  .n = TILE,
                                  .k = x->widths.d,
                                  .shape = tile * TILE == q->at ? PAIRS_C_LOWER : PAIRS_FULL});
    multiply_all(w->s, x->pass.ld.tile, rows, TILE, x->logit_factor);
}

/* Adds the tile's values by the weights of a strip. */
static void add_values(const context *x, int worker, const query_tile *q, query_strip strip,
                       int64_t tile) {
    const tile_workspace *w = &x->pass.workers[worker];
    uint16_t *const weights = x->narrow[worker].weights;
    round_weights(weights, w, strip, x->pass.ld.tile);
    pair_multiply(&(pair_product){.c = w->numerator + strip.first * x->pass.ld.dv,
                                  .c_stride = x->pass.ld.dv,
                                  .accumulate = true,
                                  .a = weights,
                                  .a_stride = TILE,
                                  .a_step = PAIR_TILE,
                                  .b = values_of(x, q->head, tile),
                                  .b_stride = x->widths.dv,
                                  .b_step = PAIR_HALF,
                                  .m = strip.past - strip.first,
                                  .n = x->widths.dv,
                                  .k = TILE,
                                  .shape = tile * TILE == q->at ? PAIRS_A_LOWER : PAIRS_FULL});
}

static void rows_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const query_pass *pass = &x->pass;
    const int D = pass->call->plan->core.D;
    tile_workspace *w = &pass->workers[worker];
    query_tile q = query_tile_of(pass, task, PAIR_TILE);
    query_tile_begin(pass, w, &q);
    multiply_all(w->queries, pass->ld.d, q.rows, D, 1 / x->logit_factor);
    round_rows(x->narrow[worker].queries, x->widths.d, q.padded,
               (float_rows){w->queries, pass->ld.d, q.rows, D});
    pairs_begin();
    for (int64_t tile = q.from; tile < q.past; tile++) {
        const int64_t keys = query_tile_meets(pass, w, &q, tile) ? TILE : 0;
        for (query_strip strip = {0, 0}; keys && strip.past < q.padded;) {
            strip = query_strip_of(&q, keys, strip.past, PAIR_TILE);
            multiply_keys(x, worker, &q, strip, tile);
            weigh_strip(pass, w, &q, strip, tile, keys);
            add_values(x, worker, &q, strip, tile);
        }
    }
    pairs_end();
    for (int64_t r = 0; r < q.rows; r++)
        w->row_sum[r] = vec_sum(w->row_sums[r]);
    write_outputs(pass, w, &q);
}

srnn_status rounded_forward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.pass.call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x.pass.row_work, plan, call->in, NULL);
    const int workers = workers_for(p, p->T);
    sr_parallel(pack_task, &x, tiles_in(p->T) * p->B * p->Hkv, workers);
    sr_parallel(rows_task, &x, tiles_in(p->T) * p->B * p->H, workers);
    SR_ISA_REAL(sr_epilogue_finish)(&x.pass.row_work, call);
    return SRNN_OK;
}
