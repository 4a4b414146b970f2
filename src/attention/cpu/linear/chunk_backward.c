/* chunk_backward.c: linear scores through a state, backward: one chunk.
 *
 * R is the gradient of the state. With a chunk's rows named as in chunk.h:
 *
 *     d_u = late_keys R + w^T dy        d_late_keys = u R^T       d_risen_queries = dy S^T
 *     dw = dy u^T
 *     R <- e^(C_last - C) R + risen_queries^T dy
 *
 * With the delta rule r = (1 + kappa^T beta)^-1 d_u, and B = beta r replaces d_u in the gradient of
 * v:
 *
 *     d_erasing_keys = B S^T            d_erasing = B u^T         R <- R + erasing_keys^T B
 *
 * With removal the values are a second set of written rows, under keys of their own, and B reaches
 * them through what the rule reads of them. */
#include "attention/cpu/linear/backward.h"

/* out += sign times rows times factors; factors NULL: 1. */
static void add_scaled(real *out, const real *rows, const real *factors, real sign,
                       const linear_chunk_place *at) {
    const int64_t d = at->x->d;
    for (int64_t r = 0; r < at->c->count; r++)
        scale_row(out + r * d, true, rows + r * d, (row_scale){factors, r, sign}, at->x);
}

/* change of token r += sign <a, b>, per decay value. */
static void add_change(const linear_chunk_place *at, int64_t r, const real *a, const real *b,
                       double sign) {
    const linear_walk *x = at->x;
    double *change = at->w->change + r * x->decays;
    if (x->decays == 1)
        change[0] += sign * row_dot(a, b, x->p->D);
    for (int64_t e = 0; x->decays > 1 && e < x->decays; e++)
        change[e] += sign * (double)a[e] * (double)b[e];
}

static void add_changes(const linear_chunk_place *at, const real *a, const real *b, double sign) {
    for (int64_t r = 0; at->x->decay && r < at->c->count; r++)
        add_change(at, r, a + r * at->x->d, b + r * at->x->d, sign);
}

/* The same for rows that read the state before the chunk, from row `first` on. */
static void add_across(const linear_chunk_place *at, const real *a, const real *b, int64_t first) {
    const linear_walk *x = at->x;
    for (int64_t r = first; at->w->across && r < at->c->count; r++)
        for (int64_t e = 0; e < x->decays; e++)
            at->w->across[e] += (double)a[r * x->d + e] * (double)b[r * x->d + e];
}

/* The same for the erase rows. With removal they have the decays of the token before, and the first
 * row has none of this chunk. */
static void add_erase_changes(const linear_chunk_place *at, const real *a, const real *b) {
    const int64_t d = at->x->d;
    if (!at->x->removal)
        add_changes(at, a, b, 1.0);
    for (int64_t r = 1; at->x->removal && at->x->decay && r < at->c->count; r++)
        add_change(at, r - 1, a + r * d, b + r * d, 1.0);
}

/* Rows that a chunk writes, and the keys under which it writes them. */
typedef struct written {
    const real *rows;                  /* (count, stride of Dv) */
    const real *late, *near, *columns; /* keys, as linear_keys has them */
    real *d_rows, *d_keys;             /* gradients of these, in the block's buffers */
} written;

/* transposed (Dv, stride of D) = a matrix of D rows. */
static void transpose_matrix(const linear_chunk_place *at, const real *matrix) {
    const linear_walk *x = at->x;
    transpose_rows(at->w->transposed, x->d, matrix, x->dv, x->p->D, x->p->Dv,
                   round_up(x->p->D, COLUMNS));
}

/* product_d = rows (count, stride of Dv) times the matrix in `transposed`. */
static void through_transposed(const linear_chunk_place *at, const real *rows) {
    const linear_walk *x = at->x;
    rows_product((product_target){at->w->product_d, x->d, false}, (product_operand){rows, x->dv, 1},
                 (product_rows){at->w->transposed, x->d},
                 (product_size){at->c->count, round_up(x->p->D, COLUMNS), x->p->Dv}, PRODUCT_FULL);
}

