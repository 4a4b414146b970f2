/* partial.cu: sums over all tokens from those of threads. */
#include "attention/cuda/chunks/lanes.h"

/* Block n owns column n: thread i adds every 256th term of all blocks, slots and heads from i on,
 * then threads add in pairs through shared memory. */
__global__ void add_partial(float *out, const __grid_constant__ chunk_partial partial,
                            const __grid_constant__ chunk_columns to) {
    __shared__ float sums[SR_AXES_THREADS];
    const int slots = partial.threads * partial.each / to.numbers, column = (int)blockIdx.x;
    const int repeats = to.numbers / to.merged / to.columns; /* heads that share the column */
    const int64_t terms = (int64_t)partial.blocks * slots * repeats * to.merged;
    float sum = 0;
    for (int64_t n = threadIdx.x; n < terms; n += SR_AXES_THREADS) {
        const int within = (int)(n % to.merged), repeat = (int)(n / to.merged % repeats);
        const int slot = (int)(n / to.merged / repeats % slots);
        const int64_t block = n / to.merged / repeats / slots;
        const float *const from = partial.sums + (block * partial.kinds + to.kind) *
                                                     (int64_t)partial.threads * partial.each;
        const int number = (repeat * to.columns + column) * to.merged + within;
        sum += from[(int64_t)slot * to.numbers + number];
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
