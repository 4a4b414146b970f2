/* avx512.h: a block of a product of pairs by VDPBF16PS. */
#ifndef SR_BASE_PAIRS_AVX512_H
#define SR_BASE_PAIRS_AVX512_H

#include <immintrin.h>

static inline void pairs_begin(void) {
}

static inline void pairs_end(void) {
}

enum { PAIR_ROWS = 8 }; /* as many sums as registers hold */

/* Each step loads a row of pairs of B and broadcasts one pair of every row of A. */
static inline void pair_rows(const pair_product *p) {
    __m512 sum[PAIR_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    const uint32_t *b = p->b;
    for (int64_t k = 0; k < p->k; k += PAIR_TILE) {
        const uint16_t *a = p->a + k / PAIR_TILE * p->a_step;
        for (int pair = 0; pair < PAIR_HALF; pair++, b += p->b_stride) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b),
                           b1 = (__m512bh)_mm512_loadu_si512(b + p->b_step);
#pragma GCC unroll 8
            for (int r = 0; r < PAIR_ROWS; r++) {
                int32_t both;
                memcpy(&both, a + r * p->a_stride + 2 * pair, sizeof both);
                const __m512bh spread = (__m512bh)_mm512_set1_epi32(both);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], spread, b0);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], spread, b1);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++) {
        float *c = p->c + r * p->c_stride;
        if (p->accumulate) {
            sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(c));
            sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(c + PAIR_HALF));
        }
        _mm512_storeu_ps(c, sum[r][0]);
        _mm512_storeu_ps(c + PAIR_HALF, sum[r][1]);
    }
}

static void pair_block(const pair_product *p) {
    pair_product rows = *p;
    for (int row = 0; row < PAIR_TILE; row += PAIR_ROWS) {
        pair_rows(&rows);
        rows.a += PAIR_ROWS * p->a_stride;
        rows.c += PAIR_ROWS * p->c_stride;
    }
}

#endif