/* R of a level += rows (count, stride of D)^T times others (count, stride of Dv). */
static void add_to_gradient(const linear_chunk_place *at, int level, const real *rows,
                            const real *others) {
    const linear_walk *x = at->x;
    product((product_target){linear_matrix_at(&at->w->gradient, x, level), x->dv, true},
            (product_operand){rows, 1, x->d}, (product_rows){others, x->dv},
            (product_size){round_up(x->p->D, ROWS), value_columns(x), at->c->count}, PRODUCT_FULL);
}

static real *part_d_u(const linear_chunk_place *at, int n) {
    return at->w->d_u + (at->x->delta ? n * linear_part_rows(at->x->p) * at->x->dv : 0);
}

/* The rows written to part n: values, or the delta rule's u. */
static written written_of(const linear_chunk_place *at, int n) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_keys *k = at->k;
    return (written){
        .rows = part_u(&w->buffers, k, x, n),
        .late = x->delta ? k->late_removed : k->late,
        .near = x->delta ? k->near_removed : k->near,
        .columns = x->removal ? w->buffers.removed_columns : w->buffers.key_columns,
        .d_rows = part_d_u(at, n),
        .d_keys = (x->removal ? w->d_removed : w->d_keys) + at->c->row * x->d,
    };
}

/* The values themselves, which removal writes separately. */
static written values_of(const linear_chunk_place *at) {
    const linear_workspace *w = at->w;
    const linear_keys *k = at->k;
    return (written){
        .rows = k->values,
        .late = k->late,
        .near = k->near,
        .columns = w->buffers.key_columns,
        .d_rows = w->d_own_values,
        .d_keys = w->d_keys + at->c->row * at->x->d,
    };
}

/* <a, b> of two state matrices, accumulated in two vectors. */
static double matrix_dot(const real *a, const real *b, const linear_walk *x) {
    const int64_t Dv = x->p->Dv, vectors = Dv / LANES * LANES;
    wide_vec sums = {0};
    double rest = 0.0;
    for (int64_t row = 0; row < x->p->D * x->dv; row += x->dv) {
        for (int64_t d = row; d < row + vectors; d += LANES)
            sums += __builtin_convertvector(vec_load(a + d), wide_vec) *
                    __builtin_convertvector(vec_load(b + d), wide_vec);
        for (int64_t d = row + vectors; d < row + Dv; d++)
            rest += (double)a[d] * (double)b[d];
    }
    return rest + wide_vec_sum(&sums);
}

/* Adds <R, S> of a level, in total or per row, to the gradient of the gates of the whole chunk. */
static void add_onward(const linear_chunk_place *at, int level) {
    const linear_walk *x = at->x;
    const real *R = linear_matrix_at(&at->w->gradient, x, level);
    const real *S = linear_matrix_at(at->state, x, level);
    const real *r = linear_column_at(&at->w->gradient, x, level);
    const real *s = linear_column_at(at->state, x, level);
    double *onward = at->w->onward;
    const real *whole = at->w->buffers.whole;
    if (x->decays == 1)
        onward[0] +=
            (double)whole[0] * (matrix_dot(R, S, x) + (x->sums ? row_dot(r, s, x->p->D) : 0.0));
    for (int64_t e = 0; x->decays > 1 && e < x->p->D; e++) {
        const double sums = x->sums ? (double)r[e] * (double)s[e] : 0.0;
        const double own =
            (double)whole[e] * (row_dot(R + e * x->dv, S + e * x->dv, x->p->Dv) + sums);
        onward[e] += own;
        if (at->w->across)
            at->w->across[e] += own;
    }
}

/* Backward of the values that removal writes separately: d_rows, and d_keys through the state. */
static void values_backward(const linear_chunk_place *at, const real *R) {
    const linear_walk *x = at->x;
    const written own = values_of(at);
    rows_product((product_target){own.d_rows, x->dv, false}, (product_operand){own.late, x->d, 1},
                 (product_rows){R, x->dv}, (product_size){at->c->count, value_columns(x), x->p->D},
                 PRODUCT_FULL);
    through_transposed(at, own.rows);
    add_changes(at, own.late, at->w->product_d, -1.0);
    add_scaled(own.d_keys, at->w->product_d, at->k->fall, 1, at);
}

/* Backward of the state update: d_u, d_late, and R before the chunk without the queries'
 * contribution. */
