/* queries.h (private): what forward does with a tile of queries before and after the products that
 * differ with the type of their operands. */
#ifndef SR_ATTENTION_CPU_FLASH_QUERIES_H
#define SR_ATTENTION_CPU_FLASH_QUERIES_H

#include "attention/cpu/shared/tiles.h"
#include "base/threads.h"

/* A call, and what its tasks share. */
typedef struct query_pass {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    packed_head *heads;                 /* (B, Hkv) */
    tile_workspace *workers;            /* (threads) */
    tile_strides ld;                    /* of the workers' buffers */
    int64_t key_numbers, value_numbers; /* of a tile of packed keys and values */
    score_rule rule;
    bool subtract;    /* the row maximum may be subtracted */
    bool sums;        /* weights are summed as they are made */
    int64_t position; /* tokens in the cache before those of the call, or from earlier keys on */
    const int32_t *first; /* (B, T): the first key that a query may see */
} query_pass;

/* The tile of query rows a task works on. */
typedef struct query_tile {
    int64_t b, t, rows, padded; /* first row, rows, rows rounded up to whole blocks */
    int64_t at;                 /* position of the first row among the keys */
    int h;
    const packed_head *head;       /* of keys and values */
    int64_t keys_seen, from, past; /* keys that the last row may see; tiles of keys to visit */
    const int32_t *first;          /* of these rows: start of their documents in the call */
    tile_sums decay;               /* of these rows and of the current key tile */
    real bound;                    /* on the logits; infinity or NaN if unknown */
    bool scaled;                   /* row maxima are subtracted */
    tile_pairs pairs;              /* with the current key tile */
    decay_range range;             /* of their decays */
    tile_decays decays;            /* the decays themselves */
} query_tile;

/* Prefetches row r's share of the next key tile, so that it is in cache when the weights are
 * done. */
static inline void prefetch_share(const query_pass *x, const packed_head *head, int64_t tile,
                                  int64_t r) {
    enum { CACHE_LINE = 64 };
    const int64_t place = packed_tile(head, tile);
    const char *keys = (const char *)(head->keys + place * x->key_numbers);
    const char *values = (const char *)(head->values + place * x->value_numbers);
    int64_t key_bytes = x->key_numbers * (int64_t)sizeof(real);
    int64_t value_bytes = x->value_numbers * (int64_t)sizeof(real);
    for (int64_t at = r * CACHE_LINE; at < key_bytes; at += TILE * CACHE_LINE)
        __builtin_prefetch(keys + at, 0, 2);
    for (int64_t at = r * CACHE_LINE; at < value_bytes; at += TILE * CACHE_LINE)
        __builtin_prefetch(values + at, 0, 2);
}

/* Some of the queries of a tile, which go through all steps while their logits are in the first
 * cache. */
typedef struct query_strip {
    int64_t first, past; /* padded like the tile */
} query_strip;

/* The strip from query `first` on, of `rows`; the whole tile where some pair is hidden. */
static inline query_strip query_strip_of(const query_tile *q, int64_t keys, int64_t first,
                                         int64_t rows) {
    const bool whole = tile_hides_keys(&q->pairs, keys) || first + rows > q->padded;
    return (query_strip){first, whole ? q->padded : first + rows};
}

/* Logits of a strip against a tile of keys to weights, in place: s has the strip's first row first.
 * Their sums, and the running maxima. */
