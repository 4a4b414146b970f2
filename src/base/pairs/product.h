/* product.h: products of bf16 tiles with float sums, by VDPBF16PS or AMX.
 *
 * C (m, n) = or += A (m, k) B (k, n). A is stored by rows of bf16, 32 numbers at a time; B as pairs:
 * row i has, for each column, rows 2 i and 2 i + 1 of B in one number of 32 bits, the first in its
 * lower half. m, n and k are multiples of PAIR_TILE: callers pad with zeros. The compiler's flags
 * say which instructions there are; a file that includes this is one of a level (cpu_level.h). */
#ifndef SR_BASE_PAIRS_PRODUCT_H
#define SR_BASE_PAIRS_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Blocks of C, and steps of k. */
enum { PAIR_TILE = 32, PAIR_HALF = PAIR_TILE / 2 };

typedef enum pair_shape {
    PAIRS_FULL = 0,
    PAIRS_C_LOWER, /* only blocks of C that touch row >= column */
    PAIRS_A_LOWER, /* A is zero where column > row */
    PAIRS_B_LOWER, /* B is zero where column > row */
} pair_shape;

/* Strides in elements. */
typedef struct pair_product {
    float *c;
    int64_t c_stride;
    bool accumulate;
    const uint16_t *a; /* (k / 32, m, 32): */
    int64_t a_stride;  /* from row to row */
    int64_t a_step;    /* from 32 columns to the next */
    const uint32_t *b; /* (n / 16, k / 2, 16): */
    int64_t b_stride;  /* from pair of rows to pair of rows */
    int64_t b_step;    /* from 16 columns to the next */
    int64_t m, n, k;
    pair_shape shape;
} pair_product;

/* Before the first and after the last block of a thread. */
static inline void pairs_begin(void);
static inline void pairs_end(void);

/* PAIR_TILE columns and rows of C; k is that of *p. */
static void pair_block(const pair_product *p);

#if defined(__AMX_BF16__)
#include "base/pairs/amx.h"
#elif defined(__AVX512BF16__)
#include "base/pairs/avx512.h"
#endif

static inline void pair_multiply(const pair_product *p) {
    for (int64_t column = 0; column < p->n; column += PAIR_TILE)
        for (int64_t row = p->shape == PAIRS_C_LOWER ? column : 0; row < p->m; row += PAIR_TILE) {
            const int64_t first = p->shape == PAIRS_B_LOWER ? column : 0;
            const int64_t last = row + PAIR_TILE;
            const int64_t past = p->shape == PAIRS_A_LOWER && last < p->k ? last : p->k;
            pair_product block = *p;
            block.c += row * p->c_stride + column;
            block.a += row * p->a_stride + first / PAIR_TILE * p->a_step;
            block.b += first / 2 * p->b_stride + column / PAIR_HALF * p->b_step;
            block.k = past - first;
            pair_block(&block);
        }
}

#endif