static void states_backward(const linear_chunk_place *at) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    memset(w->d_late, 0, (size_t)(c->count * x->d) * sizeof(real));
    for (int n = 0; n < c->parts; n++) {
        const linear_part *part = &c->part[n];
        real *R = linear_matrix_at(&w->gradient, x, part->level);
        real *column = linear_column_at(&w->gradient, x, part->level);
        const written own = written_of(at, n);
        if (is_written(x, part)) {
            rows_product((product_target){own.d_rows, x->dv, false},
                         (product_operand){own.late, x->d, 1}, (product_rows){R, x->dv},
                         (product_size){c->count, value_columns(x), x->p->D}, PRODUCT_FULL);
            transpose_matrix(at, R);
            through_transposed(at, own.rows);
            add_scaled(w->d_late, w->product_d, NULL, 1, at);
        }
        if (x->removal)
            values_backward(at, R);
        for (int64_t r = 0; x->sums && part->values && r < c->count; r++) {
            real *to = w->d_plain_keys + (c->row + r) * x->d;
            scale_row(to, true, column, (row_scale){at->k->fall, r, 1}, x);
            if (x->decay)
                add_change(at, r, at->k->plain_late + r * x->d, column, -1.0);
        }
        if (part->read && x->decay)
            add_onward(at, part->level);
        if (part->read)
            decay_matrix(R, &w->buffers, x);
        else
            memset(R, 0, (size_t)linear_matrix(x->p) * sizeof(real));
        for (int64_t e = 0; e < x->p->D; e++)
            column[e] *= part->read ? (x->decay ? w->buffers.whole[e] : 1) : 0;
    }
    const written own = written_of(at, 0);
    add_changes(at, own.late, w->d_late, -1.0);
    add_scaled(own.d_keys, w->d_late, at->k->fall, 1, at);
}

/* ---- the queries of head g */

typedef struct query_at {
    linear_chunk_place at;
    int g;
    const real *dy;            /* (count, stride of Dv) */
    const real *d_row_sum;     /* (count) */
    const double *levels;      /* (count, levels), or NULL */
    double *d_levels;          /* the same */
    real *d_queries, *d_plain; /* (count, stride of D) */
} query_at;

static query_at query_of(const linear_chunk_place *at, int g) {
    const linear_walk *x = at->x;
    const int64_t rows = g * BLOCK_ROWS + at->c->row;
    const int64_t row = sr_row_index(x->p, x->p->H, x->document->b, x->kv * x->group + g,
                                     x->document->start + at->c->at);
    return (query_at){
        .at = *at,
        .g = g,
        .dy = at->w->d_numerators + rows * x->dv,
        .d_row_sum = x->row_work->d_row_sum + row,
        .levels = chunk_levels(x, at->c, g),
        .d_levels = x->leveled ? x->row_work->d_level + row * x->p->levels : NULL,
        .d_queries = at->w->d_queries + rows * x->d,
        .d_plain = at->w->d_plain_queries + rows * x->d,
    };
}

static const real *queries_of(const query_at *q, const real *all) {
    return all + (q->g * BLOCK_ROWS + q->at.c->row) * q->at.x->d;
}

/* The row sums' contribution to the gradient of a state's column. */
static void column_backward(const query_at *q, const linear_part *part) {
    const linear_chunk_place *at = &q->at;
    const linear_walk *x = at->x;
    const real *s = linear_column_at(at->state, x, part->level);
    real *gradient = linear_column_at(&at->w->gradient, x, part->level);
    const real *plain =
        scaled_rows(at->w->buffers.risen_queries, queries_of(q, at->w->rows.plain_queries),
                    at->k->rise, x, at->c);
    for (int64_t r = 0; r < at->c->count; r++) {
        const double level = q->levels ? q->levels[r * x->p->levels + part->level] : 1.0;
        const double along = row_dot(plain + r * x->d, s, x->p->D) * (double)q->d_row_sum[r];
        const real weight = (real)(level * (double)q->d_row_sum[r]);
        real *row = at->w->product_d;
        if (q->d_levels)
            q->d_levels[r * x->p->levels + part->level] += along;
        for (int64_t e = 0; e < x->p->D; e++) {
            row[e] = weight * s[e];
            gradient[e] += weight * plain[r * x->d + e];
        }
        scale_row(q->d_plain + r * x->d, true, row, (row_scale){at->k->rise, r, 1}, x);
        if (x->decay)
            add_change(at, r, plain + r * x->d, row, 1.0);
        for (int64_t e = 0; at->w->across && e < x->decays; e++)
            at->w->across[e] += (double)plain[r * x->d + e] * (double)row[e];
    }
}

