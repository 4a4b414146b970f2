/* chunk.h (private): the chunks that a block of tokens is divided into, and how a chunk reads and
 * updates the state before it.
 *
 *     y_i = e^(C_i - C) q_i S + sum_{j<=i} <q_i, k_j> e^(C_i - C_j) u_j
 *     S <- e^(C_last - C) S + sum_j e^(C_last - C_j) k_j u_j^T
 *     u_j = v_j, or with the delta rule beta_j error_j, where
 *     error_j = v_j - e^(C_j - C) k_j S - sum_{m<j} <k_j, k_m> e^(C_j - C_m) u_m
 *
 * C without an index is that of the token before the chunk. If the rule has erase rows of its own,
 * rows f_j replace k_j on the left, and beta is 1. With removal the values are written too, and u_j
 * = -(n_j S + sum_{m<j} <n_j, k_m> v_m + <n_j, b_m> u_m), with the decays of the token before j, is
 * written under b_j.
 *
 * With one decay per head, e^(C_i - C_j) of all pairs is a matrix; per channel it is e^(C_i -
 * C_first) e^(C_first - C_j), and a chunk ends before these factors overflow. With levels, a chunk
 * is a block of the binary tree: its tokens read the same states. */
#ifndef SR_ATTENTION_CPU_LINEAR_CHUNK_H
#define SR_ATTENTION_CPU_LINEAR_CHUNK_H

#include "attention/cpu/linear/rows.h"

#include <math.h>
#include <string.h>

static const double TAME_DECAY = 40.0; /* e^40 and e^-40 are far from overflow and underflow */

/* ---- chunks */

/* A state as a chunk reads and writes it. */
typedef struct linear_part {
    int level;
    bool read;   /* it is not zero */
    bool values; /* the chunk's values are written to it */
} linear_part;

/* Tokens `row` .. row+count-1 of a block. */
typedef struct linear_chunk {
    int64_t at, row, count;
    int64_t width;    /* columns that GEMMs cover */
    int64_t position; /* of the first token in the document */
    int parts;
    linear_part part[SR_LEVELS_MAX + 1];
} linear_chunk;

/* True if no channel decays between two tokens, given by their C, by more than the range of e^x
 * allows. */
static inline bool is_tame(const linear_walk *x, const double *first, const double *later) {
    double largest = 0.0;
    for (int64_t c = 0; c < x->decays; c++) {
        const double size = fabs(later[c] - first[c]);
        largest = size > largest ? size : largest;
    }
    return largest <= TAME_DECAY;
}

/* Number of tokens from `at` on, per channel, before the decay since the first exceeds the range of
 * e^x. Most decays only fall, so that checking the last token suffices. */
static inline int64_t linear_tame(const linear_walk *x, int64_t at, int64_t count) {
    const double *first = x->decay + at * x->decays;
    if (!sr_decay_may_rise(&x->p->attention) && is_tame(x, first, first + (count - 1) * x->decays))
        return count;
    for (int64_t t = 1; t < count; t++)
        if (!is_tame(x, first, first + t * x->decays))
            return t;
    return count;
}

/* Number of tokens from `row` on that form a chunk. Non-finite numbers form chunks of one token: a
 * GEMM would spread them to tokens that do not see them. So do tokens of the delta rule with
 * levels, which splits its weights by level. */
static inline int64_t linear_count(const linear_walk *x, const linear_block *b, int64_t row) {
    const int64_t position = x->position + b->at + row, left = b->count - row;
    int64_t count = x->p->chunk < left ? x->p->chunk : left;
    if (!b->finite || (x->delta && x->leveled))
        return 1;
    if (linear_per_channel(x))
        count = linear_tame(x, b->at + row, count);
    if (!x->leveled)
        return count;
    while (count & (count - 1))
        count &= count - 1;
    const int64_t aligned = position & -position;
    return position > 0 && aligned < count ? aligned : count;
}

static inline linear_chunk linear_chunk_at(const linear_walk *x, const linear_block *b,
                                           int64_t row) {
    linear_chunk c = {.at = b->at + row, .row = row, .count = linear_count(x, b, row)};
    c.width = tile_width(c.count);
    c.position = x->position + c.at;
    for (int bit = 0; x->leveled && bit < x->p->levels - 1; bit++)
        if (c.position >> bit & 1)
            c.part[c.parts++] = (linear_part){.level = bit + 1, .read = true};
    c.part[c.parts++] =
        (linear_part){.read = !x->leveled && (c.position > 0 || x->carried), .values = true};
    return c;
}

