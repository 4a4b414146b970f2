/* chunks.h (private): shared by forward and backward of the chunked kernel: a chunk and the state
 * before it. */
#ifndef SR_ATTENTION_CPU_CHUNKED_CHUNKS_H
#define SR_ATTENTION_CPU_CHUNKED_CHUNKS_H

#include "attention/cpu/shared/carried.h"
#include "attention/cpu/shared/features.h"
#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/tiles.h"

/* sum_j exp(C - C_j) features(k_j) v_j^T over the tokens seen, C being the decay reference. */
typedef struct running_state {
    real *matrix;      /* (features, stride of Dv): features of the score, padded to whole blocks */
    real *column;      /* (features): the same with v = 1 */
    double *reference; /* C; only with decay */
    int64_t ld;        /* stride of Dv */
    int64_t width;     /* columns that GEMMs cover */
} running_state;

/* Strides of chunk buffers; `token` is that of rows with one column per token. */
typedef struct chunk_strides {
    int64_t d, dv, token;
} chunk_strides;

static inline chunk_strides chunk_strides_of(const srnn_problem *p) {
    return (chunk_strides){row_stride(p->D), row_stride(p->Dv), row_stride(tile_width(p->chunk))};
}

static inline int64_t state_rows(const feature_basis *basis) {
    return basis->count - basis->first;
}

static inline running_state running_state_place(const srnn_problem *p, const feature_basis *basis,
                                                sr_layout *layout) {
    int64_t rows = state_rows(basis) + ROWS; /* a block may start anywhere */
    running_state state = {.ld = row_stride(p->Dv), .width = round_up(p->Dv, LANES)};
    state.matrix = take_reals(layout, rows, state.ld);
    state.column = take_reals(layout, rows, 1);
    state.reference = sr_layout_take(layout, 1, sizeof(double));
    return state;
}

/* The features of one chunk of tokens. */
typedef struct chunk_features {
    real *low; /* (orders below the highest, stride of tokens), then ROWS rows of zeros */
    real *top; /* (FEATURE_BLOCK, stride of tokens) */
} chunk_features;

static inline chunk_features chunk_features_place(const srnn_problem *p, const feature_basis *basis,
                                                  sr_layout *layout) {
    int64_t ld = row_stride(tile_width(p->chunk));
    return (chunk_features){
        take_reals(layout, basis->top + ROWS, ld),
        take_reals(layout, FEATURE_BLOCK, ld),
    };
}

/* Tokens t .. t+count-1 of row b of the batch, one head of queries and its kv head. */
typedef struct chunk {
    int64_t b, t;
    int64_t at;           /* t, relative to the start of the document */
    int64_t count, width; /* width: columns that GEMMs cover */
    int h, kv;
    const double *decay; /* C of the row, or NULL */
    bool carried;        /* an initial state is before the document */
} chunk;

static inline chunk chunk_of(const srnn_problem *p, const sr_row_workspace *row_work,
                             const sr_document_range *document, int kv) {
    chunk c = {.b = document->b, .h = kv * (p->H / p->Hkv), .kv = kv};
    c.decay = row_work->decay ? row_work->decay + sr_row_index(p, p->Hkv, c.b, kv, 0) : NULL;
    return c;
}

static inline void chunk_move(chunk *c, const srnn_problem *p, const sr_document_range *document,
                              int64_t at) {
    c->at = at;
    c->t = document->start + at;
    c->count = document->length - at < p->chunk ? document->length - at : p->chunk;
    c->width = tile_width(c->count);
}

/* C of the token after the document: that of its last, or, if learned, with that one's number. */
static inline double chunk_end(const sr_attention_call *call, const chunk *c,
                               const sr_document_range *document) {
    const int64_t last = document->start + document->length - 1;
    if (!c->decay)
        return 0.0;
    if (call->plan->core.attention.decay != SRNN_DECAY_LEARNED)
        return c->decay[last];
    return c->decay[last] + (double)*tensor_row(call->in->decay, c->b, c->kv, last) / DECAY_DIVISOR;
}

