/* partial.cu: sums over all tokens from those of threads. */
#include "attention/cuda/chunks/lanes.h"

/* Block n owns column n: thread i adds every 256th term of all blocks, slots and heads from i on,
 * then threads add in pairs through shared memory. */
__global__ void add_partial(float *out, const __grid_constant__ chunk_partial partial,
                            const __grid_constant__ chunk_columns to) {
    __shared__ float sums[SR_AXES_THREADS];
    const uint32_t slots = (uint32_t)(partial.threads * partial.each / to.numbers);
    const uint32_t merged = (uint32_t)to.merged, column = blockIdx.x;
    const uint32_t repeats = (uint32_t)to.numbers / merged / (uint32_t)to.columns; /* heads that
                                                                                      share it */
    const uint32_t within_block = slots * repeats * merged;
    const uint32_t terms = (uint32_t)partial.blocks * within_block;
    float sum = 0;
#pragma unroll 4
    for (uint32_t n = threadIdx.x; n < terms; n += SR_AXES_THREADS) {
        const uint32_t block = n / within_block, inside = n - block * within_block;
        const uint32_t slot = inside / (repeats * merged), rest = inside - slot * repeats * merged;
        const uint32_t repeat = rest / merged, within = rest - repeat * merged;
        const float *const from = partial.sums + ((int64_t)block * partial.kinds + to.kind) *
                                                     partial.threads * partial.each;
        sum += from[slot * (uint32_t)to.numbers +
                    (repeat * (uint32_t)to.columns + column) * merged + within];
    }
    sums[threadIdx.x] = sum;
    for (int half = SR_AXES_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        out[column] = sums[0];
}

srnn_status sr_chunks_add_partial(float *out, const chunk_partial &partial,
                                  const chunk_columns &columns, cudaStream_t stream) {
    if (out)
        SR_CUDA(sr_launch(add_partial, dim3((unsigned)columns.columns), dim3(SR_AXES_THREADS), 0,
                          stream, out, partial, columns));
    return SRNN_OK;
}