/* The level into which all lower ones are merged before a chunk at this position; 0: none. */
static inline int merged_level(const linear_walk *x, int64_t position) {
    return x->leveled && position > 0 ? __builtin_ctzll((unsigned long long)position) + 1 : 0;
}

/* ---- a chunk's buffers */

typedef struct linear_buffers {
    real *rise, *fall; /* (rows), per channel (rows, stride of D): e^(C_i - C), e^(C_last - C_j) */
    real *near_rise, *near_fall; /* the same relative to C_first instead; per channel only */
    real *whole;                 /* (stride of D): e^(C_last - C) */
    real *between;               /* (rows, stride of tokens): e^(C_i - C_j); per head only */
    real *late_keys;             /* (rows, stride of D): keys times fall */
    real *erasing_keys;          /* minus keys times rise; delta rule only */
    real *near_keys;             /* keys as the right side of pairs */
    real *near_own;              /* and as the left side; delta rule only */
    real *near_plain_keys;       /* as near_keys, not rotated */
    real *plain_late_keys;
    real *key_columns, *plain_columns; /* (D, stride of tokens): near keys */
    real *erasing;                     /* (rows, stride of tokens): minus kappa; delta rule only */
    real *error, *u;                   /* (parts, rows, stride of Dv): delta rule only */
    real *ones;                        /* (rows): beta if the rule has erase rows of its own */
    /* Removal only: */
    real *erase_rise, *erase_near_rise; /* like rise, near_rise, for the token before */
    real *erase_between;                /* like between, for the token before */
    real *late_removed, *near_removed;  /* like late_keys, near_keys, for b */
    real *removed_columns;              /* like key_columns, for b */
    real *reading;                      /* (rows, stride of tokens): minus what n reads of the
                                         * keys */
    real *risen_queries;                /* (rows, stride of D) */
    real *near_queries;                 /* (rows, stride of D) */
    real *s, *plain_s;                  /* (rows, stride of tokens) */
} linear_buffers;

/* Rows of u per part, and of all parts: there are several parts only with chunks of one token. */
static inline int64_t linear_part_rows(const srnn_problem *p) {
    return linear_levels(p) > 1 ? ROWS : BLOCK_ROWS;
}

static inline int64_t linear_u_rows(const srnn_problem *p) {
    const bool delta = p->attention.write != SRNN_WRITE_ADD;
    return delta ? (linear_levels(p) + 1) * linear_part_rows(p) : 0;
}

static inline linear_buffers linear_buffers_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv);
    const int64_t token = row_stride(tile_width(LINEAR_BLOCK));
    const bool rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    linear_buffers buffers = {
        .rise = take_rows(layout, d),
        .fall = take_rows(layout, d),
        .near_rise = take_rows(layout, d),
        .near_fall = take_rows(layout, d),
        .whole = take_reals(layout, 1, d),
        .between = take_rows(layout, token),
        .late_keys = take_rows(layout, d),
        .erasing_keys = take_rows(layout, d),
        .near_keys = take_rows(layout, d),
        .near_own = take_rows(layout, d),
        .key_columns = take_reals(layout, p->D, token),
        .erasing = take_rows(layout, token),
        .error = take_reals(layout, linear_u_rows(p), dv),
        .u = take_reals(layout, linear_u_rows(p), dv),
        .risen_queries = take_rows(layout, d),
        .near_queries = take_rows(layout, d),
        .s = take_rows(layout, token),
    };
    if (sr_erases_apart(&p->attention))
        buffers.ones = take_reals(layout, 1, row_stride(BLOCK_ROWS));
    if (p->attention.write == SRNN_WRITE_REMOVAL) {
        buffers.erase_rise = take_rows(layout, d);
        buffers.erase_near_rise = take_rows(layout, d);
        buffers.erase_between = take_rows(layout, token);
        buffers.late_removed = take_rows(layout, d);
        buffers.near_removed = take_rows(layout, d);
        buffers.removed_columns = take_reals(layout, p->D, token);
        buffers.reading = take_rows(layout, token);
    }
    buffers.near_plain_keys = rotated ? take_rows(layout, d) : buffers.near_keys;
    buffers.plain_late_keys = rotated ? take_rows(layout, d) : buffers.late_keys;
    buffers.plain_columns = rotated ? take_reals(layout, p->D, token) : buffers.key_columns;
    buffers.plain_s = rotated ? take_rows(layout, token) : buffers.s;
    return buffers;
}

/* e^x, corrected for the rounding of x to float. */
static inline vec decay_factor_of(const wide_vec *exponent) {
    const wide_vec x = *exponent;
    const vec high = __builtin_convertvector(x, vec), e = vec_exp_decayed(high);
    return e + e * __builtin_convertvector(x - __builtin_convertvector(high, wide_vec), vec);
}