/* Backward of reading a state with the queries; its matrix is in `transposed`. */
static void read_backward(const query_at *q, const linear_part *part) {
    const linear_chunk_place *at = &q->at;
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const real *risen =
        scaled_rows(w->buffers.risen_queries, queries_of(q, w->rows.queries), at->k->rise, x, c);
    const real *dy = q->dy;
    through_transposed(at, dy);
    for (int64_t r = 0; q->levels && r < c->count; r++) {
        const double level = q->levels[r * x->p->levels + part->level];
        q->d_levels[r * x->p->levels + part->level] +=
            row_dot(risen + r * x->d, w->product_d + r * x->d, x->p->D);
        for (int64_t e = 0; e < x->p->D; e++)
            w->product_d[r * x->d + e] *= (real)level;
        for (int64_t d = 0; d < value_columns(x); d += LANES)
            vec_store(w->product_dv + r * x->dv + d, (real)level * vec_load(dy + r * x->dv + d));
    }
    add_to_gradient(at, part->level, risen, q->levels ? w->product_dv : dy);
    add_changes(at, risen, w->product_d, 1.0);
    add_across(at, risen, w->product_d, 0);
    add_scaled(q->d_queries, w->product_d, at->k->rise, 1, at);
    if (x->sums)
        column_backward(q, part);
}

/* Gradients of levels from the pairs s and the gradients of their weights. */
static void levels_backward(const query_at *q, const real *s, const real *d,
                            const linear_part *part) {
    const linear_walk *x = q->at.x;
    for (int64_t i = 0; i < q->at.c->count; i++) {
        double *out = q->d_levels + i * x->p->levels;
        const real *own = s + i * x->token, *d_own = d + i * x->token;
        out[part->level] += (double)own[i] * (double)d_own[i];
        for (int bit = 0; i >> bit; bit++) {
            const seen_keys keys = level_keys(i, bit);
            for (int64_t j = keys.low; i >> bit & 1 && j < keys.high; j++)
                out[bit + 1] += (double)own[j] * (double)d_own[j];
        }
    }
}

/* Destinations of the gradients of pairs. */
typedef struct pair_gradients {
    const linear_pairs *pairs;
    real *d_queries, *d_keys; /* (count, stride of D), added to */
    const real *rise, *fall;  /* the factors of the pairs' rows; NULL: 1 */
    bool erases;              /* the left side consists of erase rows */
} pair_gradients;

/* Adds the gradients of both sides and of the gates between, given those of the pairs s in d
 * (count, tokens). */
static void pairs_backward(const linear_chunk_place *at, const real *s, real *d,
                           const pair_gradients *to) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const bool channel = linear_per_channel(x);
    const int64_t columns = round_up(x->p->D, COLUMNS);
    const int64_t delay = to->erases && x->removal ? 1 : 0;
    for (int64_t i = delay; x->decay && !channel && i < c->count; i++)
        w->change[i - delay] += gates_between(w->change, s + i * x->token, d + i * x->token, i);
    weigh_pairs(d, to->pairs, x, c);
    rows_product((product_target){w->product_d, x->d, false}, (product_operand){d, x->token, 1},
                 (product_rows){to->pairs->keys, x->d}, (product_size){c->count, columns, c->count},
                 PRODUCT_A_LOWER);
    if (channel && to->erases)
        add_erase_changes(at, to->pairs->queries, w->product_d);
    else if (channel)
        add_changes(at, to->pairs->queries, w->product_d, 1.0);
    add_scaled(to->d_queries, w->product_d, to->rise, 1, at);
    rows_product((product_target){w->product_d, x->d, false}, (product_operand){d, 1, x->token},
                 (product_rows){to->pairs->queries, x->d},
                 (product_size){c->count, columns, c->count}, PRODUCT_A_UPPER);
    if (channel)
        add_changes(at, to->pairs->keys, w->product_d, -1.0);
    add_scaled(to->d_keys, w->product_d, to->fall, 1, at);
}

