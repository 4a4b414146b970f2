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

/* A vector of `count` numbers and zeros. */
static inline vec vec_of_row(const real *from, int64_t count) {
    return vec_load_part(from, count < 0 ? 0 : count > LANES ? LANES : (int)count);
}

/* out (past, stride) = rows (count, ld) of `columns` numbers, and zeros, up to `stride` columns. */
static inline void round_rows(uint16_t *out, int64_t stride, const real *rows, int64_t ld,
                              int64_t count, int64_t columns, int64_t past) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t d = 0; d < stride; d += LANES)
            store_upper(out + r * stride + d,
                        rounded_up(vec_of_row(rows + r * ld + d, columns - d)));
    if (count < past)
        memset(out + count * stride, 0, (size_t)((past - count) * stride) * sizeof *out);
}

/* out (past / 2, stride) = the same rows in pairs: two rows side by side. */
static inline void round_row_pairs(uint32_t *out, int64_t stride, const real *rows, int64_t ld,
                                   int64_t count, int64_t columns, int64_t past) {
    for (int64_t r = 0; r < past; r += 2)
        for (int64_t d = 0; d < stride; d += LANES) {
            const real *from = rows + r * ld + d;
            const vec first = r < count ? vec_of_row(from, columns - d) : (vec){0};
            const vec second = r + 1 < count ? vec_of_row(from + ld, columns - d) : (vec){0};
            const vec_pattern pairs =
                (rounded_up(first) >> 16) | (rounded_up(second) & 0xffff0000U);
            memcpy(out + r / 2 * stride + d, &pairs, sizeof pairs);
        }
}

/* out (width / 2, TILE) = pairs of the transposed rows (count, ld): of columns side by side.
 * `narrow` (TILE, width) is room for the rounded rows. */
static inline void round_column_pairs(uint32_t *out, uint16_t *narrow, int64_t width,
                                      const real *rows, int64_t ld, int64_t count,
                                      int64_t columns) {
    round_rows(narrow, width, rows, ld, count, columns, TILE);
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