static inline void weigh_strip(const query_pass *x, tile_workspace *w, const query_tile *q,
                               query_strip strip, int64_t tile, int64_t keys) {
    const tile_strides ld = x->ld;
    const int64_t past = strip.past < q->rows ? strip.past : q->rows;
    const bool scaled = q->scaled;
    const bool near = q->decay.rows && !x->rule.logit_decay && decay_is_near(q->range, q->bound);
    int width = (int)tile_width(keys);
    for (int64_t r = strip.first; r < past; r++) {
        const seen_keys seen = query_sees(&q->pairs, r, keys);
        score_row row = {
            .s = w->s + (r - strip.first) * ld.tile,
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
            prefetch_share(x, q->head, tile + 1, r);
        row_set_decay(&row, &q->decays, r);
        if (x->rule.logit_decay)
            row_decay_logits(&row, &x->rule, NULL);
        vec *const sum = x->sums ? &w->row_sums[r] : NULL;
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
    clear_rows_from(w->s, ld.tile, past - strip.first, strip.past - strip.first);
}

/* A bound on the logits of these rows against the key tiles that they see: |s| <= |q| |k|. */
static inline real logit_bound(const query_pass *x, const tile_workspace *w, const query_tile *q) {
    real norm = 0;
    for (int64_t tile = q->from; tile < q->past; tile++)
        norm = larger_or_nan(norm, q->head->key_norm[packed_tile(q->head, tile)]);
    return largest_norm(w->queries, x->ld.d, q->rows, x->call->plan->core.D) * norm;
}

/* Outputs of finished rows, one call per run of rows that belong to one document. */
static inline void write_outputs(const query_pass *x, const tile_workspace *w,
                                 const query_tile *q) {
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->core;
    const tile_strides ld = x->ld;
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

/* The tile of task `task`: head by head, so that keys and values stay in cache, and long rows first,
 * so that threads finish together. Rows are padded to a multiple of `block`; their number must not
 * pass TILE then. */
static inline query_tile query_tile_of(const query_pass *x, int64_t task, int64_t block) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    int64_t tiles = tiles_in(p->T), own = tiles - 1 - task % tiles, head = task / tiles;
    query_tile q = {.b = head / p->H, .h = (int)(head % p->H), .t = own * TILE};
    q.head = &x->heads[q.b * p->Hkv + q.h / (p->H / p->Hkv)];
    q.at = x->position + q.t;
    q.rows = p->T - q.t < TILE ? p->T - q.t : TILE;
    q.padded = round_up(q.rows, block);
    q.first = x->first + q.b * p->T + q.t;
    const double *const decay =
        plan->earlier.query_decay ? plan->earlier.query_decay : x->row_work.decay;
    if (q.head->decay)
        q.decay.rows = decay + sr_row_index(p, p->Hkv, q.b, q.h / (p->H / p->Hkv), q.t);
    q.keys_seen = plan->earlier.gap ? p->T : q.at + q.rows;
    q.from = first_key(q.first[0], q.at, p->attention.window) / TILE;
    q.past = tiles_in(q.keys_seen);
    return q;
}

/* Loads the queries and clears the sums. */
static inline void query_tile_begin(const query_pass *x, tile_workspace *w, query_tile *q) {
    const srnn_problem *p = &x->call->plan->core;
    const tile_strides ld = x->ld;
    SR_ISA_REAL(sr_prologue_query_rows)
    (w->queries, ld.d, &x->row_work, x->call, (sr_rows){q->b, q->h, q->t, q->rows});
    clear_rows_from(w->queries, ld.d, q->rows, q->padded);
    memset(w->numerator, 0, (size_t)(q->padded * ld.dv) * sizeof(real));
    memset(w->row_sums, 0, TILE * sizeof *w->row_sums);
    const real products = logit_bound(x, w, q);
    const bool may_rise = sr_decay_may_rise(&p->attention); /* from key to query */
    q->bound = may_rise ? (real)INFINITY : capped_bound(&x->rule, products);
    q->scaled = x->subtract && !logits_are_tame(&x->rule, q->bound);
    for (int64_t r = 0; r < TILE; r++)
        w->maximum[r] = q->scaled ? (real)-INFINITY : 0;
}

/* The number of keys in a tile of keys; 0 if the tile's weights are zero. */
static inline int64_t query_tile_meets(const query_pass *x, const tile_workspace *w, query_tile *q,
                                       int64_t tile) {
    const srnn_problem *p = &x->call->plan->core;
    q->pairs = (tile_pairs){q->first, q->at, q->rows, tile, q->keys_seen, p->attention.window};
    if (q->head->decay)
        q->decay.keys = q->head->decay + packed_tile(q->head, tile) * TILE;
    q->range = tile_decay(q->decay, &q->pairs);
    if (q->head->decay && !q->scaled && decay_hides(&x->rule, q->range, q->bound))
        return 0;
    tile_decays_set(&q->decays, w->decay, q->decay, &q->pairs);
    return q->keys_seen - tile * TILE < TILE ? q->keys_seen - tile * TILE : TILE;
}

/* Number of threads worth waking for the call's queries against `keys` keys. */
static inline int workers_for(const srnn_problem *p, int64_t keys) {
    double pairs = (double)p->B * p->H * p->T * (double)sr_keys_seen(&p->attention, keys);
    return sr_workers_worth(pairs * (p->D + p->Dv), p->threads);
}

#endif