/* d (count, tokens) = dy u^T; u_columns holds u transposed. */
static void weights_gradient(real *d, const linear_chunk_place *at, const real *dy, const real *u) {
    const linear_walk *x = at->x;
    if (at->c->count == 1)
        d[0] = (real)row_dot(dy, u, x->p->Dv);
    else
        product((product_target){d, x->token, false}, (product_operand){dy, x->dv, 1},
                (product_rows){at->w->u_columns, x->token},
                (product_size){round_up(at->c->count, ROWS), at->c->width, x->p->Dv},
                PRODUCT_C_LOWER);
}

/* Backward of the pairs of queries with the rows written to a part: d_rows and both sides. */
static void part_pairs_backward(const query_at *q, const linear_part *part, const written *own) {
    const linear_chunk_place *at = &q->at;
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const linear_buffers *buffers = &w->buffers;
    const real *near =
        scaled_rows(buffers->near_queries, queries_of(q, w->rows.queries), at->k->near_rise, x, c);
    const linear_pairs pairs = {near, own->near, own->columns, pair_decays(buffers, x), 1};
    const bool keys = own->near == at->k->near; /* the row sum adds up these weights only */
    const bool sums = x->sums && !x->rotated && part->values && keys;
    pair_products(buffers->s, &pairs, x, c);
    weights_gradient(w->d_weights, at, q->dy, own->rows);
    for (int64_t i = 0; sums && i < c->count; i++)
        for (int64_t j = 0; j <= i; j++)
            w->d_weights[i * x->token + j] += q->d_row_sum[i];
    if (q->levels) {
        levels_backward(q, buffers->s, w->d_weights, part);
        weigh_levels(w->weights, buffers->s, q->levels, part, x, c);
        weigh_levels(w->d_weights, w->d_weights, q->levels, part, x, c);
    }
    rows_product((product_target){own->d_rows, x->dv, true},
                 (product_operand){q->levels ? w->weights : buffers->s, 1, x->token},
                 (product_rows){q->dy, x->dv}, (product_size){c->count, value_columns(x), c->count},
                 PRODUCT_A_UPPER);
    pairs_backward(at, buffers->s, w->d_weights,
                   &(pair_gradients){&pairs, q->d_queries, own->d_keys, at->k->near_rise,
                                     at->k->near_fall, false});
}

/* Backward of the row sums, if queries and keys are not rotated there. */
static void sums_backward(const query_at *q) {
    const linear_chunk_place *at = &q->at;
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const linear_buffers *buffers = &w->buffers;
    const linear_part *part = &c->part[c->parts - 1];
    const real *near = scaled_rows(buffers->near_queries, queries_of(q, w->rows.plain_queries),
                                   at->k->near_rise, x, c);
    const linear_pairs pairs = {near, at->k->plain_near, buffers->plain_columns,
                                pair_decays(buffers, x), 1};
    pair_products(buffers->plain_s, &pairs, x, c);
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t j = 0; j <= i; j++)
            w->d_weights[i * x->token + j] = q->d_row_sum[i];
    if (q->levels) {
        levels_backward(q, buffers->plain_s, w->d_weights, part);
        weigh_levels(w->d_weights, w->d_weights, q->levels, part, x, c);
    }
    pairs_backward(at, buffers->plain_s, w->d_weights,
                   &(pair_gradients){&pairs, q->d_plain, w->d_plain_keys + c->row * x->d,
                                     at->k->near_rise, at->k->near_fall, false});
}

/* ---- the delta rule */

/* The errors of part n: stored by the first pass, or of this one. */
static const real *part_error(const linear_chunk_place *at, int n) {
    const linear_workspace *w = at->w;
    return w->errors ? w->errors + at->c->at * at->x->dv
                     : w->buffers.error + n * linear_part_rows(at->x->p) * at->x->dv;
}

/* Backward substitution: one vector of columns of a block of ROWS rows, as far as the chunk has
 * them; on entry d_u includes the terms of later blocks. */
static void solve_block_backward(real *d_u, real *B, const real *erasing, const real *beta,
                                 const linear_walk *x, int64_t rows) {
    vec own[ROWS] = {{0}};
#pragma GCC unroll 16
    for (int j = ROWS - 1; j >= 0; j--) {
        if (j >= rows)
            continue;
        vec left = vec_load(d_u + j * x->dv);
#pragma GCC unroll 16
        for (int i = j + 1; i < ROWS; i++) {
            if (i >= rows)
                break;
            left += erasing[i * x->token + j] * own[i];
        }
        own[j] = beta[j] * left;
        vec_store(d_u + j * x->dv, left);
        vec_store(B + j * x->dv, own[j]);
    }
}

