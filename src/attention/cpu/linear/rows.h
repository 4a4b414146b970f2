/* rows.h (private): iteration of the linear kernel over a head of a document, in blocks of tokens
 * whose rows are loaded together; and GEMMs with few rows. */
#ifndef SR_ATTENTION_CPU_LINEAR_ROWS_H
#define SR_ATTENTION_CPU_LINEAR_ROWS_H

#include "attention/cpu/linear/linear.h"
#include "attention/cpu/shared/carried.h"
#include "attention/cpu/shared/heads.h"

#include <string.h>

/* Tokens whose rows are loaded together; backward stores one state per block. */
enum {
    LINEAR_BLOCK = 96,
    LINEAR_SHORT = 48, /* where pairs are more expensive: the delta rule, decay per channel */
    LINEAR_TREE = 64,  /* with levels: a power of two */
};

static inline int64_t linear_block_tokens(const srnn_attention *a) {
    const bool channel = a->decay != SRNN_DECAY_NONE && a->decay_width == SRNN_WIDTH_CHANNEL;
    if (a->levels == SRNN_LEVELS_FENWICK)
        return LINEAR_TREE;
    return a->write != SRNN_WRITE_ADD || channel ? LINEAR_SHORT : LINEAR_BLOCK;
}

/* ---- GEMMs with few rows */

/* Row c of N vectors = or += a row of A times B. */
#define ROW_PRODUCT(N)                                                                        \
    static inline void row_product_##N(real *c, bool accumulate, product_operand a,           \
                                       product_rows b, int64_t k) {                           \
        vec sum[N];                                                                           \
        for (int n = 0; n < N; n++)                                                           \
            sum[n] = accumulate ? vec_load(c + n * LANES) : (vec){0};                         \
        for (int64_t step = 0; step < k; step++)                                              \
            for (int n = 0; n < N; n++)                                                       \
                sum[n] += a.data[step * a.step] * vec_load(b.data + step * b.ld + n * LANES); \
        for (int n = 0; n < N; n++)                                                           \
            vec_store(c + n * LANES, sum[n]);                                                 \
    }
ROW_PRODUCT(2)
ROW_PRODUCT(4)
#undef ROW_PRODUCT

/* Like `product`, for any number m of rows; rows behind them, up to a whole block, may be
 * overwritten. A full block for a single row would be twelve times the work. */
static inline void rows_product(product_target c, product_operand a, product_rows b,
                                product_size size, product_shape shape) {
    if (size.m > 2) {
        size.m = round_up(size.m, ROWS);
        product(c, a, b, size, shape);
        return;
    }
    for (int64_t row = 0; row < size.m; row++)
        for (int64_t column = 0; column < size.n;) {
            const product_operand own = {a.data + row * a.row, a.row, a.step};
            const product_rows from = {b.data + column, b.ld};
            real *to = c.data + row * c.ld + column;
            if (size.n - column >= 2 * COLUMNS) {
                row_product_4(to, c.accumulate, own, from, size.k);
                column += 2 * COLUMNS;
            } else {
                row_product_2(to, c.accumulate, own, from, size.k);
                column += COLUMNS;
            }
        }
}

/* ---- a walk of one head through a document */

typedef struct linear_walk {
    const sr_row_workspace *row_work;
    const sr_attention_call *call;
    const srnn_problem *p; /* of the core */
    const sr_document_range *document;
    int kv, group;       /* query heads that share the keys */
    int64_t position;    /* tokens before the document's part in this call */
    int64_t d, dv;       /* strides of rows */
    int64_t token;       /* stride of rows with one number per token of a chunk */
    int64_t decays;      /* decay values per token */
    const double *decay; /* (length, decays), or NULL */
    bool sums, rotated, leveled;
    bool carried; /* an initial state is before the document */
    bool delta;   /* a write rule applies: the delta rule, or removal */
    bool apart;   /* it has erase rows of its own */
    bool removal; /* and what it erases is written separately from the values */
} linear_walk;

