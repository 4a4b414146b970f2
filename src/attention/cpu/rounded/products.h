/* products.h (private): products of bf16 tiles with float sums, by what the instruction set has.
 *
 * C (m, n) = or += A (m, k) B (k, n). A is stored by rows of bf16; B as pairs: row i has, for each
 * column, rows 2 i and 2 i + 1 of B in one number of 32 bits, the first in its lower half. That is
 * how VDPBF16PS and AMX take them. m, n and k are multiples of BLOCK: callers pad with zeros. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PRODUCTS_H
#define SR_ATTENTION_CPU_ROUNDED_PRODUCTS_H

#include "attention/cpu/shared/simd.h"

#include <stdint.h>

enum { BLOCK = 32 };

typedef enum pair_shape {
    PAIRS_FULL,
    PAIRS_C_LOWER, /* only blocks of C that touch row >= column */
    PAIRS_A_LOWER, /* A is zero where column > row */
    PAIRS_B_LOWER, /* B is zero where column > row */
} pair_shape;

typedef struct pair_product {
    float *c;
    int64_t c_stride;
    bool accumulate;
    const uint16_t *a; /* (m, a_stride) */
    int64_t a_stride;
    const uint32_t *b; /* (k / 2, b_stride): pairs */
    int64_t b_stride;
    int64_t m, n, k;
    pair_shape shape;
} pair_product;

/* The first and the second number of pairs, or the number in the upper half. */
static inline vec first_of_pairs(vec_pattern pairs) {
    return (vec)(pairs << 16);
}

static inline vec second_of_pairs(vec_pattern pairs) {
    return (vec)(pairs & 0xffff0000U);
}

/* One block of C of PAIR_ROWS x PAIR_COLUMNS numbers, k steps. Between pairs_begin and pairs_end, on
 * one thread. */
static inline void pairs_begin(void);
static inline void pairs_end(void);
static inline void pair_block(const pair_product *p);

#if defined(__AMX_BF16__)
#include "attention/cpu/rounded/products_amx.h"
#elif defined(__AVX512BF16__)
#include "attention/cpu/rounded/products_avx512.h"
#else
#include "attention/cpu/rounded/products_plain.h"
#endif

static inline void pair_multiply(const pair_product *p) {
    for (int64_t column = 0; column < p->n; column += PAIR_COLUMNS)
        for (int64_t row = p->shape == PAIRS_C_LOWER ? column / PAIR_ROWS * PAIR_ROWS : 0;
             row < p->m; row += PAIR_ROWS) {
            const int64_t first = p->shape == PAIRS_B_LOWER ? column / BLOCK * BLOCK : 0;
            const int64_t last = round_up(row + PAIR_ROWS, BLOCK);
            const int64_t past = p->shape == PAIRS_A_LOWER && last < p->k ? last : p->k;
            pair_product block = *p;
            block.c += row * p->c_stride + column;
            block.a += row * p->a_stride + first;
            block.b += first / 2 * p->b_stride + column;
            block.k = past - first;
            pair_block(&block);
        }
}

#endif