static inline carried_matrix chunk_carried(const running_state *state, const feature_basis *basis) {
    return (carried_matrix){state->matrix, state->column, state_rows(basis), state->ld};
}

/* One thread's buffers for a pass over chunks. */
typedef struct chunk_workspace {
    real *queries, *keys; /* (chunk, stride of D) */
    real *values;         /* (chunk, stride of Dv) */
    real *query_columns;  /* (D, stride of tokens) */
    real *key_columns;    /* (D, stride of tokens) */
    real *s;              /* (chunk, stride of tokens) */
    real *decay;          /* (2, stride of tokens): C minus the first token's, and its rounding
                           * error */
    real *factor;         /* (stride of tokens) */
    seen_keys *seen;      /* (chunk) */
    chunk_features features;
    running_state state;
} chunk_workspace;

static inline chunk_workspace chunk_workspace_place(const srnn_problem *p,
                                                    const feature_basis *basis, sr_layout *layout) {
    chunk_strides ld = chunk_strides_of(p);
    int64_t rows = round_up(p->chunk, ROWS);
    chunk_workspace buffers = {
        .queries = take_reals(layout, rows, ld.d),
        .keys = take_reals(layout, rows, ld.d),
        .values = take_reals(layout, rows, ld.dv),
        .query_columns = take_reals(layout, p->D, ld.token),
        .key_columns = take_reals(layout, p->D, ld.token),
        .s = take_reals(layout, rows, ld.token),
        .decay = take_reals(layout, 2, ld.token),
        .factor = take_reals(layout, 1, ld.token),
        .seen = sr_layout_take(layout, (size_t)rows, sizeof(seen_keys)),
    };
    buffers.features = chunk_features_place(p, basis, layout);
    /* The state is cleared with a single memset. */
    sr_layout measured = {0}, state = {0};
    running_state_place(p, basis, &measured);
    state.base = sr_layout_take(layout, measured.used, 1);
    buffers.state = running_state_place(p, basis, &state);
    return buffers;
}

static inline void chunk_load_keys(const chunk_workspace *buffers, const sr_row_workspace *row_work,
                                   const sr_attention_call *call, const chunk *c) {
    const srnn_problem *p = &call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    SR_ISA_REAL(sr_prologue_key_rows)
    (buffers->keys, ld.d, row_work, call, (sr_rows){c->b, c->kv, c->t, c->count});
    transpose_rows(buffers->key_columns, ld.token, buffers->keys, ld.d, c->count, p->D, c->width);
    /* The padding past Dv is added to states, and states are written to files. */
    memset(buffers->values, 0, (size_t)(c->count * ld.dv) * sizeof(real));
    SR_ISA_REAL(sr_prologue_value_rows)
    (buffers->values, ld.dv, row_work, call, (sr_rows){c->b, c->kv, c->t, c->count});
    for (int64_t t = 0; c->decay && t < c->width; t++) {
        const double exact = t < c->count ? c->decay[c->t + t] - c->decay[c->t] : 0.0;
        buffers->decay[t] = (real)exact;
        buffers->decay[ld.token + t] = (real)(exact - (double)buffers->decay[t]);
    }
}

static inline void chunk_load_queries(const chunk_workspace *buffers,
                                      const sr_row_workspace *row_work,
                                      const sr_attention_call *call, const chunk *c) {
    chunk_strides ld = chunk_strides_of(&call->plan->core);
    SR_ISA_REAL(sr_prologue_query_rows)
    (buffers->queries, ld.d, row_work, call, (sr_rows){c->b, c->h, c->t, c->count});
    clear_rows_from(buffers->queries, ld.d, c->count, round_up(c->count, ROWS));
}