/* out (n) = e^(to - from) */
static inline void decay_factors(real *out, const double *from, const double *to, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    wide_vec x, before;
    for (int64_t d = 0; d < whole; d += LANES) {
        memcpy(&x, to + d, sizeof x);
        memcpy(&before, from + d, sizeof before);
        x -= before;
        vec_store(out + d, decay_factor_of(&x));
    }
    if (whole == n)
        return;
    x = (wide_vec){0};
    for (int64_t d = whole; d < n; d++)
        x[d - whole] = to[d] - from[d];
    vec_store(out + whole, decay_factor_of(&x));
}

/* A row of factors (stride of D). */
static inline void factor_row(real *out, const linear_walk *x, const double *from,
                              const double *to) {
    decay_factors(out, from, to, x->decays);
    for (int64_t d = x->decays; d < x->p->D; d++)
        out[d] = out[0];
}

/* out (count) = e^(sign (C_t - from)) of a chunk's tokens; one decay value per token only. */
static inline void token_factors(real *out, const linear_walk *x, const linear_chunk *c,
                                 double from, double sign) {
    const double *decay = x->decay + c->at;
    for (int64_t t = 0; t < c->count; t += LANES) {
        wide_vec exponents = {0};
        for (int64_t lane = 0; lane < LANES && t + lane < c->count; lane++)
            exponents[lane] = sign * (decay[t + lane] - from);
        vec_store(out + t, decay_factor_of(&exponents));
    }
}

/* out = a b, row by row, with the same row b for all. */
static inline void multiply_rows(real *out, const real *a, const real *b, const linear_walk *x,
                                 int64_t count) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t d = 0; d < x->p->D; d += LANES)
            vec_store(out + r * x->d + d, vec_load(a + r * x->d + d) * vec_load(b + d));
}

/* between (i, j) = e^(C_i - C_j) for j <= i; unspecified numbers follow up to a whole vector. */
static inline void pair_factors(const linear_buffers *buffers, const linear_walk *x,
                                const linear_chunk *c) {
    double decay[LINEAR_BLOCK + LANES] = {0};
    memcpy(decay, x->decay + c->at, (size_t)c->count * sizeof(double));
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t j = 0; j <= i; j += LANES) {
            wide_vec own;
            memcpy(&own, decay + j, sizeof own);
            own = decay[i] - own;
            vec_store(buffers->between + i * x->token + j, decay_factor_of(&own));
        }
}

/* Per channel: the near factors, and the others computed from them; those of queries only if
 * `read`. */
static inline void channel_factors(const linear_buffers *buffers, const linear_walk *x,
                                   const linear_chunk *c, const double *before, bool read) {
    const double *first = x->decay + c->at * x->decays;
    const double *last = first + (c->count - 1) * x->decays;
    real *row = buffers->near_queries; /* not in use yet */
    for (int64_t t = 0; t < c->count; t++) {
        factor_row(buffers->near_rise + t * x->d, x, first, first + t * x->decays);
        for (int64_t d = 0; d < x->p->D; d += LANES)
            vec_store(buffers->near_fall + t * x->d + d,
                      (real)1 / vec_load(buffers->near_rise + t * x->d + d));
    }
    if (read) {
        factor_row(row, x, before, first);
        multiply_rows(buffers->rise, buffers->near_rise, row, x, c->count);
    }
    factor_row(row, x, first, last);
    multiply_rows(buffers->fall, buffers->near_fall, row, x, c->count);
}

/* The factors of a chunk; `before`: C of the token before it. */
static inline void chunk_factors(const linear_buffers *buffers, const linear_walk *x,
                                 const linear_chunk *c, const double *before, bool read) {
    const double *first = x->decay + c->at * x->decays;
    const double *last = first + (c->count - 1) * x->decays;
    if (c->position == 0 && !x->carried)
        before = first;
    factor_row(buffers->whole, x, before, last);
    if (linear_per_channel(x)) {
        channel_factors(buffers, x, c, before, read);
        return;
    }
    token_factors(buffers->fall, x, c, *last, -1.0);
    if (!read)
        return;
    token_factors(buffers->rise, x, c, *before, 1.0);
    pair_factors(buffers, x, c);
}

/* Shifts the chunk's factors by one token; `first` goes to the first. */
static inline void delay_rows(real *out, const real *rows, int64_t stride, int64_t width,
                              real first, const linear_chunk *c) {
    for (int64_t e = 0; e < width; e++)
        out[e] = first;
    for (int64_t r = 1; r < c->count; r++)
        memcpy(out + r * stride, rows + (r - 1) * stride, (size_t)width * sizeof(real));
}

