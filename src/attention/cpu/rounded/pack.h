/* pack.h (private): rows of floats rounded to bf16, as products take them. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PACK_H
#define SR_ATTENTION_CPU_ROUNDED_PACK_H

#include "attention/cpu/rounded/products.h"
#include "attention/cpu/shared/tiles.h"

/* To nearest, ties to even; NaN stays NaN: the rounded numbers as floats, the same stored as bf16, and
 * two vectors as pairs. */
static inline vec rounded_of(vec x);
static inline vec store_rounded(uint16_t *to, vec x);
static inline vec_pattern pairs_of(vec first, vec second);

#ifdef __AVX512BF16__
#include "attention/cpu/rounded/rounding_avx512.h"
#else
#include "attention/cpu/rounded/rounding_plain.h"
#endif

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
            store_rounded(out + r * stride + d, vec_of_rows(&rows, r, d));
    if (rows.count < past)
        memset(out + rows.count * stride, 0, (size_t)((past - rows.count) * stride) * sizeof *out);
}

/* out (TILE / 2, stride) = the same in pairs: two rows side by side. */
static inline void round_row_pairs(uint32_t *out, int64_t stride, float_rows rows) {
    for (int64_t r = 0; r < TILE; r += 2)
        for (int64_t d = 0; d < stride; d += LANES) {
            const vec_pattern pairs =
                pairs_of(vec_of_rows(&rows, r, d), vec_of_rows(&rows, r + 1, d));
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