static inline linear_walk linear_walk_of(const sr_row_workspace *row_work,
                                         const sr_attention_call *call, int64_t task,
                                         int64_t position) {
    const srnn_problem *p = &call->plan->core;
    const sr_document_range *document = &call->plan->documents[task / p->Hkv];
    const int kv = (int)(task % p->Hkv);
    const int64_t first = sr_row_index(p, p->Hkv, document->b, kv, document->start);
    return (linear_walk){
        .row_work = row_work,
        .call = call,
        .p = p,
        .document = document,
        .kv = kv,
        .group = p->H / p->Hkv,
        .position = position,
        .d = row_stride(p->D),
        .dv = row_stride(p->Dv),
        .token = row_stride(tile_width(LINEAR_BLOCK)),
        .decays = linear_decays(p),
        .decay = row_work->decay ? row_work->decay + first * linear_decays(p) : NULL,
        .sums = sr_needs_row_sum(&p->attention),
        .delta = p->attention.write != SRNN_WRITE_ADD,
        .apart = sr_erases_apart(&p->attention),
        .removal = p->attention.write == SRNN_WRITE_REMOVAL,
        .rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES,
        .leveled = p->attention.levels == SRNN_LEVELS_FENWICK,
        .carried = carried_into(&call->plan->states, document),
    };
}

static inline bool linear_per_channel(const linear_walk *x) {
    return x->decay && x->p->attention.decay_width == SRNN_WIDTH_CHANNEL;
}

/* Columns of values that GEMMs cover. */
static inline int64_t value_columns(const linear_walk *x) {
    return round_up(x->p->Dv, COLUMNS);
}

/* Clears the padding columns of `count` rows of values. */
static inline void clear_columns(real *rows, const linear_walk *x, int64_t count) {
    const int64_t Dv = x->p->Dv, rest = value_columns(x) - Dv;
    for (int64_t r = 0; rest > 0 && r < count; r++)
        memset(rows + r * x->dv + Dv, 0, (size_t)rest * sizeof(real));
}

/* Buffers of a chunk hold whole blocks of rows, and one more that GEMMs may read. */
static inline real *take_rows(sr_layout *layout, int64_t stride) {
    return take_reals(layout, LINEAR_BLOCK + ROWS, stride);
}

/* ---- blocks of rows */

/* If nothing is rotated, both kinds of keys and queries are the same arrays. */
typedef struct linear_rows {
    real *keys, *plain_keys;       /* (block, stride of D) */
    real *queries, *plain_queries; /* (heads of a group, block, stride of D) */
    real *values;                  /* (block, stride of Dv) */
    sr_erase_rows erase;           /* (block, stride of D): if the rule has erase rows of its own */
} linear_rows;

enum { BLOCK_ROWS = LINEAR_BLOCK + ROWS };

static inline linear_rows linear_rows_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t group = p->H / p->Hkv, d = row_stride(p->D);
    const bool rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    linear_rows rows = {
        .keys = take_rows(layout, d),
        .queries = take_reals(layout, group * BLOCK_ROWS, d),
        .values = take_rows(layout, row_stride(p->Dv)),
    };
    if (sr_erases_apart(&p->attention))
        rows.erase.erase = take_rows(layout, d);
    if (p->attention.write == SRNN_WRITE_REMOVAL)
        rows.erase.removed = take_rows(layout, d);
    rows.plain_keys = rotated ? take_rows(layout, d) : rows.keys;
    rows.plain_queries = rotated ? take_reals(layout, group * BLOCK_ROWS, d) : rows.queries;
    return rows;
}

/* Tokens at .. at+count-1 of the document's part. */
typedef struct linear_block {
    int64_t at, count;
    bool finite; /* all of its numbers are finite */
} linear_block;

static inline sr_rows linear_key_rows(const linear_walk *x, const linear_block *b) {
    return (sr_rows){x->document->b, x->kv, x->document->start + b->at, b->count};
}