/* With removal the state is read before the decay of the token. */
static inline void erase_factors(const linear_buffers *buffers, const linear_walk *x,
                                 const linear_chunk *c) {
    if (linear_per_channel(x)) {
        const int64_t width = round_up(x->p->D, LANES);
        delay_rows(buffers->erase_rise, buffers->rise, x->d, width, 1, c);
        delay_rows(buffers->erase_near_rise, buffers->near_rise, x->d, width, 1, c);
        return;
    }
    delay_rows(buffers->erase_rise, buffers->rise, 1, 1, 1, c);
    delay_rows(buffers->erase_between, buffers->between, x->token, c->width, 0, c);
    for (int64_t i = 0; i < c->count; i++)
        buffers->erase_between[i * x->token + i] = 0;
}

/* A row's factor within a chunk. */
typedef struct row_scale {
    const real *factors; /* of all rows; NULL: 1 */
    int64_t row;
    real sign;
} row_scale;

/* out (stride of D) = or, if `add`, += a row times its factor. */
static inline void scale_row(real *out, bool add, const real *row, row_scale scale,
                             const linear_walk *x) {
    const bool channel = scale.factors && linear_per_channel(x);
    const vec all =
        vec_all(scale.factors && !channel ? scale.sign * scale.factors[scale.row] : scale.sign);
    const int64_t D = x->p->D, from = scale.row * x->d;
    for (int64_t e = 0; e < D; e += LANES) {
        const vec factor = channel ? all * vec_load(scale.factors + from + e) : all;
        vec_store(out + e, (add ? vec_load(out + e) : (vec){0}) + factor * vec_load(row + e));
    }
}

static inline void scale_rows(real *out, const real *rows, const real *factors, real sign,
                              const linear_walk *x, const linear_chunk *c) {
    for (int64_t r = 0; r < c->count; r++)
        scale_row(out + r * x->d, false, rows + r * x->d, (row_scale){factors, r, sign}, x);
}

/* rows times factors; the rows themselves if there is no decay (or no factor of this kind). */
static inline const real *scaled_rows(real *out, const real *rows, const real *factors,
                                      const linear_walk *x, const linear_chunk *c) {
    if (!factors)
        return rows;
    scale_rows(out, rows, factors, 1, x, c);
    return out;
}

/* A chunk's keys with their various factors; they point into the block's rows if the factor is
 * 1. */
typedef struct linear_keys {
    const real *near, *own, *late, *erasing;
    const real *plain_near, *plain_late;
    const real *values, *beta;
    const real *rise, *fall, *near_rise, *near_fall; /* NULL: 1 */
    const real *erase_rise, *erase_near_rise;        /* of the erase rows */
    const real *late_removed, *near_removed;         /* of the keys under which the rule erases */
} linear_keys;

/* Both sides of pairs, and the factors of their products. */
typedef struct linear_pairs {
    const real *queries, *keys; /* (count, stride of D) */
    const real *columns;        /* the keys, (D, stride of tokens) */
    const real *between;        /* or NULL */
    real sign;                  /* 1, or -1 for negated products */
} linear_pairs;

/* Clears row i of pairs after the diagonal, as far as triangular GEMMs read it: to the end of the
 * diagonal's block of rows. */
static inline void clear_later(real *row, int64_t i) {
    const int64_t own = i / LANES * LANES, past = (i / ROWS + 1) * ROWS;
    const vec_bits later = (vec_bits)(vec_count() + (real)own > (real)i);
    vec_store(row + own, vec_select(later, (vec){0}, vec_load(row + own)));
    for (int64_t j = own + LANES; j < past; j += LANES)
        vec_store(row + j, (vec){0});
}

/* Multiplies s by the factors of the pairs up to the diagonal, and clears it after the diagonal. */
static inline void weigh_pairs(real *s, const linear_pairs *pairs, const linear_walk *x,
                               const linear_chunk *c) {
    for (int64_t i = 0; i < c->count; i++) {
        real *row = s + i * x->token;
        const real *between = pairs->between ? pairs->between + i * x->token : NULL;
        for (int64_t j = 0; between && j <= i; j += LANES)
            vec_store(row + j, vec_load(row + j) * (pairs->sign * vec_load(between + j)));
        for (int64_t j = 0; !between && pairs->sign < 0 && j <= i; j += LANES)
            vec_store(row + j, -vec_load(row + j));
        clear_later(row, i);
    }
}