/* d_u becomes r; B = beta r. */
static void solve_backward(const linear_chunk_place *at, real *B, real *d_u) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const real *erasing = w->buffers.erasing;
    for (int64_t from = (c->count - 1) / ROWS * ROWS; from >= 0; from -= ROWS) {
        const int64_t past = from + ROWS < c->count ? from + ROWS : c->count;
        if (past < c->count) /* only the last block of d_u may be shorter than ROWS */
            product((product_target){d_u + from * x->dv, x->dv, true},
                    (product_operand){erasing + past * x->token + from, 1, x->token},
                    (product_rows){B + past * x->dv, x->dv},
                    (product_size){ROWS, value_columns(x), c->count - past}, PRODUCT_FULL);
        for (int64_t d = 0; d < value_columns(x); d += LANES)
            solve_block_backward(d_u + from * x->dv + d, B + from * x->dv + d,
                                 erasing + from * x->token + from, at->k->beta + from, x,
                                 past - from);
    }
}

/* Transposes written rows into u_columns. */
static void transpose_written(const linear_chunk_place *at, const real *rows) {
    const linear_walk *x = at->x;
    if (at->c->count > 1)
        transpose_rows(at->w->u_columns, x->token, rows, x->dv, at->c->count, x->p->Dv,
                       at->c->width);
}

/* Backward of the pairs of erase rows with written rows, given B. */
static void erase_pairs_backward(const linear_chunk_place *at, const linear_pairs *pairs,
                                 const real *s, const real *B, const written *own) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    real *d_erase = (x->apart ? w->d_erase : w->d_keys) + at->c->row * x->d;
    weights_gradient(w->d_weights, at, B, own->rows);
    for (int64_t i = 0; i < at->c->count; i++)
        w->d_weights[i * x->token + i] = 0;
    pairs_backward(at, s, w->d_weights,
                   &(pair_gradients){pairs, d_erase, own->d_keys, at->k->erase_near_rise,
                                     at->k->near_fall, true});
}

/* Backward of removal's reads of the values, given B. */
static void reading_backward(const linear_chunk_place *at, const real *B) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const written own = values_of(at);
    const linear_pairs pairs = reading_pairs(&w->buffers, at->k, x);
    rows_product((product_target){own.d_rows, x->dv, true},
                 (product_operand){w->buffers.reading, 1, x->token}, (product_rows){B, x->dv},
                 (product_size){c->count, value_columns(x), c->count}, PRODUCT_A_UPPER);
    transpose_written(at, own.rows);
    erase_pairs_backward(at, &pairs, w->buffers.reading, B, &own);
}

/* Backward of the delta rule for part n, whose matrix is in `transposed`: gradients of beta, keys,
 * the state and, as B, of its values. */
static void rule_backward(const linear_chunk_place *at, int n) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    const linear_part *part = &c->part[n];
    const written own = written_of(at, n);
    const real *error = part_error(at, n);
    real *B = part->values && !x->removal ? w->d_values + c->row * x->dv : w->product_dv;
    real *d_u = part_d_u(at, n);
    real *d_erase = (x->apart ? w->d_erase : w->d_keys) + c->row * x->d;
    double *d_beta = x->row_work->d_beta;
    if (d_beta)
        d_beta += sr_row_index(x->p, x->p->Hkv, x->document->b, x->kv, x->document->start) + c->at;
    solve_backward(at, B, d_u);
    for (int64_t r = 0; d_beta && r < c->count; r++)
        d_beta[r] += row_dot(d_u + r * x->dv, error + r * x->dv, x->p->Dv);
    if (part->read) {
        through_transposed(at, B);
        add_erase_changes(at, at->k->erasing, w->product_d);
        add_across(at, at->k->erasing, w->product_d, x->removal ? 1 : 0);
        add_scaled(d_erase, w->product_d, at->k->erase_rise, -1, at);
        add_to_gradient(at, part->level, at->k->erasing, B);
    }
    if (c->count == 1)
        return;
    const linear_pairs pairs = erasing_pairs(&w->buffers, at->k, x);
    if (x->removal)
        transpose_written(at, own.rows);
    erase_pairs_backward(at, &pairs, w->buffers.erasing, B, &own);
    if (x->removal)
        reading_backward(at, B);
}

