/* prologue_rows.h (private): how prologue and epilogue kernels walk over rows. */
#ifndef SR_ATTENTION_CUDA_SHARED_PROLOGUE_ROWS_H
#define SR_ATTENTION_CUDA_SHARED_PROLOGUE_ROWS_H

#include "attention/cuda/shared/backward_preprocess.h"
#include "attention/cuda/shared/rows.h"
#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 8, THREADS = WARPS * SR_WARP };

static inline unsigned blocks_for(int64_t count, int64_t each) {
    return (unsigned)((count + each - 1) / each);
}

/* Divisions of 64 bits cost more than the rest of a row; few problems need them. */
SR_DEVICE row_place place_of(int64_t n, int heads, int T) {
    if (n <= (int64_t)UINT32_MAX) {
        const uint32_t row = (uint32_t)n / (uint32_t)T, b = row / (uint32_t)heads;
        return {(int)b, (int)(row - b * (uint32_t)heads), (int)((uint32_t)n - row * (uint32_t)T)};
    }
    return {(int)(n / T / heads), (int)(n / T % heads), (int)(n % T)};
}

/* START(kernel, width, blocks, arguments...): kernel<N, WIDTH> for rows of `width` numbers. */
#define START(kernel, width, blocks, ...)                                                        \
    do {                                                                                         \
        const dim3 start_grid(blocks), start_block(THREADS);                                     \
        if ((width) <= 64)                                                                       \
            SR_CUDA(sr_launch(kernel<N, 64>, start_grid, start_block, 0, stream, __VA_ARGS__));  \
        else if ((width) <= 128)                                                                 \
            SR_CUDA(sr_launch(kernel<N, 128>, start_grid, start_block, 0, stream, __VA_ARGS__)); \
        else                                                                                     \
            SR_CUDA(sr_launch(kernel<N, 256>, start_grid, start_block, 0, stream, __VA_ARGS__)); \
    } while (0)

/* ---- deterministic sums ---- */

/* Adds the sums of the block's threads over y, in order; the result is valid in every thread. */
SR_DEVICE double add_over_y(double sum) {
    __shared__ double parts[SR_WARP][SR_WARP];
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    double all = 0;
    for (unsigned y = 0; y < SR_WARP; y++)
        all += parts[y][threadIdx.x];
    return all;
}

#endif
