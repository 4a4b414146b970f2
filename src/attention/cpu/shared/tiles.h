/* tiles.h (private): keys and values packed in tiles, and tiles of queries against them.
 *
 * Tiles start at multiples of TILE in a batch row, regardless of the documents packed into it. */
#ifndef SR_ATTENTION_CPU_SHARED_TILES_H
#define SR_ATTENTION_CPU_SHARED_TILES_H

#include "attention/cpu/shared/prologue.h"
#include "attention/cpu/shared/rows.h"
#include "attention/cpu/shared/scores.h"
#include "equation/facts.h"
#include "equation/operands.h"

static inline real *take_reals(sr_layout *layout, int64_t rows, int64_t stride) {
    return sr_layout_take(layout, (size_t)(rows * stride), sizeof(real));
}

/* Row strides of the buffers of a problem. */
typedef struct tile_strides {
    int64_t d, dv, tile; /* rows of D, of Dv, and of TILE numbers */
} tile_strides;

static inline tile_strides tile_strides_of(const srnn_problem *p) {
    return (tile_strides){row_stride(p->D), row_stride(p->Dv), row_stride(TILE)};
}

static inline int64_t tiles_in(int64_t T) {
    return (T + TILE - 1) / TILE;
}

/* Number of columns that GEMMs cover for a tile with this many keys: whole blocks in either
 * orientation. */
static inline int64_t tile_width(int64_t keys) {
    return round_up(round_up(keys, ROWS), COLUMNS);
}

/* The keys and values of one kv head. With a window, a state keeps them in a ring of tiles. */
typedef struct packed_head {
    real *keys;     /* (tiles, D, stride of TILE): transposed */
    real *values;   /* (T rounded up to TILE, stride of Dv) */
    real *key_norm; /* (tiles): the largest |key| of the tile */
    double *decay;  /* (T): C_j, or NULL */
    int64_t ring;   /* tiles in the ring; 0: no ring, all tiles are stored */
} packed_head;

/* Index of a tile, and of a position, in the stored tiles. */
static inline int64_t packed_tile(const packed_head *head, int64_t tile) {
    return head->ring ? tile % head->ring : tile;
}

static inline int64_t packed_row(const packed_head *head, int64_t position) {
    return packed_tile(head, position / TILE) * TILE + position % TILE;
}

/* One thread's buffers for a tile of queries. */
typedef struct tile_workspace {
    real *queries;   /* (TILE, stride of D) */
    real *s;         /* (TILE, stride of TILE): logits, then weights */
    real *numerator; /* (TILE, stride of Dv) */
    vec *row_sums;   /* (TILE), lane by lane */
    real *row_sum;   /* (TILE) */
    real *maximum;   /* (TILE) */
    real *decay;     /* (2, TILE): C_j minus the reference, and its rounding error */
} tile_workspace;

static inline tile_workspace tile_workspace_place(const srnn_problem *p, sr_layout *layout) {
    tile_strides ld = tile_strides_of(p);
    return (tile_workspace){
        .queries = take_reals(layout, TILE, ld.d),
        .s = take_reals(layout, TILE, ld.tile),
        .numerator = take_reals(layout, TILE, ld.dv),
        .row_sums = sr_layout_take(layout, TILE, sizeof(vec)),
        .row_sum = take_reals(layout, TILE, 1),
        .maximum = take_reals(layout, TILE, 1),
        .decay = take_reals(layout, 2 * TILE, 1),
    };
}

static inline packed_head packed_head_place(const srnn_problem *p, int64_t T, sr_layout *layout) {
    tile_strides ld = tile_strides_of(p);
    int64_t tiles = tiles_in(T);
    return (packed_head){
        .keys = take_reals(layout, tiles * p->D, ld.tile),
        .values = take_reals(layout, tiles * TILE, ld.dv),
        .key_norm = take_reals(layout, tiles, 1),
    };
}