/* ---- all of a chunk */

/* Restores u as linear_write computed it in the first pass. */
static void recall_u(const linear_chunk_place *at) {
    const linear_walk *x = at->x;
    const real *error = part_error(at, 0);
    for (int64_t r = 0; r < at->c->count; r++)
        for (int64_t d = 0; d < value_columns(x); d += LANES)
            vec_store(at->w->buffers.u + r * x->dv + d,
                      at->k->beta[r] * vec_load(error + r * x->dv + d));
}

/* Writes the gradients of C; the backward of the prologue uses their differences. */
static void write_decays(const linear_chunk_place *at) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const int64_t base =
        sr_row_index(x->p, x->p->Hkv, x->document->b, x->kv, x->document->start) + at->c->at;
    for (int64_t r = at->c->count - 1; r >= 0; r--) {
        const double *change = w->change + r * x->decays;
        double *out = x->row_work->d_decay + (base + r) * x->decays;
        for (int64_t e = 0; e < x->decays; e++) {
            w->onward[e] += change[e]; /* now the gradient of the token's own gate */
            if (r == 0 && w->across)   /* computed without cancellation: 0 for a gate that forgets
                                        * everything */
                w->onward[e] = w->across[e];
            out[e] = w->onward[e] - w->later[e];
            w->later[e] = w->onward[e];
        }
    }
}

/* The gradient of a merged level is that of each level merged into it. */
static void merge_backward(const linear_chunk_place *at) {
    const linear_walk *x = at->x;
    const linear_state *gradient = &at->w->gradient;
    const int merged = merged_level(x, at->c->position);
    const size_t matrix = (size_t)linear_matrix(x->p) * sizeof(real);
    const size_t column = (size_t)x->d * sizeof(real);
    for (int level = 0; level < merged; level++) {
        memcpy(linear_matrix_at(gradient, x, level), linear_matrix_at(gradient, x, merged), matrix);
        memcpy(linear_column_at(gradient, x, level), linear_column_at(gradient, x, merged), column);
    }
}

void linear_chunk_backward(const linear_chunk_place *at) {
    const linear_workspace *w = at->w;
    const linear_walk *x = at->x;
    const linear_chunk *c = at->c;
    memset(w->change, 0, (size_t)(c->count * x->decays) * sizeof(double));
    memset(w->onward, 0, (size_t)x->decays * sizeof(double));
    if (w->across)
        memset(w->across, 0, (size_t)x->decays * sizeof(double));
    if (w->errors)
        recall_u(at);
    else
        linear_write(&w->buffers, at->k, x, c, at->state);
    states_backward(at);
    for (int64_t n = 0; n < c->count * x->decays; n += x->decays)
        for (int64_t e = 0; e < x->decays; e++) /* what the late keys lost, the gate after them
                                                 * gains */
            w->onward[e] -= w->change[n + e];
    for (int n = 0; n < c->parts; n++) {
        const linear_part *part = &c->part[n];
        if (part->read)
            transpose_matrix(at, linear_matrix_at(at->state, x, part->level));
        for (int g = 0; part->read && g < x->group; g++) {
            const query_at q = query_of(at, g);
            read_backward(&q, part);
        }
        if (!is_written(x, part))
            continue;
        const written own = written_of(at, n), values = values_of(at);
        transpose_written(at, own.rows);
        for (int g = 0; g < x->group; g++) {
            const query_at q = query_of(at, g);
            part_pairs_backward(&q, part, &own);
            if (x->sums && x->rotated && part->values)
                sums_backward(&q);
        }
        if (x->removal)
            transpose_written(at, values.rows);
        for (int g = 0; x->removal && g < x->group; g++) {
            const query_at q = query_of(at, g);
            part_pairs_backward(&q, part, &values);
        }
        if (x->delta)
            rule_backward(at, n);
        if (!x->delta || x->removal)
            memcpy(w->d_values + c->row * x->dv, x->removal ? w->d_own_values : part_d_u(at, n),
                   (size_t)(c->count * x->dv) * sizeof(real));
    }
    if (x->decay)
        write_decays(at);
    merge_backward(at);
}
