/* pack.h (private): rows of floats rounded to bf16, as products take them. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PACK_H
#define SR_ATTENTION_CPU_ROUNDED_PACK_H

#include "attention/cpu/rounded/products.h"
#include "attention/cpu/shared/tiles.h"

typedef uint16_t narrow_vec __attribute__((vector_size(LANES * sizeof(uint16_t))));

/* bf16 in the upper half of each number, to nearest, ties to even; NaN stays NaN. The lower half is
 * not cleared. */
static inline vec_pattern rounded_up(vec x) {
    const vec_pattern bits = (vec_pattern)x;
    const vec_pattern rounded = bits + 0x7fffU + (bits >> 16 & 1U);
    const vec_pattern is_nan = (vec_pattern)(x != x);
    return (is_nan & (bits | 0x400000U)) | (~is_nan & rounded);
}

static inline void store_upper(uint16_t *to, vec_pattern upper) {
    const narrow_vec narrow = __builtin_convertvector(upper >> 16, narrow_vec);
    memcpy(to, &narrow, sizeof narrow);
}

/* Rows of floats: (count, ld), `columns` numbers each. */
typedef struct float_rows {
    const real *data;
    int64_t ld, count, columns;
} float_rows;

/* A vector of row r from column d on; zeros outside of the rows. */
static inline vec vec_of_rows(const float_rows *rows, int64_t r, int64_t d) {
    const int64_t left = rows->columns - d;
    if (r >= rows->count || left <= 0)
        return (vec){0};
    return vec_load_part(rows->data + r * rows->ld + d, left < LANES ? (int)left : LANES);
}

/* out (past, stride) = the rows rounded, and zeros. */
static inline void round_rows(uint16_t *out, int64_t stride, int64_t past, float_rows rows) {
    for (int64_t r = 0; r < rows.count; r++)
        for (int64_t d = 0; d < stride; d += LANES)
            store_upper(out + r * stride + d, rounded_up(vec_of_rows(&rows, r, d)));
    if (rows.count < past)
        memset(out + rows.count * stride, 0, (size_t)((past - rows.count) * stride) * sizeof *out);
}

/* out (TILE / 2, stride) = the same in pairs: two rows side by side. */
static inline void round_row_pairs(uint32_t *out, int64_t stride, float_rows rows) {
    for (int64_t r = 0; r < TILE; r += 2)
        for (int64_t d = 0; d < stride; d += LANES) {
            const vec_pattern first = rounded_up(vec_of_rows(&rows, r, d));
            const vec_pattern second = rounded_up(vec_of_rows(&rows, r + 1, d));
            const vec_pattern pairs = (first >> 16) | (second & 0xffff0000U);
            memcpy(out + r / 2 * stride + d, &pairs, sizeof pairs);
        }
}

/* out (width / 2, TILE) = pairs of the transposed rows: of columns side by side. `narrow` (TILE,
 * width) is room for the rounded rows. */
static inline void round_column_pairs(uint32_t *out, uint16_t *narrow, int64_t width,
                                      float_rows rows) {
    round_rows(narrow, width, TILE, rows);
    transpose_rows((real *)(void *)out, TILE, (const real *)(const void *)narrow, width / 2, TILE,
                   width / 2, TILE);
}

/* What logits are multiplied by after the product: queries come multiplied by the scale, of which
 * only a power of two leaves a bf16 number one. */
static inline real logit_factor_of(const srnn_problem *p) {
    const double scale = sr_scale_factor(&p->attention, p->D);
    return (real)(scale / exp2(floor(log2(scale))));
}

/* Multiplies the first `columns` numbers of rows (count, ld). */
static inline void multiply_all(real *rows, int64_t ld, int64_t count, int64_t columns,
                                real factor) {
    for (int64_t r = 0; factor != 1 && r < count; r++)
        for (int64_t d = 0; d < columns; d += LANES) {
            const int part = (int)(columns - d);
            real *const at = rows + r * ld + d;
            vec_store_part(at, factor * vec_load_part(at, part), part);
        }
}

/* Widths of rows of D and of Dv, padded for products. */
typedef struct padded_widths {
    int64_t d, dv;
} padded_widths;

static inline padded_widths padded_widths_of(const srnn_problem *p) {
    return (padded_widths){round_up(p->D, PAIR_TILE), round_up(p->Dv, PAIR_TILE)};
}

/* Row strides of float buffers with room for padded rows. */
static inline tile_strides padded_strides_of(const srnn_problem *p) {
    const padded_widths widths = padded_widths_of(p);
    return (tile_strides){row_stride(widths.d), row_stride(widths.dv), row_stride(TILE)};
}

#endif