/* Clears rows count .. past-1 of a buffer with row stride ld. */
static inline void clear_rows_from(real *rows, int64_t ld, int64_t count, int64_t past) {
    if (count < past)
        memset(rows + count * ld, 0, (size_t)((past - count) * ld) * sizeof(real));
}

/* out (columns, ld_out) = the first `count` rows (count, ld) transposed, with zeros up to `width`.
 * Seven parameters: two matrices and their sizes. */
static inline void transpose_rows(real *out, int64_t ld_out, const real *rows, int64_t ld,
                                  int64_t count, int64_t columns, int64_t width) {
    const int64_t whole = count / LANES * LANES, squares = columns / LANES * LANES;
    for (int64_t t = 0; t < whole; t += LANES)
        for (int64_t d = 0; d < squares; d += LANES)
            transpose_square(out + d * ld_out + t, ld_out, rows + t * ld + d, ld);
    for (int64_t d = 0; d < columns; d++)
        for (int64_t t = d < squares ? whole : 0; t < width; t++)
            out[d * ld_out + t] = t < count ? rows[t * ld + d] : 0;
}

/* Saves the row sums and maxima that backward needs, if requested. */
static inline void save_rows(const sr_attention_call *call, sr_rows rows, sr_row_results results) {
    const srnn_problem *p = &call->plan->core;
    const int64_t at = sr_row_index(p, p->H, rows.b, rows.h, rows.t);
    const size_t bytes = (size_t)rows.count * sizeof(real);
    if (!call->saved.numerator)
        return;
    for (int64_t r = 0; r < rows.count; r++)
        memcpy((real *)call->saved.numerator + (at + r) * p->Dv, results.numerator + r * results.ld,
               (size_t)p->Dv * sizeof(real));
    memcpy((real *)call->saved.row_sum + at, results.row_sum, bytes);
    if (results.maximum)
        memcpy((real *)call->saved.maximum + at, results.maximum, bytes);
    else
        memset((real *)call->saved.maximum + at, 0, bytes);
}

/* The larger of two numbers; NaN if either is NaN. */
static inline real larger_or_nan(real a, real b) {
    return a >= b || a != a ? a : b;
}

/* The largest |row| of (count, ld), rounded up slightly; NaN if any is NaN. */
static inline real largest_norm(const real *rows, int64_t ld, int64_t count, int D) {
    real largest = 0;
    int whole = D / LANES * LANES;
    for (int64_t r = 0; r < count; r++) {
        const real *row = rows + r * ld;
        vec squares = {0};
        for (int d = 0; d < whole; d += LANES)
            squares += vec_load(row + d) * vec_load(row + d);
        real square = vec_sum(squares);
        for (int d = whole; d < D; d++)
            square += row[d] * row[d];
        largest = larger_or_nan(largest, square);
    }
    return (real)sqrt((double)largest) * (real)1.0001;
}

/* Online softmax: raises a row's running maximum to that of this tile and rescales the row sum and
 * numerator accumulated so far. */
static inline void raise_maximum(tile_workspace *w, score_row *row, const score_rule *rule,
                                 int64_t r, int64_t ld) {
    real maximum = row_log_scale(row, rule), before = w->maximum[r];
    if (maximum > before) {
        real factor = (real)exp((double)(before - maximum));
        w->row_sums[r] *= factor;
        for (int64_t d = 0; d < ld; d += LANES)
            vec_store(w->numerator + r * ld + d, factor * vec_load(w->numerator + r * ld + d));
        w->maximum[r] = maximum;
    }
    row->maximum = w->maximum[r];
}

/* Stores keys at positions `at` .. at+count-1 from rows (count, ld) in their tiles. */
static inline void packed_head_keep_keys(const packed_head *head, const srnn_problem *p,
                                         const real *rows, int64_t ld, int64_t at, int64_t count) {
    int64_t stride = row_stride(TILE);
    for (int64_t r = 0; r < count; r++) {
        int64_t tile = packed_tile(head, (at + r) / TILE), column = (at + r) % TILE;
        real *keys = head->keys + tile * p->D * stride + column;
        real norm = largest_norm(rows + r * ld, ld, 1, p->D);
        for (int64_t d = 0; d < p->D; d++)
            keys[d * stride] = rows[r * ld + d];
        head->key_norm[tile] = column == 0 ? norm : larger_or_nan(head->key_norm[tile], norm);
    }
}

