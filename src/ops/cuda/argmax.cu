/* argmax.cu: argmax of each row, and greedy decode: the chosen token as the next input. */
#include "ops/cuda/elements.h"

#include <limits.h>

enum { MOST_THREADS = 1024, FOLLOW_THREADS = 128 };

struct candidate {
    float number;
    int place;
};

/* The larger, the first of equals; a NaN is never larger. */
SR_DEVICE candidate better(candidate a, candidate b) {
    return b.number > a.number || (b.number == a.number && b.place < a.place) ? b : a;
}

SR_DEVICE candidate warp_best(candidate own) {
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        own = better(own, {shuffle_xor(own.number, mask), shuffle_xor(own.place, mask)});
    return own;
}

/* A block owns a row. Each thread takes every blockDim.x-th piece of W numbers, global ->
 * registers, and keeps its best; shuffles reduce a warp, shared memory and one barrier the warps;
 * thread 0 stores the place (0 for a row of NaN). */
template <class N, int W>
static __global__ void __launch_bounds__(MOST_THREADS)
    largest_of_row(int32_t *out, const N *x, int64_t stride, int columns) {
    __shared__ candidate shared[SR_WARP];
    const int lane = threadIdx.x % SR_WARP, warps = (int)blockDim.x / SR_WARP;
    const candidate none = {-INFINITY, INT_MAX};
    candidate best = none;
    let_next_start();
    wait_for_previous();
    for (int c = (int)threadIdx.x * W; c < columns; c += (int)blockDim.x * W) {
        float numbers[W];
        load_numbers<W>(numbers, x + blockIdx.x * stride + c);
#pragma unroll
        for (int k = 0; k < W; k++)
            best = better(best, {numbers[k], c + k});
    }
    best = warp_best(best);
    if (lane == 0)
        shared[threadIdx.x / SR_WARP] = best;
    __syncthreads();
    best = warp_best(lane < warps ? shared[lane] : none);
    if (threadIdx.x == 0)
        out[blockIdx.x] = best.place == INT_MAX ? 0 : best.place;
}

srnn_status sr_cuda_argmax(sr_backend *backend, int32_t *out, sr_matrix x) {
    const sr_place place = sr_place_of(x);
    if (x.rows == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, x.columns, &place, 1, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const int64_t threads = sr_pieces(x.columns, A::W * SR_WARP) * SR_WARP;
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), largest_of_row<typename A::N, A::W>,
                                dim3((unsigned)x.rows),
                                dim3((unsigned)sr_minimum(MOST_THREADS, threads)), 0,
                                sr_stream_of(backend), out, (const typename A::N *)x.data, x.stride,
                                (int)x.columns));
        return SRNN_OK;
    });
}

/* A thread owns one row: copies the chosen token to `ids` and the position to `positions`, the
 * inputs of the next decode step. */
static __global__ void __launch_bounds__(FOLLOW_THREADS)
    follow_rows(int32_t *ids, int32_t *positions, const int32_t *chosen, int32_t position,
                int64_t rows) {
    const int64_t row = (int64_t)blockIdx.x * FOLLOW_THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (row >= rows)
        return;
    ids[row] = chosen[row];
    positions[row] = position;
}

srnn_status sr_cuda_next_inputs(sr_backend *backend, int32_t *ids, int32_t *positions,
                                const int32_t *chosen, int32_t position, int64_t rows) {
    if (rows == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch_early(sr_may_start_early(backend), follow_rows,
                            dim3((unsigned)sr_pieces(rows, FOLLOW_THREADS)), dim3(FOLLOW_THREADS),
                            0, sr_stream_of(backend), ids, positions, chosen, position, rows));
    return SRNN_OK;
}
