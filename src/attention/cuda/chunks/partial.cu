/* partial.cu: sums over all tokens from those of threads. */
#include "attention/cuda/chunks/lanes.h"

/* Block n owns column n: thread i adds the terms of every 256th block of the kernel before, from i
 * on, slot by slot and head by head, then threads add in pairs through shared memory. */
__global__ void add_partial(float *out, const __grid_constant__ chunk_partial partial,
                            const __grid_constant__ chunk_columns to) {
    __shared__ float sums[SR_AXES_THREADS];
    const int slots = partial.threads * partial.each / to.numbers, column = (int)blockIdx.x;
    const int step = to.columns * to.merged; /* from head to head that shares the column */
    const bool merges = to.merged > 1;       /* then the inner loop is over what is merged */
    const int inner = merges ? to.merged : to.numbers / step, across = merges ? 1 : step;
    const int outer = merges ? to.numbers / step : 1;
    float sum = 0;
    for (int block = (int)threadIdx.x; block < partial.blocks; block += SR_AXES_THREADS) {
        const float *const from =
            partial.sums + column * to.merged +
            ((int64_t)block * partial.kinds + to.kind) * partial.threads * partial.each;
        for (int n = 0; n < slots * outer; n++) {
            const float *const terms = from + n / outer * to.numbers + n % outer * step;
#pragma unroll 8
            for (int i = 0; i < inner; i++)
                sum += terms[i * across];
        }
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