/* s = q k^T for the pairs inside the chunk. */
static inline void chunk_logits(const chunk_workspace *buffers, const srnn_problem *p,
                                const chunk *c) {
    chunk_strides ld = chunk_strides_of(p);
    product((product_target){buffers->s, ld.token, false},
            (product_operand){buffers->queries, ld.d, 1},
            (product_rows){buffers->key_columns, ld.token},
            (product_size){round_up(c->count, ROWS), c->width, p->D}, PRODUCT_C_LOWER);
}

/* Row r of s: the query r of the chunk with the keys up to itself. */
static inline score_row chunk_row(const chunk_workspace *buffers, const chunk *c, int64_t ld,
                                  int64_t r) {
    return (score_row){.s = buffers->s + r * ld,
                       .bound = (real)INFINITY,
                       .high = (int)r + 1,
                       .width = (int)c->width,
                       .decay = c->decay ? buffers->decay[r] : 0,
                       .decay_columns = c->decay ? buffers->decay : NULL,
                       .decay_rest = c->decay ? buffers->decay[ld + r] : 0,
                       .decay_column_rests = c->decay ? buffers->decay + ld : NULL};
}

/* One block of a product that is ROWS numbers high and one vector wide. */
static inline void narrow_block(product_target c, product_operand a, product_rows b, int64_t k) {
    vec sum[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
        sum[r] = (vec){0};
    for (int64_t step = 0; step < k; step++) {
        const vec row = vec_load(b.data + step * b.ld);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
            sum[r] += a.data[r * a.row + step * a.step] * row;
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
        vec_store(c.data + r * c.ld, c.accumulate ? sum[r] + vec_load(c.data + r * c.ld) : sum[r]);
}

/* Like `product`, for n a multiple of LANES: an odd last vector is computed by itself. Values of
 * size 16 would otherwise cost as much as those of size 32. */
static inline void vectors_product(product_target c, product_operand a, product_rows b,
                                   product_size size, product_shape shape) {
    const int64_t whole = size.n / COLUMNS * COLUMNS;
    product(c, a, b, (product_size){size.m, whole, size.k}, shape);
    for (int64_t row = 0; whole < size.n && row < size.m; row += ROWS) {
        const int64_t first = shape == PRODUCT_A_UPPER ? row : 0;
        const int64_t past = shape == PRODUCT_A_LOWER && row + ROWS < size.k ? row + ROWS : size.k;
        narrow_block((product_target){c.data + row * c.ld + whole, c.ld, c.accumulate},
                     (product_operand){a.data + row * a.row + first * a.step, a.row, a.step},
                     (product_rows){b.data + first * b.ld + whole, b.ld}, past - first);
    }
}

/* The product of a chunk's pairs (weights or their gradients) with its rows of size.n numbers;
 * `shape` says on which side of the diagonal the pairs are. If a number is not finite, only visible
 * pairs are summed. */
static inline void chunk_product(product_target c, product_operand pairs, product_rows rows,
                                 product_size size, product_shape shape,
                                 const chunk_workspace *buffers) {
    const product_size whole = {size.m, round_up(size.n, LANES), size.k};
    if (size.k == 1 || rows_are_finite(rows.data, rows.ld, size.k, size.n)) {
        vectors_product(c, pairs, rows, whole, shape);
        return;
    }
    for (int64_t r = 0; r < size.m; r++)
        buffers->seen[r] = (seen_keys){0, r < size.k ? r + 1 : 0};
    product_seen(c, pairs, rows, whole, buffers->seen,
                 shape == PRODUCT_A_LOWER ? SEEN_FROM_ROWS : SEEN_FROM_SUM);
}

/* The chunk's tokens, given as columns (D, ld), with their features below the highest order. */
static inline feature_tokens chunk_tokens(const chunk_workspace *buffers,
                                          const feature_basis *basis, const real *columns,
                                          int64_t ld, const chunk *c) {
    const feature_tokens tokens = {basis, columns, buffers->features.low, buffers->features.top,
                                   ld,    c->width};
    feature_rows(tokens.low, &tokens, 0, basis->top);
    memset(tokens.low + basis->top * ld, 0, (size_t)(ROWS * ld) * sizeof(real));
    return tokens;
}

/* A run of feature rows. */
typedef struct feature_block {
    const real *rows; /* (count, ld of the tokens), zeros up to whole blocks of ROWS */
    int64_t count;
} feature_block;

/* The block that starts at feature `from`: all remaining lower orders, or a block of the
 * highest. */
static inline feature_block feature_block_at(const feature_tokens *tokens, int64_t from) {
    const int64_t top = tokens->basis->top, left = tokens->basis->count - from;
    if (from < top)
        return (feature_block){tokens->low + from * tokens->ld, top - from};
    const int64_t count = left < FEATURE_BLOCK ? left : FEATURE_BLOCK;
    feature_rows(tokens->top, tokens, from, from + count);
    clear_rows_from(tokens->top, tokens->ld, count, round_up(count, ROWS));
    return (feature_block){tokens->top, count};
}

/* out (padded, ld of the state) = features^T (tokens, features) state; sums (width) likewise with
 * the column unless NULL. */
static inline void state_read(real *out, real *sums, const running_state *state,
                              const feature_tokens *tokens, int64_t padded) {
    const int64_t first = tokens->basis->first, ld = tokens->ld;
    for (int64_t t = 0; sums && t < tokens->width; t++)
        sums[t] = 0;
    for (int64_t from = first; from < tokens->basis->count;) {
        const feature_block block = feature_block_at(tokens, from);
        const int64_t row = from - first;
        vectors_product((product_target){out, state->ld, from > first},
                        (product_operand){block.rows, 1, ld},
                        (product_rows){state->matrix + row * state->ld, state->ld},
                        (product_size){padded, state->width, block.count}, PRODUCT_FULL);
        /* One partial sum per block, like the GEMM: a single sum over thousands of features would
         * round off small terms. */
        for (int64_t t = 0; sums && t < tokens->width; t += LANES) {
            vec sum = {0};
            for (int64_t m = 0; m < block.count; m++)
                sum += vec_all(state->column[row + m]) * vec_load(block.rows + m * ld + t);
            vec_store(sums + t, vec_load(sums + t) + sum);
        }
        from += block.count;
    }
}

/* state += features (features, count tokens) rows (count, ld of the state); the column likewise
 * with `ones` (width, zero past the count) unless NULL. */
static inline void state_add(const running_state *state, const feature_tokens *tokens,
                             const real *rows, const real *ones, int64_t count) {
    const int64_t first = tokens->basis->first, ld = tokens->ld;
    for (int64_t from = first; from < tokens->basis->count;) {
        const feature_block block = feature_block_at(tokens, from);
        const int64_t row = from - first;
        vectors_product((product_target){state->matrix + row * state->ld, state->ld, true},
                        (product_operand){block.rows, ld, 1}, (product_rows){rows, state->ld},
                        (product_size){round_up(block.count, ROWS), state->width, count},
                        PRODUCT_FULL);
        for (int64_t m = 0; ones && m < block.count; m++) {
            vec sum = {0};
            for (int64_t t = 0; t < tokens->width; t += LANES)
                sum += vec_load(block.rows + m * ld + t) * vec_load(ones + t);
            state->column[row + m] += vec_sum(sum);
        }
        from += block.count;
    }
}

/* state *= factor. */
static inline void state_scale(const running_state *state, const feature_basis *basis,
                               real factor) {
    int64_t rows = state_rows(basis);
    for (int64_t n = 0; n < rows * state->ld; n += LANES)
        vec_store(state->matrix + n, factor * vec_load(state->matrix + n));
    for (int64_t m = 0; m < rows; m++)
        state->column[m] *= factor;
}

#endif
