/* platform.h: the CUDA language as every .cu file sees it, and bf16 in it.
 *
 * The only include of CUDA's own headers. A file that includes nothing else of CUDA, takes the PTX
 * it needs from ptx.h and launches its kernels with launch.h can also be compiled for the CPU
 * (emulator/). */
#ifndef SR_DEVICE_CUDA_PLATFORM_H
#define SR_DEVICE_CUDA_PLATFORM_H

#include <cuda.h>
#include <cuda_runtime.h>

#include <stdint.h>
#include <string.h>

#define SR_DEVICE __device__ __forceinline__          /* a function of kernels */
#define SR_BOTH   __host__ __device__ __forceinline__ /* a function of kernels and of the host */

/* bf16: the upper half of a float's bits. */
struct sr_bf16 {
    uint16_t bits;
};

SR_BOTH uint32_t float_bits(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

SR_BOTH float bits_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

SR_BOTH float to_float(float x) {
    return x;
}

SR_BOTH float to_float(sr_bf16 x) {
    return bits_float((uint32_t)x.bits << 16);
}

/* Rounds to nearest, ties to even; every NaN becomes 0x7fff, as on the GPU. */
SR_BOTH sr_bf16 to_bf16(float x) {
#ifdef __CUDA_ARCH__
    sr_bf16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
    return rounded;
#else
    const uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    return {(uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

/* Two bf16 in one register, as operands of matrix instructions: the first number in the lower
 * half. */
SR_BOTH uint32_t pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return (uint32_t)to_bf16(high).bits << 16 | to_bf16(low).bits;
#endif
}

/* x: the lower half; y: the upper half. */
SR_BOTH float2 unpack_bf16(uint32_t both) {
    return make_float2(bits_float(both << 16), bits_float(both & 0xffff0000u));
}

/* x as an N, for templates over the type of stored numbers. */
template <class N> SR_BOTH N from_float(float x);
template <> SR_BOTH float from_float<float>(float x) {
    return x;
}
template <> SR_BOTH sr_bf16 from_float<sr_bf16>(float x) {
    return to_bf16(x);
}

template <class N> SR_BOTH float load_number(const N *from) {
    return to_float(*from);
}

template <class N> SR_BOTH void store_number(N *to, float x) {
    *to = from_float<N>(x);
}

/* 16 bytes of numbers, moved by one instruction; addresses are multiples of 16. */
template <class N> struct sr_vector {
    static constexpr int count = 16 / (int)sizeof(N);
    N number[count];
};

template <class N> SR_BOTH sr_vector<N> load_vector(const N *from) {
    const uint4 raw = *reinterpret_cast<const uint4 *>(from);
    sr_vector<N> vector;
    memcpy(&vector, &raw, sizeof vector);
    return vector;
}

template <class N> SR_BOTH void store_vector(N *to, const sr_vector<N> &vector) {
    uint4 raw;
    memcpy(&raw, &vector, sizeof raw);
    *reinterpret_cast<uint4 *>(to) = raw;
}

#endif