/* Lays out one head of a KV cache with `capacity` tokens, decay included. Consecutive tokens may
 * start anywhere in a tile, so a ring has one tile more. */
static inline packed_head kv_cache_head_place(const srnn_problem *p, int64_t capacity,
                                              sr_layout *layout) {
    const int64_t ring = p->attention.window ? tiles_in(capacity) + 1 : 0;
    const int64_t entries = ring ? ring * TILE : capacity;
    packed_head head = packed_head_place(p, entries, layout);
    head.ring = ring;
    if (sr_operand_used(SR_OPERAND_DECAY, &p->attention))
        head.decay = sr_layout_take(layout, (size_t)entries, sizeof *head.decay);
    return head;
}

/* A tile of queries and a tile of keys. */
typedef struct tile_pairs {
    const int32_t *first; /* (rows): where the queries' documents start */
    int64_t at, rows;     /* position of the first query among the keys; number of queries */
    int64_t tile, past;   /* the key tile; the number of keys */
    int64_t window;       /* keys that a query sees; 0: all of its document */
} tile_pairs;

/* The first key that the query at position i sees; `first` is the start of its document. */
static inline int64_t first_key(int64_t first, int64_t i, int64_t window) {
    return window && first < i + 1 - window ? i + 1 - window : first;
}

/* The keys of the tile that query r sees: low .. high-1 of `keys`; none if low equals high. */
static inline seen_keys query_sees(const tile_pairs *pairs, int64_t r, int64_t keys) {
    const int64_t start = pairs->tile * TILE, i = pairs->at + r;
    const int64_t low = first_key(pairs->first[r], i, pairs->window) - start, high = i + 1 - start;
    const int64_t past = high < keys ? high : keys;
    return (seen_keys){low < 0 ? 0 : low < past ? low : past, past};
}

/* seen (TILE): the same for all queries; those past `rows` see none. */
static inline void tile_seen_keys(seen_keys *seen, const tile_pairs *pairs) {
    for (int64_t r = 0; r < TILE; r++)
        seen[r] = r < pairs->rows ? query_sees(pairs, r, TILE) : (seen_keys){0, 0};
}

/* True if some query does not see all of the tile's keys. */
static inline bool tile_hides_keys(const tile_pairs *pairs, int64_t keys) {
    const int64_t start = pairs->tile * TILE, last = pairs->rows - 1;
    return pairs->at + 1 - start < keys ||
           first_key(pairs->first[last], pairs->at + last, pairs->window) > start;
}

/* Where the document of row r ends in the tile. */
static inline int64_t document_end(const tile_pairs *pairs, int64_t r) {
    int64_t past = pairs->rows;
    while (pairs->first[past - 1] != pairs->first[r])
        past--;
    return past;
}

/* The range of C_i - C_j over queries i and keys j; NaN if one of them is not finite. */
typedef struct decay_range {
    double least, most;
} decay_range;

static inline decay_range range_of(const double *numbers, int64_t count) {
    decay_range range = {INFINITY, -INFINITY};
    double zero = 0.0;
    for (int64_t n = 0; n < count; n++) {
        range.least = numbers[n] < range.least ? numbers[n] : range.least;
        range.most = numbers[n] > range.most ? numbers[n] : range.most;
        zero += numbers[n] * 0.0;
    }
    return (decay_range){range.least + zero, range.most + zero};
}

/* C of a query tile and of a key tile; NULL without decay. */
typedef struct tile_sums {
    const double *rows, *keys; /* (rows), (TILE) */
} tile_sums;

