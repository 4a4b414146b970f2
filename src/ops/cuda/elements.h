/* elements.h (private): vectorised loads and stores of either type, and how threads share rows. */
#ifndef SR_OPS_CUDA_ELEMENTS_H
#define SR_OPS_CUDA_ELEMENTS_H

#include "device/cuda/ptx.h"
#include "ops/cuda/backend.h"

/* How a kernel accesses its numbers: of type N, moved W at a time. */
template <class Number, int width> struct sr_access {
    using N = Number;
    static constexpr int W = width;
};

/* Numbers of one type, in rows. */
typedef struct sr_place {
    const void *data;
    int64_t stride; /* numbers */
    srnn_dtype dtype;
} sr_place;

static inline sr_place sr_place_of(sr_matrix m) {
    return {m.data, m.stride, m.dtype};
}

/* Whether each row can be moved W numbers at a time: no access crosses its own alignment. */
static inline bool sr_is_aligned(sr_place place, int W) {
    const size_t bytes = sr_element_bytes(place.dtype);
    const size_t step = (size_t)W * bytes < 16 ? (size_t)W * bytes : 16;
    return (uintptr_t)place.data % step == 0 && (size_t)place.stride * bytes % step == 0;
}

/* Calls work(sr_access<N, W>()) with N the number type and W > 1 where `columns` is a multiple of
 * it and all places allow it. `places` are given as they would be for W = bf16 ? bf16_width : 4. */
template <int bf16_width, class Work>
srnn_status sr_with_access(srnn_dtype number, int64_t columns, const sr_place *places, int count,
                           Work work) {
    const int W = number == SRNN_BF16 ? bf16_width : 4;
    bool wide = columns % W == 0;
    for (int i = 0; i < count; i++)
        wide = wide && sr_is_aligned(places[i], W);
    if (number == SRNN_BF16)
        return wide ? work(sr_access<sr_bf16, bf16_width>()) : work(sr_access<sr_bf16, 1>());
    return wide ? work(sr_access<float, 4>()) : work(sr_access<float, 1>());
}

/* W numbers from or to memory; 16 bytes at a time where there are that many. */
template <int W> SR_DEVICE void load_numbers(float *x, const float *from) {
    if constexpr (W == 1) {
        x[0] = *from;
    } else {
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(from + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
    }
}

template <int W> SR_DEVICE void load_numbers(float *x, const sr_bf16 *from) {
    if constexpr (W == 1) {
        x[0] = to_float(*from);
    } else if constexpr (W == 4) {
        const uint2 raw = *reinterpret_cast<const uint2 *>(from);
        const float2 a = unpack_bf16(raw.x), b = unpack_bf16(raw.y);
        x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
    } else {
        const uint4 raw = *reinterpret_cast<const uint4 *>(from);
        const float2 a = unpack_bf16(raw.x), b = unpack_bf16(raw.y);
        const float2 c = unpack_bf16(raw.z), d = unpack_bf16(raw.w);
        x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
        x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
    }
}

template <int W> SR_DEVICE void store_numbers(float *to, const float *x) {
    if constexpr (W == 1) {
        *to = x[0];
    } else {
#pragma unroll
        for (int i = 0; i < W; i += 4)
            *reinterpret_cast<float4 *>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
}

template <int W> SR_DEVICE void store_numbers(sr_bf16 *to, const float *x) {
    if constexpr (W == 1)
        *to = to_bf16(x[0]);
    else if constexpr (W == 4)
        *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    else
        *reinterpret_cast<uint4 *>(to) = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                                    pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

/* exp(x): for float accurate to the last bits, for bf16 by the special function unit. */
template <class N> SR_DEVICE float exp_for(float x) {
    if constexpr (sizeof(N) == sizeof(float))
        return expf(x);
    else
        return exp2_fast(x * 1.44269504f);
}

template <class N> SR_DEVICE float sigmoid_for(float x) {
    if constexpr (sizeof(N) == sizeof(float))
        return 1.0f / (1.0f + expf(-x));
    else
        return reciprocal_fast(1.0f + exp2_fast(x * -1.44269504f));
}

/* Sum over the threads of a block, a multiple of 32 in one dimension; every thread gets the same
 * bits. `shared` holds 32. */
template <class T> SR_DEVICE T block_sum(T x, T *shared) {
    const int lane = threadIdx.x % SR_WARP, warp = threadIdx.x / SR_WARP;
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = warp_sum(lane < (int)(blockDim.x / SR_WARP) ? shared[lane] : T(0));
    __syncthreads();
    return x;
}

/* One thread for each of `items` pieces of each row. */
typedef struct sr_row_grid {
    dim3 grid, block;
} sr_row_grid;

static inline sr_row_grid sr_row_grid_of(int64_t rows, int64_t items) {
    enum { THREADS = 256 };
    const unsigned x = (unsigned)sr_minimum(THREADS, sr_pieces(items, SR_WARP) * SR_WARP),
                   y = THREADS / x;
    return {dim3((unsigned)sr_pieces(rows, y), (unsigned)sr_pieces(items, x)), dim3(x, y)};
}

SR_DEVICE int64_t grid_row() {
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

SR_DEVICE int grid_item() {
    return (int)(blockIdx.y * blockDim.x + threadIdx.x);
}

/* Threads of a block that owns a row of `items` pieces: each takes two, up to the limit. */
static inline unsigned sr_row_threads(int64_t items) {
    return (unsigned)sr_maximum(SR_WARP, sr_minimum(512, sr_pieces(items, 2 * SR_WARP) * SR_WARP));
}

#endif