/* s (count, width) of the pairs, lower triangular. */
static inline void pair_products(real *s, const linear_pairs *pairs, const linear_walk *x,
                                 const linear_chunk *c) {
    if (c->count == 1) {
        s[0] = pairs->sign * (real)row_dot(pairs->queries, pairs->keys, x->p->D);
        return;
    }
    product((product_target){s, x->token, false}, (product_operand){pairs->queries, x->d, 1},
            (product_rows){pairs->columns, x->token},
            (product_size){round_up(c->count, ROWS), c->width, x->p->D}, PRODUCT_C_LOWER);
    weigh_pairs(s, pairs, x, c);
}

static inline void columns_of(real *columns, const real *rows, const linear_walk *x,
                              const linear_chunk *c) {
    if (c->count > 1)
        transpose_rows(columns, x->token, rows, x->d, c->count, x->p->D, c->width);
}

static inline const real *pair_decays(const linear_buffers *buffers, const linear_walk *x) {
    return x->decay && !linear_per_channel(x) ? buffers->between : NULL;
}

/* The same for the erase rows. */
static inline const real *erase_decays(const linear_buffers *buffers, const linear_walk *x) {
    return x->removal && pair_decays(buffers, x) ? buffers->erase_between : pair_decays(buffers, x);
}

/* The erase rows against the keys under which earlier tokens erase; the delta rule subtracts
 * them. */
static inline linear_pairs erasing_pairs(const linear_buffers *buffers, const linear_keys *k,
                                         const linear_walk *x) {
    return (linear_pairs){k->own, k->near_removed,
                          x->removal ? buffers->removed_columns : buffers->key_columns,
                          erase_decays(buffers, x), -1};
}

/* The erase rows against the keys of the values, which removal reads. */
static inline linear_pairs reading_pairs(const linear_buffers *buffers, const linear_keys *k,
                                         const linear_walk *x) {
    return (linear_pairs){k->own, k->near, buffers->key_columns, erase_decays(buffers, x), -1};
}

/* s of the pairs, strictly lower. */
static inline void strict_products(real *s, const linear_pairs *pairs, const linear_walk *x,
                                   const linear_chunk *c) {
    pair_products(s, pairs, x, c);
    for (int64_t i = 0; i < c->count; i++)
        s[i * x->token + i] = 0;
}

/* Erase rows of the rule: buffers->erasing_keys, and buffers->erasing, strictly lower
 * triangular. */
static inline void erasing_of(const linear_buffers *buffers, const real *erase, linear_keys *k,
                              const linear_walk *x, const linear_chunk *c) {
    k->own = scaled_rows(buffers->near_own, erase, k->erase_near_rise, x, c);
    k->erasing = buffers->erasing_keys;
    scale_rows(buffers->erasing_keys, erase, k->erase_rise, -1, x, c);
    const linear_pairs pairs = erasing_pairs(buffers, k, x), reading = reading_pairs(buffers, k, x);
    strict_products(buffers->erasing, &pairs, x, c);
    if (x->removal)
        strict_products(buffers->reading, &reading, x, c);
}

/* The keys under which the rule erases: with removal its own, otherwise those of the values. */
static inline void removed_of(const linear_buffers *buffers, const real *removed, linear_keys *k,
                              const linear_walk *x, const linear_chunk *c) {
    k->erase_rise = k->rise;
    k->erase_near_rise = k->near_rise;
    k->late_removed = k->late;
    k->near_removed = k->near;
    if (!x->removal)
        return;
    if (x->decay) {
        erase_factors(buffers, x, c);
        k->erase_rise = buffers->erase_rise;
        k->erase_near_rise = k->near_rise ? buffers->erase_near_rise : NULL;
    }
    k->late_removed = scaled_rows(buffers->late_removed, removed, k->fall, x, c);
    k->near_removed = scaled_rows(buffers->near_removed, removed, k->near_fall, x, c);
    columns_of(buffers->removed_columns, k->near_removed, x, c);
}

/* beta of a chunk's tokens. */
static inline const real *chunk_beta(const linear_buffers *buffers, const linear_walk *x,
                                     const linear_chunk *c) {
    const real *beta = linear_beta(x);
    if (beta)
        return beta + c->at;
    for (int64_t t = 0; t < c->count; t++)
        buffers->ones[t] = 1;
    return buffers->ones;
}

/* The keys of a chunk. If not `read`, the chunk only updates the state (the delta rule reads it
 * anyway). */
