/* vector_math.h (private): elementary functions that a compiler can vectorise. */
#ifndef SR_OPS_CPU_VECTOR_MATH_H
#define SR_OPS_CPU_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* exp(x) to about 1 ulp for x in [-87, 88]; outside, the value at the nearer end. x = n ln 2 + f:
 * 2^n goes into the exponent, exp(f) = 1 + f + f^2 p(f) with p fitted on |f| <= ln(2)/2 (relative
 * error 1e-8). */
static inline float sr_fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    /* ln 2 in two pieces, the first short enough for n times it to be exact. */
    const float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 0.00139262508f;
    p = p * f + 0.00836323288f;
    p = p * f + 0.0416665542f;
    p = p * f + 0.166665767f;
    p = p * f + 0.5f;
    const float mantissa = 1.0f + (f + f * f * p);
    uint32_t shifted_bits, bits;
    memcpy(&shifted_bits, &shifted, sizeof shifted_bits);
    memcpy(&bits, &mantissa, sizeof bits);
    bits += shifted_bits << 23;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline float sr_fast_sigmoid(float x) {
    return 1.0f / (1.0f + sr_fast_exp(-x));
}

#endif
