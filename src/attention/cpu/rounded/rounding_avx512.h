/* rounding_avx512.h (private): vectors rounded to bf16 by AVX512_BF16. Subnormal numbers become
 * zero. */
#ifndef SR_ATTENTION_CPU_ROUNDED_ROUNDING_AVX512_H
#define SR_ATTENTION_CPU_ROUNDED_ROUNDING_AVX512_H

#include <immintrin.h>

static inline __m512i widened(__m256bh narrow) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)narrow), 16);
}

static inline vec rounded_of(vec x) {
    return (vec)widened(_mm512_cvtneps_pbh((__m512)x));
}

static inline vec store_rounded(uint16_t *to, vec x) {
    const __m256bh narrow = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &narrow, sizeof narrow);
    return (vec)widened(narrow);
}

static inline vec_pattern pairs_of(vec first, vec second) {
    const __m512i lower = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)first));
    const __m512i upper = widened(_mm512_cvtneps_pbh((__m512)second));
    return (vec_pattern)_mm512_or_si512(lower, upper);
}

#endif
