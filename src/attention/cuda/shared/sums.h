/* sums.h (private): sums over all rows of a call, in a fixed order. */
#ifndef SR_ATTENTION_CUDA_SHARED_SUMS_H
#define SR_ATTENTION_CUDA_SHARED_SUMS_H

#include "device/cuda/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/ptx.h"

enum { SR_SUM_PARTS = 64, SR_SUM_WARPS = 8, SR_SUM_THREADS = SR_SUM_WARPS * SR_WARP };

/* A Term has a number for each row and column: Term::of(call, row, column). Thread (x, y) of block
 * (columns / 32, part) adds the terms of column x for every 8th row of its part; those of a column
 * are added over y through shared memory in order, and the second kernel adds the parts in order.
 * partial: (SR_SUM_PARTS, columns). */
template <class Term, class Call>
__global__ void partial_sums(const __grid_constant__ Call call, double *partial, int64_t rows,
                             int columns) {
    __shared__ double sums[SR_SUM_WARPS][SR_WARP];
    const int x = (int)threadIdx.x % SR_WARP, y = (int)threadIdx.x / SR_WARP;
    const int column = (int)blockIdx.x * SR_WARP + x;
    double sum = 0;
    for (int64_t n = (int64_t)blockIdx.y * SR_SUM_WARPS + y; n < rows && column < columns;
         n += SR_SUM_PARTS * SR_SUM_WARPS)
        sum += Term::of(call, n, column);
    sums[y][x] = sum;
    __syncthreads();
    if (y > 0 || column >= columns)
        return;
    for (int n = 1; n < SR_SUM_WARPS; n++)
        sum += sums[n][x];
    partial[(int64_t)blockIdx.y * columns + column] = sum;
}

/* A thread owns a column: adds the parts in order, global -> registers, and stores the total. */
static __global__ void add_parts(float *out, const double *partial, int columns) {
    const int column = (int)blockIdx.x * SR_SUM_THREADS + (int)threadIdx.x;
    if (column >= columns)
        return;
    double sum = 0;
    for (int n = 0; n < SR_SUM_PARTS; n++)
        sum += partial[(int64_t)n * columns + column];
    out[column] = (float)sum;
}

/* out (columns); NULL: not wanted. */
template <class Term, class Call>
static srnn_status sum_rows(float *out, const Call &call, double *partial, int64_t rows,
                            int columns, cudaStream_t stream) {
    if (!out)
        return SRNN_OK;
    const unsigned wide = (unsigned)((columns + SR_WARP - 1) / SR_WARP);
    const unsigned blocks = (unsigned)((columns + SR_SUM_THREADS - 1) / SR_SUM_THREADS);
    SR_CUDA(sr_launch(partial_sums<Term, Call>, dim3(wide, SR_SUM_PARTS), dim3(SR_SUM_THREADS), 0,
                      stream, call, partial, rows, columns));
    SR_CUDA(
        sr_launch(add_parts, dim3(blocks), dim3(SR_SUM_THREADS), 0, stream, out, partial, columns));
    return SRNN_OK;
}

#endif
