/* step_stats.cu: statistics of a step, in double and deterministic. Bytes per number of the
 * squares: 4. */
#include "ops/cuda/elements.h"

enum { THREADS = 512, PARTS = 1024 };

/* One block adds the losses, hits and target counts of all rows: thread t takes rows t, t + 512,
 * ..., global -> registers; block sums through shared memory; thread 0 adds the totals to the
 * step's statistics. */
static __global__ void __launch_bounds__(THREADS)
    add_losses(sr_step_stats *stats, const float *__restrict__ losses,
               const int32_t *__restrict__ hits, const int32_t *__restrict__ targets,
               int64_t rows) {
    __shared__ double shared[SR_WARP];
    __shared__ long long shared_counts[SR_WARP];
    double loss = 0;
    long long hit = 0, count = 0;
#pragma unroll 4
    for (int64_t row = threadIdx.x; row < rows; row += THREADS) {
        loss += (double)losses[row];
        hit += hits ? hits[row] : 0;
        count += targets[row] >= 0;
    }
    loss = block_sum(loss, shared);
    hit = block_sum(hit, shared_counts);
    count = block_sum(count, shared_counts);
    if (threadIdx.x == 0) {
        stats->loss += loss;
        stats->hits += hit;
        stats->targets += count;
    }
}

/* parts[block] = the sum of squares of every gridDim.x-th piece of x, for the gradient norm.
 * Grid-stride loop: a thread adds W numbers at a time, global -> registers, in double; a block sum
 * through shared memory, stored by thread 0. sum_squares adds the parts. */
template <int W>
static __global__ void __launch_bounds__(THREADS)
    square_parts(double *parts, const float *__restrict__ x, int64_t n) {
    __shared__ double shared[SR_WARP];
    const int64_t step = (int64_t)gridDim.x * THREADS * W;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W; i < n; i += step) {
        float numbers[W];
        load_numbers<W>(numbers, x + i);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum += (double)numbers[k] * (double)numbers[k];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* One block adds the parts: thread t takes parts t, t + 512, ...; a block sum through shared
 * memory; thread 0 stores the total. */
static __global__ void __launch_bounds__(THREADS)
    sum_squares(sr_step_stats *stats, const double *__restrict__ parts, int count) {
    __shared__ double shared[SR_WARP];
    double sum = 0;
    for (int part = threadIdx.x; part < count; part += THREADS)
        sum += parts[part];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        stats->squares = sum;
}

srnn_status sr_cuda_stats_losses(sr_backend *backend, sr_step_stats *stats, const float *losses,
                                 const int32_t *hits, const int32_t *targets, int64_t rows) {
    SR_CUDA(sr_launch(add_losses, dim3(1), dim3(THREADS), 0, sr_stream_of(backend), stats, losses,
                      hits, targets, rows));
    return SRNN_OK;
}

srnn_status sr_cuda_stats_squares(sr_backend *backend, sr_step_stats *stats, const float *x,
                                  int64_t n) {
    const sr_place place = {x, 0, SRNN_F32};
    double *parts = (double *)((sr_backend_cuda *)backend)->workspace;
    /* The last few numbers are a part of their own. */
    const int64_t body = n - n % 4;
    const int pieces = (int)sr_minimum(PARTS, sr_pieces(body, THREADS * 4));
    if (body > 0)
        SR_TRY(sr_with_access<4>(SRNN_F32, body, &place, 1, [&](auto access) -> srnn_status {
            using A = decltype(access);
            SR_CUDA(sr_launch(square_parts<A::W>, dim3((unsigned)pieces), dim3(THREADS), 0,
                              sr_stream_of(backend), parts, x, body));
            return SRNN_OK;
        }));
    if (n > body)
        SR_CUDA(sr_launch(square_parts<1>, dim3(1), dim3(THREADS), 0, sr_stream_of(backend),
                          parts + pieces, x + body, n - body));
    SR_CUDA(sr_launch(sum_squares, dim3(1), dim3(THREADS), 0, sr_stream_of(backend), stats, parts,
                      pieces + (n > body)));
    return SRNN_OK;
}