static inline linear_keys linear_keys_of(const linear_buffers *buffers, const linear_rows *rows,
                                         const linear_walk *x, const linear_chunk *c,
                                         const linear_state *state, bool read) {
    const real *keys = rows->keys + c->row * x->d, *plain = rows->plain_keys + c->row * x->d;
    const bool channel = linear_per_channel(x);
    linear_keys k = {.values = rows->values + c->row * x->dv};
    read = read || x->delta;
    if (x->decay) {
        chunk_factors(buffers, x, c, state->reference, read);
        k.rise = buffers->rise;
        k.fall = buffers->fall;
        k.near_rise = channel ? buffers->near_rise : NULL;
        k.near_fall = channel ? buffers->near_fall : NULL;
    }
    k.late = scaled_rows(buffers->late_keys, keys, k.fall, x, c);
    k.plain_late = x->rotated ? scaled_rows(buffers->plain_late_keys, plain, k.fall, x, c) : k.late;
    if (!read)
        return k;
    k.near = scaled_rows(buffers->near_keys, keys, k.near_fall, x, c);
    columns_of(buffers->key_columns, k.near, x, c);
    k.plain_near =
        x->rotated ? scaled_rows(buffers->near_plain_keys, plain, k.near_fall, x, c) : k.near;
    if (x->rotated && x->sums)
        columns_of(buffers->plain_columns, k.plain_near, x, c);
    if (!x->delta)
        return k;
    k.beta = chunk_beta(buffers, x, c);
    removed_of(buffers, x->removal ? rows->erase.removed + c->row * x->d : NULL, &k, x, c);
    erasing_of(buffers, x->apart ? rows->erase.erase + c->row * x->d : keys, &k, x, c);
    return k;
}

/* ---- writes */

static inline real *linear_matrix_at(const linear_state *state, const linear_walk *x, int level) {
    return state->matrix + level * linear_matrix(x->p);
}

static inline real *linear_column_at(const linear_state *state, const linear_walk *x, int level) {
    return state->column + level * x->d;
}

/* True if the chunk writes to this part: its values, or what the delta rule erases. */
static inline bool is_written(const linear_walk *x, const linear_part *part) {
    return x->delta || part->values;
}

/* u of part n (count, stride of Dv). */
static inline const real *part_u(const linear_buffers *buffers, const linear_keys *k,
                                 const linear_walk *x, int n) {
    return x->delta ? buffers->u + n * linear_part_rows(x->p) * x->dv : k->values;
}

/* Forward substitution: one vector of columns of rows from .. from+ROWS-1, as far as the chunk has
 * them; on entry error includes the terms of all earlier blocks. */
static inline void solve_block(real *error, real *u, const real *erasing, const real *beta,
                               const linear_walk *x, int64_t rows) {
    vec own[ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows)
            return;
        vec left = vec_load(error + i * x->dv);
#pragma GCC unroll 16
        for (int j = 0; j < i; j++)
            left += erasing[i * x->token + j] * own[j];
        own[i] = beta[i] * left;
        vec_store(error + i * x->dv, left);
        vec_store(u + i * x->dv, own[i]);
    }
}

/* u = beta error by forward substitution, block by block; on entry error has no terms of the
 * chunk's own tokens. */
static inline void solve_rows(real *error, real *u, const linear_buffers *buffers,
                              const linear_keys *k, const linear_walk *x, const linear_chunk *c) {
    for (int64_t from = 0; from < c->count; from += ROWS) {
        if (from > 0)
            product((product_target){error + from * x->dv, x->dv, true},
                    (product_operand){buffers->erasing + from * x->token, x->token, 1},
                    (product_rows){u, x->dv}, (product_size){ROWS, value_columns(x), from},
                    PRODUCT_FULL);
        for (int64_t d = 0; d < value_columns(x); d += LANES)
            solve_block(error + from * x->dv + d, u + from * x->dv + d,
                        buffers->erasing + from * x->token + from, k->beta + from, x,
                        c->count - from);
    }
}

/* error and u of all parts; nothing to do without the delta rule. */
static inline void linear_write(const linear_buffers *buffers, const linear_keys *k,
                                const linear_walk *x, const linear_chunk *c,
                                const linear_state *state) {
    for (int n = 0; x->delta && n < c->parts; n++) {
        const int64_t at = n * linear_part_rows(x->p) * x->dv;
        const size_t bytes = (size_t)(c->count * x->dv) * sizeof(real);
        if (c->part[n].values && !x->removal)
            memcpy(buffers->error + at, k->values, bytes);
        else
            memset(buffers->error + at, 0, bytes);
        if (c->part[n].read)
            rows_product((product_target){buffers->error + at, x->dv, true},
                         (product_operand){k->erasing, x->d, 1},
                         (product_rows){linear_matrix_at(state, x, c->part[n].level), x->dv},
                         (product_size){c->count, value_columns(x), x->p->D}, PRODUCT_FULL);
        if (x->removal && c->count > 1)
            rows_product((product_target){buffers->error + at, x->dv, true},
                         (product_operand){buffers->reading, x->token, 1},
                         (product_rows){k->values, x->dv},
                         (product_size){c->count, value_columns(x), c->count}, PRODUCT_A_LOWER);
        solve_rows(buffers->error + at, buffers->u + at, buffers, k, x, c);
    }
}

