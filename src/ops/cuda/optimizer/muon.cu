/* muon.cu: the elementwise steps of Muon; whether and how far a step is applied stands in the
 * step's statistics, in device memory, so that all of it can be captured.
 *
 * Bytes per number: direction reads 4 gradient and 4 momentum, writes 4 and 4; normalise 6 (bf16);
 * the polynomial 8; the update reads 4 + 4, writes 4 and 2 of the bf16 copy. */
#include "ops/cuda/elements.h"

enum { THREADS = 256 };

SR_DEVICE int64_t first_number(int W) {
    return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
}

/* A thread owns W consecutive numbers: loads gradient and momentum, stores momentum and direction.
 * The direction may overwrite the gradient. */
template <int W>
static __global__ void __launch_bounds__(THREADS)
    find_direction(const sr_muon_part part, const sr_step_stats *stats) {
    const int64_t i = first_number(W);
    if (i >= part.n || !stats->applied)
        return;
    const float scale = (float)stats->gradient_scale;
    const float momentum = (float)part.momentum, fresh = (float)(1 - part.momentum);
    float gradient[W], mean[W];
    load_numbers<W>(gradient, part.gradient + i);
    load_numbers<W>(mean, part.mean + i);
#pragma unroll
    for (int k = 0; k < W; k++) {
        const float added = fresh * (scale * gradient[k]);
        mean[k] = momentum * mean[k] + added;
        gradient[k] = momentum * mean[k] + added;
    }
    store_numbers<W>(part.mean + i, mean);
    store_numbers<W>(part.direction + i, gradient);
}

/* A thread owns W consecutive numbers: loads floats, multiplies them by one factor, stores Ns. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    normalise(N *out, const float *__restrict__ x, const sr_step_stats *stats, int64_t n) {
    const int64_t i = first_number(W);
    if (i >= n)
        return;
    const float scale = (float)(1 / (sqrt(stats->squares) + 1e-7));
    float numbers[W];
    load_numbers<W>(numbers, x + i);
#pragma unroll
    for (int k = 0; k < W; k++)
        numbers[k] *= scale;
    store_numbers<W>(out + i, numbers);
}

/* A thread owns one number of a row: loads both matrices, stores the sum; the diagonal has one term
 * more. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    combine(N *out, const N *__restrict__ P, const float *__restrict__ Q, int64_t n,
            float3 factors) {
    const int64_t row = grid_row(), c = grid_item();
    if (row >= n || c >= n)
        return;
    const float both = factors.y * load_number(P + row * n + c) + factors.z * Q[row * n + c];
    store_number(out + row * n + c, row == c ? factors.x + both : both);
}

/* A thread owns W consecutive numbers: loads weight and direction, stores weight and its copy. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    update(const sr_muon_part part, const sr_step_stats *stats) {
    const int64_t i = first_number(W);
    if (i >= part.n || !stats->applied)
        return;
    const float keep = (float)(1 - stats->learning_rate * part.weight_decay);
    const float step = (float)(stats->learning_rate * part.step_size);
    float weight[W], direction[W];
    load_numbers<W>(weight, part.weight + i);
    load_numbers<W>(direction, part.direction + i);
#pragma unroll
    for (int k = 0; k < W; k++)
        weight[k] = keep * weight[k] - step * direction[k];
    store_numbers<W>(part.weight + i, weight);
    if (part.working != part.weight)
        store_numbers<W>((N *)part.working + i, weight);
}

static dim3 blocks_for(int64_t n, int W) {
    return dim3((unsigned)sr_pieces(n, (int64_t)THREADS * W));
}

srnn_status sr_cuda_muon_direction(sr_backend *backend, const sr_step_stats *stats,
                                   const sr_muon_part *part) {
    const sr_place places[] = {{part->mean, 0, SRNN_F32},
                               {part->gradient, 0, SRNN_F32},
                               {part->direction, 0, SRNN_F32}};
    return sr_with_access<4>(SRNN_F32, part->n, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(find_direction<A::W>, blocks_for(part->n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), *part, stats));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_muon_normalise(sr_backend *backend, void *out, const sr_step_stats *stats,
                                   const float *x, int64_t n) {
    const sr_place places[] = {{out, 0, backend->number}, {x, 0, SRNN_F32}};
    return sr_with_access<4>(backend->number, n, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        SR_CUDA(sr_launch(normalise<N, A::W>, blocks_for(n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), (N *)out, x, stats, n));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_muon_polynomial(sr_backend *backend, sr_matrix out, sr_matrix P, const float *Q,
                                    const float factors[3]) {
    const sr_row_grid blocks = sr_row_grid_of(out.rows, out.rows);
    const float3 f = {factors[0], factors[1], factors[2]};
    if (out.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(combine<sr_bf16>, blocks.grid, blocks.block, 0, sr_stream_of(backend),
                          (sr_bf16 *)out.data, (const sr_bf16 *)P.data, Q, out.rows, f));
    else
        SR_CUDA(sr_launch(combine<float>, blocks.grid, blocks.block, 0, sr_stream_of(backend),
                          (float *)out.data, (const float *)P.data, Q, out.rows, f));
    return SRNN_OK;
}

srnn_status sr_cuda_muon_update(sr_backend *backend, const sr_step_stats *stats,
                                const sr_muon_part *part) {
    const sr_place places[] = {{part->weight, 0, SRNN_F32},
                               {part->direction, 0, SRNN_F32},
                               {part->working, 0, backend->number}};
    return sr_with_access<4>(backend->number, part->n, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        SR_CUDA(sr_launch(update<N, A::W>, blocks_for(part->n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), *part, stats));
        return SRNN_OK;
    });
}
