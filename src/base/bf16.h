/* bf16.h: conversions between float and bf16. */
#ifndef SR_BASE_BF16_H
#define SR_BASE_BF16_H

#include <stdint.h>
#include <string.h>

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t sr_bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float sr_bf16_float(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

#endif