/* The factors of a level's rows, or NULL. */
static inline real *linear_scale_at(const linear_state *state, const linear_walk *x, int level) {
    return state->scale ? state->scale + level * x->d : NULL;
}

static inline void fill_scale(real *scale, const linear_walk *x, real value) {
    for (int64_t e = 0; e < x->d; e++)
        scale[e] = value;
}

/* True if a row is there and is all zeros. */
static inline bool is_empty(const real *scale, const linear_walk *x) {
    for (int64_t e = 0; scale && e < x->p->D; e++)
        if (scale[e] != 0)
            return false;
    return scale != NULL;
}

/* Rows of a matrix (D, stride of Dv) times e^(C_last - C). */
static inline void decay_matrix(real *matrix, const linear_buffers *buffers, const linear_walk *x) {
    for (int64_t e = 0; x->decay && e < x->p->D; e++)
        for (int64_t d = 0; d < value_columns(x); d += LANES)
            vec_store(matrix + e * x->dv + d, buffers->whole[e] * vec_load(matrix + e * x->dv + d));
}

/* What level 0 gets of a chunk: one token by its rows, others in the matrix. */
static inline void keep_last(const linear_state *state, const linear_keys *k, const linear_walk *x,
                             bool one) {
    fill_scale(state->scale, x, one ? 0 : 1);
    memset(state->last_key, 0, (size_t)x->d * sizeof(real));
    if (!one)
        return;
    memcpy(state->last_key, k->late, (size_t)x->p->D * sizeof(real));
    memcpy(state->last_value, k->values, (size_t)value_columns(x) * sizeof(real));
}

/* Updates the states with the chunk. */
static inline void linear_move(const linear_state *state, const linear_buffers *buffers,
                               const linear_keys *k, const linear_walk *x, const linear_chunk *c) {
    const int64_t D = x->p->D;
    for (int n = 0; n < c->parts; n++) {
        const linear_part *part = &c->part[n];
        real *matrix = linear_matrix_at(state, x, part->level);
        real *column = linear_column_at(state, x, part->level);
        real *scale = linear_scale_at(state, x, part->level);
        const bool one = scale && part->values && c->count == 1;
        if (scale && part->values)
            keep_last(state, k, x, one);
        else if (scale && x->decay)
            multiply_rows(scale, scale, buffers->whole, x, 1);
        else if (part->read)
            decay_matrix(matrix, buffers, x);
        const product_size size = {round_up(D, ROWS), value_columns(x), c->count};
        if (is_written(x, part) && !one)
            product((product_target){matrix, x->dv, part->read},
                    (product_operand){x->delta ? k->late_removed : k->late, 1, x->d},
                    (product_rows){part_u(buffers, k, x, n), x->dv}, size, PRODUCT_FULL);
        if (x->removal)
            product((product_target){matrix, x->dv, true}, (product_operand){k->late, 1, x->d},
                    (product_rows){k->values, x->dv}, size, PRODUCT_FULL);
        for (int64_t e = 0; x->sums && e < D; e++) {
            column[e] = part->read ? column[e] * (x->decay ? buffers->whole[e] : 1) : 0;
            for (int64_t t = 0; part->values && t < c->count; t++)
                column[e] += k->plain_late[t * x->d + e];
        }
    }
    if (x->decay)
        memcpy(state->reference, x->decay + (c->at + c->count - 1) * x->decays,
               (size_t)x->decays * sizeof(double));
}

/* A matrix becomes the sum of others (D, stride of Dv), rows times their factors where they have
 * any, and of key value', where `key` is not NULL. */
typedef struct matrix_sum {
    const real *from[SR_LEVELS_MAX], *scale[SR_LEVELS_MAX], *key, *value;
    int count;
} matrix_sum;

static inline void add_matrices(real *matrix, const matrix_sum *sum, const linear_walk *x) {
    for (int64_t e = 0; e < x->p->D; e++)
        for (int64_t d = 0; d < value_columns(x); d += LANES) {
            vec all = sum->key ? sum->key[e] * vec_load(sum->value + d) : (vec){0};
            for (int n = 0; n < sum->count; n++)
                all +=
                    (sum->scale[n] ? sum->scale[n][e] : 1) * vec_load(sum->from[n] + e * x->dv + d);
            vec_store(matrix + e * x->dv + d, all);
        }
}