/* A range that contains C_i - C_j of all visible pairs of two tiles. */
static inline decay_range tile_decay(tile_sums decay, const tile_pairs *pairs) {
    const int64_t start = pairs->tile * TILE;
    decay_range range = {0};
    if (!decay.rows)
        return range;
    /* Keys before the queries belong to the document of the first of these. */
    if (start < pairs->at) {
        const int64_t from = start < pairs->first[0] ? pairs->first[0] : start;
        const int64_t past = start + TILE < pairs->past ? start + TILE : pairs->past;
        const decay_range queries = range_of(decay.rows, document_end(pairs, 0));
        const decay_range keys = range_of(decay.keys + (from - start), past - from);
        return (decay_range){queries.least - keys.most, queries.most - keys.least};
    }
    for (int64_t r = 0, past; r < pairs->rows; r = past) {
        past = document_end(pairs, r);
        const decay_range own = range_of(decay.rows + r, past - r);
        const double width = own.most - own.least;
        if (!isnan(range.most) && !(width <= range.most)) /* NaN propagates */
            range.most = width;
    }
    return (decay_range){-range.most, range.most};
}

/* True if decay reduces the weight of every pair below LEAST_EXPONENT, given a bound on |s|. False
 * if decay acts on the logits: a zero logit still has a weight. */
static inline bool decay_hides(const score_rule *rule, decay_range range, real bound) {
    return !rule->logit_decay &&
           range.most + (rule->score == SRNN_SCORE_EXP ? (double)bound : 0.0) <
               (double)LEAST_EXPONENT;
}

/* True if no exponent is far from 0, so that vec_exp_small applies. */
static inline bool decay_is_near(decay_range range, real bound) {
    return fmax(-range.least, range.most) + (double)bound <= -(double)LEAST_EXPONENT;
}

/* The decays of a query tile and a key tile. C_i and C_j of a visible pair are taken relative to
 * one reference, the first finite C among the queries of their document: a single reference for the
 * tile could be far from the C of some documents. The rounding error of the difference in float is
 * stored too: after a strong gate C is large, and its small differences matter. */
typedef struct tile_decays {
    const double *rows;                 /* (rows): C_i as it is; NULL: no decay */
    const real *columns, *column_rests; /* (TILE), or NULL */
    double reference[TILE];             /* of the rows */
} tile_decays;

static inline void set_references(tile_decays *own, const tile_pairs *pairs) {
    for (int64_t r = 0, past; r < pairs->rows; r = past) {
        past = document_end(pairs, r);
        int64_t number = r;
        while (number < past && !isfinite(own->rows[number]))
            number++;
        for (int64_t i = r; i < past; i++)
            own->reference[i] = number < past ? own->rows[number] : 0.0;
    }
}

/* Writes the columns to `buffer` (2, TILE); columns that no row sees become zero. */
static inline void tile_decays_set(tile_decays *own, real *buffer, tile_sums decay,
                                   const tile_pairs *pairs) {
    own->rows = decay.rows;
    own->columns = own->column_rests = NULL;
    if (!decay.rows)
        return;
    own->columns = buffer;
    own->column_rests = buffer + TILE;
    set_references(own, pairs);
    for (int64_t j = 0; j < TILE; j++) {
        const int64_t key = pairs->tile * TILE + j, row = key < pairs->at ? 0 : key - pairs->at;
        const bool seen = key >= pairs->first[0] && key < pairs->past;
        const double exact = seen ? decay.keys[j] - own->reference[row] : 0.0;
        buffer[j] = (real)exact;
        buffer[TILE + j] = (real)(exact - (double)buffer[j]);
    }
}

/* Sets the decay of row r of a tile. */
static inline void row_set_decay(score_row *row, const tile_decays *decays, int64_t r) {
    if (!decays->rows)
        return;
    const double exact = decays->rows[r] - decays->reference[r];
    row->decay = (real)exact;
    row->decay_rest = (real)(exact - (double)row->decay);
    row->decay_columns = decays->columns;
    row->decay_column_rests = decays->column_rests;
}

#endif
