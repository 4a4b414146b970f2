/* products_avx512.h (private): a block of a product by VDPBF16PS. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PRODUCTS_AVX512_H
#define SR_ATTENTION_CPU_ROUNDED_PRODUCTS_AVX512_H

#include <immintrin.h>

enum { PAIR_ROWS = 8, PAIR_COLUMNS = 32 };

static inline void pairs_begin(void) {
}

static inline void pairs_end(void) {
}

/* Each step loads a row of pairs of B and broadcasts one pair of every row of A. */
static inline void pair_block(const pair_product *p) {
    __m512 sum[PAIR_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t step = 0; step < p->k / 2; step++) {
        const uint32_t *b = p->b + step * p->b_stride;
        const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 8
        for (int r = 0; r < PAIR_ROWS; r++) {
            int32_t pair;
            memcpy(&pair, p->a + r * p->a_stride + 2 * step, sizeof pair);
            const __m512bh spread = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], spread, (__m512bh)b0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], spread, (__m512bh)b1);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++) {
        float *c = p->c + r * p->c_stride;
        if (p->accumulate) {
            sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(c));
            sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(c + 16));
        }
        _mm512_storeu_ps(c, sum[r][0]);
        _mm512_storeu_ps(c + 16, sum[r][1]);
    }
}

#endif