/* Merges the lower levels into the one that follows from the chunk's position. */
static inline void linear_merge(const linear_state *state, const linear_walk *x,
                                const linear_chunk *c) {
    const int merged = merged_level(x, c->position);
    if (merged == 0)
        return;
    matrix_sum sum = {.count = 0};
    real *column = linear_column_at(state, x, merged);
    for (int level = 0; level < merged; level++) {
        real *lower = linear_column_at(state, x, level);
        for (int64_t e = 0; e < x->p->D; e++)
            column[e] = (level ? column[e] : 0) + lower[e];
        memset(lower, 0, (size_t)x->d * sizeof(real));
        sum.from[sum.count] = linear_matrix_at(state, x, level);
        sum.scale[sum.count] = linear_scale_at(state, x, level);
        sum.count += !is_empty(sum.scale[sum.count], x);
    }
    if (state->scale && !is_empty(state->last_key, x)) {
        sum.key = state->last_key;
        sum.value = state->last_value;
    }
    add_matrices(linear_matrix_at(state, x, merged), &sum, x);
    for (int level = 0; level < merged; level++)
        if (state->scale)
            fill_scale(linear_scale_at(state, x, level), x, 0);
        else
            memset(linear_matrix_at(state, x, level), 0,
                   (size_t)linear_matrix(x->p) * sizeof(real));
    if (!state->scale)
        return;
    fill_scale(linear_scale_at(state, x, merged), x, 1);
    memset(state->last_key, 0, (size_t)x->d * sizeof(real));
}

static inline void linear_state_clear(const linear_state *state, const srnn_problem *p) {
    const size_t levels = (size_t)linear_levels(p);
    memset(state->matrix, 0, levels * (size_t)linear_matrix(p) * sizeof(real));
    memset(state->column, 0, levels * (size_t)row_stride(p->D) * sizeof(real));
    if (!state->scale)
        return;
    memset(state->scale, 0, levels * (size_t)row_stride(p->D) * sizeof(real));
    memset(state->last_key, 0, (size_t)row_stride(p->D) * sizeof(real));
}

/* ---- initial and final states */

static inline carried_matrix linear_carried(const linear_state *state, const linear_walk *x) {
    return (carried_matrix){state->matrix, state->column, x->p->D, x->dv};
}

/* The state before the document: the initial one, or nothing. */
static inline void linear_state_begin(const linear_state *state, const linear_walk *x) {
    linear_state_clear(state, x->p);
    if (!x->carried)
        return;
    const carried_matrix to = linear_carried(state, x);
    memset(state->reference, 0, (size_t)x->decays * sizeof(double));
    carried_load(&to, x->call->plan->states.initial, x->p, x->document->b, x->kv, 1);
}

/* What the state after the last token is multiplied by until the next one: a learned decay counts
 * the gate of a token after it. */
static inline double linear_end(const linear_walk *x) {
    const int64_t last = x->document->start + x->document->length - 1;
    if (x->p->attention.decay != SRNN_DECAY_LEARNED)
        return 1.0;
    return exp((double)*tensor_row(x->call->in->decay, x->document->b,
                                   sr_decay_head(&x->call->plan->problem, x->kv), last) /
               DECAY_DIVISOR);
}

/* ---- levels */

/* The levels of a chunk's first query of head g, or NULL. */
static inline const double *chunk_levels(const linear_walk *x, const linear_chunk *c, int g) {
    const int64_t row = sr_row_index(x->p, x->p->H, x->document->b, x->kv * x->group + g,
                                     x->document->start + c->at);
    return x->leveled ? x->row_work->level + row * x->p->levels : NULL;
}

/* Keys of the chunk before row i at level bit + 1; `bit` is set in i. */
static inline seen_keys level_keys(int64_t i, int bit) {
    const int64_t low = i >> (bit + 1) << (bit + 1);
    return (seen_keys){low, low + ((int64_t)1 << bit)};
}

/* out = s times levels: the part's level on the diagonal, and for earlier keys the level of the
 * pair. */
static inline void weigh_levels(real *out, const real *s, const double *levels,
                                const linear_part *part, const linear_walk *x,
                                const linear_chunk *c) {
    for (int64_t i = 0; i < c->count; i++) {
        const double *own = levels + i * x->p->levels;
        const real *from = s + i * x->token;
        real *to = out + i * x->token;
        to[i] = (real)own[part->level] * from[i];
        for (int bit = 0; i >> bit; bit++) {
            const seen_keys keys = level_keys(i, bit);
            for (int64_t j = keys.low; i >> bit & 1 && j < keys.high; j++)
                to[j] = (real)own[bit + 1] * from[j];
        }
    }
    for (int64_t i = 0; out != s && i < c->count; i++)
        clear_later(out + i * x->token, i);
}

#endif