static inline sr_rows linear_query_rows(const linear_walk *x, const linear_block *b, int g) {
    return (sr_rows){x->document->b, x->kv * x->group + g, x->document->start + b->at, b->count};
}

static inline int64_t linear_block_length(const linear_walk *x) {
    return linear_block_tokens(&x->p->attention);
}

/* beta of the delta rule, from the document's first token on; NULL if it is not one number per
 * token. */
static inline const real *linear_beta(const linear_walk *x) {
    const int64_t first = sr_row_index(x->p, x->p->Hkv, x->document->b, x->kv, x->document->start);
    return x->row_work->beta ? x->row_work->beta + first : NULL;
}

/* The sum of numbers (n) times zero: 0 if all are finite. */
static inline double sum_of_zeros(const double *numbers, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    wide_vec zeros = {0}, own;
    double zero = 0.0;
    for (int64_t i = 0; i < whole; i += LANES) {
        memcpy(&own, numbers + i, sizeof own);
        zeros += own * 0.0;
    }
    for (int64_t i = whole; i < n; i++)
        zero += numbers[i] * 0.0;
    return zero + wide_vec_sum(&zeros);
}

static inline linear_block linear_block_at(const linear_walk *x, int64_t at) {
    const int64_t left = x->document->length - at, most = linear_block_length(x);
    linear_block b = {.at = at, .count = left < most ? left : most};
    const real *beta = linear_beta(x);
    double zero = x->decay ? sum_of_zeros(x->decay + at * x->decays, b.count * x->decays) : 0.0;
    for (int64_t t = at; beta && t < at + b.count; t++)
        zero += (double)beta[t] * 0.0;
    b.finite = zero == 0.0;
    return b;
}

static inline void linear_load_keys(const linear_rows *rows, const linear_walk *x,
                                    linear_block *b) {
    const sr_rows at = linear_key_rows(x, b);
    SR_ISA_REAL(sr_prologue_key_rows)(rows->plain_keys, x->d, x->row_work, x->call, at);
    clear_columns(rows->values, x, b->count);
    SR_ISA_REAL(sr_prologue_value_rows)(rows->values, x->dv, x->row_work, x->call, at);
    b->finite = b->finite && rows_are_finite(rows->plain_keys, x->d, b->count, x->p->D) &&
                rows_are_finite(rows->values, x->dv, b->count, x->p->Dv);
    if (x->apart)
        SR_ISA_REAL(sr_prologue_erase_rows)(rows->erase, rows->keys, x->d, x->call, at);
    b->finite = b->finite &&
                (!x->apart || rows_are_finite(rows->erase.erase, x->d, b->count, x->p->D)) &&
                (!x->removal || rows_are_finite(rows->erase.removed, x->d, b->count, x->p->D));
    if (!x->rotated)
        return;
    memcpy(rows->keys, rows->plain_keys, (size_t)(b->count * x->d) * sizeof(real));
    SR_ISA_REAL(sr_prologue_rope)(rows->keys, x->d, x->row_work, x->call, at, false);
}

/* The queries of head g of the group. */
static inline void linear_load_queries(const linear_rows *rows, const linear_walk *x,
                                       linear_block *b, int g) {
    const sr_rows at = linear_query_rows(x, b, g);
    real *plain = rows->plain_queries + g * BLOCK_ROWS * x->d;
    real *rotated = rows->queries + g * BLOCK_ROWS * x->d;
    SR_ISA_REAL(sr_prologue_query_rows)(plain, x->d, x->row_work, x->call, at);
    b->finite = b->finite && rows_are_finite(plain, x->d, b->count, x->p->D);
    if (!x->rotated)
        return;
    memcpy(rotated, plain, (size_t)(b->count * x->d) * sizeof(real));
    SR_ISA_REAL(sr_prologue_rope)(rotated, x->d, x->row_work, x->call, at, false);
}

#endif
