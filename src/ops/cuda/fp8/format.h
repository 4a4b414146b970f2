/* format.h (private): numbers of 8 bits, as the host and kernels convert them.
 *
 * E4M3 (largest 448, no infinity) has activations and weights, E5M2 (largest 57344) gradients. A
 * tensor is multiplied by a power of two that brings its largest number just below the format's, so
 * that scaling itself rounds nothing and a number of 8 bits times its scale is exact in bf16. */
#ifndef SR_OPS_CUDA_FP8_FORMAT_H
#define SR_OPS_CUDA_FP8_FORMAT_H

#include "device/cuda/platform.h"

template <int mantissa_bits, int exponent_bias> struct sr_fp8_numbers {
    static constexpr int mantissa = mantissa_bits, bias = exponent_bias;
    /* Exponent of the largest number, whose mantissa is 1.75 in both formats. */
    static constexpr int top = mantissa == 3 ? 8 : 15;

    /* Numbers may be 2^above times as large as expected, or 2^below times smaller: below the
     * largest then remain 30 - 10 binades of normal numbers of E5M2, 15 - 4 of E4M3. */
    static constexpr int above = mantissa == 3 ? 1 : 4, below = mantissa == 3 ? 3 : 6;

    static constexpr uint32_t largest = (uint32_t)(127 + top) << 23 | 0x600000u; /* as a float */
    static constexpr uint32_t nan = 0x7f;

    /* The nearest number, ties to even; the largest for larger ones. */
    static SR_BOTH uint32_t narrow(float x) {
        const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80u;
        uint32_t size = bits & 0x7fffffffu;
        if (size > 0x7f800000u)
            return nan;
        size = size > largest ? largest : size;
        if (size < (uint32_t)(127 + 1 - bias) << 23) { /* below the normal numbers: multiples */
            const float unit = bits_float((uint32_t)(127 + bias - 1 + mantissa) << 23);
            return sign | (float_bits(bits_float(size) * unit + 0x1p23f) & 0xffu);
        }
        size += (1u << (22 - mantissa)) - 1 + (size >> (23 - mantissa) & 1u);
        return sign | ((size >> (23 - mantissa)) - ((uint32_t)(127 - bias) << mantissa));
    }

    static SR_BOTH float widen(uint32_t code) {
        const uint32_t exponent = code >> mantissa & ((1u << (7 - mantissa)) - 1);
        const uint32_t rest = code & ((1u << mantissa) - 1);
        if ((code & 0x7fu) == nan)
            return bits_float(0x7fffffffu);
        const float size =
            exponent == 0 ? (float)rest * bits_float((uint32_t)(127 + 1 - bias - mantissa) << 23)
                          : bits_float((exponent - bias + 127) << 23 | rest << (23 - mantissa));
        return code & 0x80u ? -size : size;
    }

    /* The exponent of the scale that numbers are multiplied by, given the bits of the largest
     * size; 0 where that is 0. */
    static SR_BOTH int scale_exponent(uint32_t largest) {
        const int exponent = (int)(largest >> 23) - 127;
        const int wanted = top - exponent - ((largest & 0x7fffffu) > 0x600000u ? 1 : 0);
        if (largest == 0)
            return 0;
        return wanted > 100 ? 100 : wanted < -100 ? -100 : wanted;
    }
};

using sr_e4m3 = sr_fp8_numbers<3, 7>;
using sr_e5m2 = sr_fp8_numbers<2, 15>;

/* 2^n, |n| <= 126. */
SR_BOTH float sr_power_of_two(int n) {
    return bits_float((uint32_t)(127 + n) << 23);
}

/* Codes of four numbers, the first in the lowest byte. */
template <class Format> SR_DEVICE uint32_t pack_fp8(const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    if constexpr (Format::mantissa == 3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    }
    return (uint32_t)high << 16 | low;
#else
    return Format::narrow(x[0]) | Format::narrow(x[1]) << 8 | Format::narrow(x[2]) << 16 |
           Format::narrow(x[3]) << 24;
#endif
}

#endif
