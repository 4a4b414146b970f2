/* rmsnorm.cu: RMS norm of each row, and its gradient.
 *
 * A block owns a row, and reads what does not fit into its registers twice, the second time from
 * the caches. Bytes per number: forward 4 + 2 (bf16; float 4 + 4); backward x 4, d_out 2, d_x 4 +
 * 4, narrow 2 (float: 4, 4, 4 + 4). */
#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/producers.h"
#include "ops/cuda/fp8/tile.h"

enum {
    RESIDENT_THREADS = 1536, /* blocks of backward per multiprocessor, limited by registers */
    MOST_THREADS = 512,      /* of a block */
    MOST_COLUMNS = 40 * 1024 /* whose sums a block can keep in shared memory */
};

/* Stores the norm of W numbers, which are overwritten. */
template <int W, class N>
SR_DEVICE void store_scaled(N *to, float *numbers, const float *weight, float rstd) {
#pragma unroll
    for (int k = 0; k < W; k++)
        numbers[k] *= rstd * weight[k];
    store_numbers<W>(to, numbers);
}

/* A block owns a row; a thread every blockDim.x-th piece of W numbers. Its first two pieces stay in
 * registers (the whole row unless it is long): weights are loaded before the previous kernel is
 * over, x after it, global -> registers; one block sum of squares through shared memory (two
 * barriers); then scaled numbers go registers -> global. Further pieces are read again, from the
 * caches. Thread 0 stores 1/rms for the backward pass. */
template <class N, int W>
static __global__ void __launch_bounds__(MOST_THREADS) norm_row(N *out, const sr_rmsnorm norm) {
    enum { KEPT = 2 }; /* pieces of a thread: as many as sr_row_threads gives it */
    __shared__ float shared[SR_WARP];
    const float *x = norm.x + blockIdx.x * norm.C;
    N *const to = out + blockIdx.x * norm.C;
    const int C = (int)norm.C, first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    float squares = 0, numbers[KEPT][W] = {}, weight[KEPT][W] = {};
    let_next_start();
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (first + i * step < C)
            load_numbers<W>(weight[i], norm.weight + first + i * step);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (first + i * step < C)
            load_numbers<W>(numbers[i], x + first + i * step);
#pragma unroll
    for (int i = 0; i < KEPT; i++)
#pragma unroll
        for (int k = 0; k < W; k++)
            squares += numbers[i][k] * numbers[i][k];
    for (int c = first + KEPT * step; c < C; c += step) {
        float more[W];
        load_numbers<W>(more, x + c);
#pragma unroll
        for (int k = 0; k < W; k++)
            squares += more[k] * more[k];
    }
    squares = block_sum(squares, shared);
    const float rstd = 1.0f / sqrtf(squares / (float)C + norm.epsilon);
    if (threadIdx.x == 0)
        norm.rstd[blockIdx.x] = rstd;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (first + i * step < C)
            store_scaled<W>(to + first + i * step, numbers[i], weight[i], rstd);
    for (int c = first + KEPT * step; c < C; c += step) {
        load_numbers<W>(numbers[0], x + c);
        load_numbers<W>(weight[0], norm.weight + c);
        store_scaled<W>(to + c, numbers[0], weight[0], rstd);
    }
}

/* sum_c d_out w x of a row, by all threads of its block. */
template <class N, int W>
SR_DEVICE float row_dot(const N *__restrict__ d_out, const float *__restrict__ x,
                        const float *__restrict__ weight, int C) {
    __shared__ float shared[SR_WARP];
    float dot = 0;
    for (int c = threadIdx.x * W; c < C; c += (int)blockDim.x * W) {
        float d[W], numbers[W], w[W];
        load_numbers<W>(d, d_out + c);
        load_numbers<W>(numbers, x + c);
        load_numbers<W>(w, weight + c);
#pragma unroll
        for (int k = 0; k < W; k++)
            dot += d[k] * w[k] * numbers[k];
    }
    return block_sum(dot, shared);
}

/* With n = x rstd:  d_x = rstd (d_out w - n mean(d_out w n)),  d_w = d_out n. A block owns
 * `part_rows` consecutive rows; a thread the same columns in each. For each row: a block sum of
 * d_out w x (shared memory, barriers), then d_x += ... in global memory and d_w accumulated in
 * shared memory, by the column's thread alone. After the last row d_w goes to the block's part in
 * the workspace, for add_parts. Deterministic: rows in order, parts in order. Each warp raises the
 * largest size of d_x where that is wanted, by an atomic maximum, whose order does not show. In 8
 * bits d_x is rounded with the scale of the size that is expected. */
template <class N, int W, bool codes>
static __global__ void __launch_bounds__(MOST_THREADS, RESIDENT_THREADS / MOST_THREADS)
    norm_rows_back(const sr_rmsnorm_gradient gradient, const N *__restrict__ d_out,
                   const sr_rmsnorm norm, int64_t part_rows) {
    SR_SHARED(float, d_weight); /* (C) */
    const int C = (int)norm.C, step = (int)blockDim.x * W;
    sr_fp8_scaling scaling = {};
    if constexpr (codes)
        scaling = fp8_expected_scaling<sr_e5m2>(gradient.measured->expected);
    if (codes && blockIdx.x == 0 && threadIdx.x == 0)
        gradient.measured->scale = scaling.back;
    const int64_t first = blockIdx.x * part_rows, end = min(first + part_rows, norm.rows);
    for (int c = threadIdx.x * W; c < C; c += step)
#pragma unroll
        for (int k = 0; k < W; k++)
            d_weight[c + k] = 0;
    uint32_t largest = 0; /* as bits, so that infinity and NaN are above all finite sizes */
    for (int64_t row = first; row < end; row++) {
        const float rstd = norm.rstd[row];
        const float *__restrict__ x_row = norm.x + row * C;
        const N *__restrict__ d_row = d_out + row * C;
        const float dot = row_dot<N, W>(d_row, x_row, norm.weight, C);
        const float pull = dot * rstd * rstd * rstd / (float)C;
        for (int c = threadIdx.x * W; c < C; c += step) {
            float d[W], x[W], weight[W], sum[W], d_x[W];
            load_numbers<W>(d, d_row + c);
            load_numbers<W>(x, x_row + c);
            load_numbers<W>(weight, norm.weight + c);
            load_numbers<W>(sum, d_weight + c);
            load_numbers<W>(d_x, gradient.d_x + row * C + c);
#pragma unroll
            for (int k = 0; k < W; k++) {
                d_x[k] += d[k] * weight[k] * rstd - x[k] * pull;
                sum[k] += d[k] * x[k] * rstd;
                largest = max(largest, float_bits(d_x[k]) & 0x7fffffffu);
            }
            store_numbers<W>(d_weight + c, sum);
            store_numbers<W>(gradient.d_x + row * C + c, d_x);
            if constexpr (codes) {
                *reinterpret_cast<uint32_t *>((uint8_t *)gradient.narrow + row * C + c) =
                    fp8_four<sr_e5m2>(d_x, scaling.multiply);
            } else if (gradient.narrow != gradient.d_x) {
                store_numbers<W>((N *)gradient.narrow + row * C + c, d_x);
            }
        }
    }
    for (int c = threadIdx.x * W; c < C; c += step) {
        float sum[W];
        load_numbers<W>(sum, d_weight + c);
        store_numbers<W>(gradient.scratch + blockIdx.x * norm.C + c, sum);
    }
    if (!gradient.measured)
        return;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        largest = max(largest, shuffle_xor(largest, mask));
    if (threadIdx.x % SR_WARP == 0)
        atomicMax(&gradient.measured->largest, largest);
}

srnn_status sr_cuda_rmsnorm_forward(sr_backend *backend, void *out, const sr_rmsnorm *norm) {
    const sr_place places[] = {{out, norm->C, backend->number},
                               {norm->x, norm->C, SRNN_F32},
                               {norm->weight, 0, SRNN_F32}};
    if (norm->rows == 0)
        return SRNN_OK;
    if (norm->codes)
        return sr_cuda_fp8_norm(backend, out, norm);
    return sr_with_access<4>(backend->number, norm->C, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), norm_row<typename A::N, A::W>,
                                dim3((unsigned)norm->rows), dim3(sr_row_threads(norm->C / A::W)), 0,
                                sr_stream_of(backend), (typename A::N *)out, *norm));
        return SRNN_OK;
    });
}

/* Threads of a block of backward: each has four columns, up to the limit. */
static unsigned back_threads(int64_t C) {
    return sr_row_threads(C / 2);
}

/* Resident blocks: with this many parts the last wave is full. */
static int64_t resident_blocks(const sr_backend *backend, unsigned threads) {
    const int multiprocessors = sr_cuda_facts(backend->device)->multiprocessors;
    return (int64_t)multiprocessors * (RESIDENT_THREADS / threads);
}

/* Consecutive rows of a block. */
static int64_t rows_of_part(const sr_backend *backend, const sr_rmsnorm *norm) {
    const int64_t most = sr_minimum(resident_blocks(backend, back_threads(norm->C)),
                                    sr_workspace_floats(backend) / norm->C);
    return sr_pieces(norm->rows, most);
}

static srnn_status start_back(sr_backend *backend, const sr_rmsnorm_gradient *gradient,
                              const void *d_out, const sr_rmsnorm *norm) {
    const sr_place places[] = {{gradient->narrow, norm->C, backend->number},
                               {d_out, norm->C, backend->number},
                               {gradient->d_x, norm->C, SRNN_F32},
                               {norm->x, norm->C, SRNN_F32},
                               {norm->weight, 0, SRNN_F32}};
    const int64_t part_rows = rows_of_part(backend, norm);
    const dim3 parts((unsigned)sr_pieces(norm->rows, part_rows));
    const size_t sums = (size_t)norm->C * sizeof(float);
    const cudaStream_t stream = sr_stream_of(backend);
    if (gradient->codes) {
        SR_CUDA(sr_launch(norm_rows_back<sr_bf16, 4, true>, parts, dim3(back_threads(norm->C)),
                          sums, stream, *gradient, (const sr_bf16 *)d_out, *norm, part_rows));
        return SRNN_OK;
    }
    return sr_with_access<4>(backend->number, norm->C, places, 5, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(norm_rows_back<typename A::N, A::W, false>, parts,
                          dim3(sr_row_threads(2 * norm->C / A::W)), sums, stream, *gradient,
                          (const typename A::N *)d_out, *norm, part_rows));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_rmsnorm_backward(sr_backend *backend, const sr_rmsnorm_gradient *gradient,
                                     const void *d_out, const sr_rmsnorm *norm) {
    if (norm->rows == 0)
        return SRNN_OK;
    if (norm->C > MOST_COLUMNS)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "the gradient of a norm over %lld channels: CUDA has it for %d at most",
                       (long long)norm->C, MOST_COLUMNS);
    /* More parts than fit the caller's workspace. */
    sr_rmsnorm_gradient parted = *gradient;
    parted.scratch = sr_workspace_of(backend);
    if (gradient->codes)
        SR_TRY(sr_cuda_fp8_expect(backend, gradient->measured, gradient->measured));
    else if (gradient->measured)
        SR_TRY(sr_device_zero(backend->device, gradient->measured, sizeof *gradient->measured));
    SR_TRY(start_back(backend, &parted, d_out, norm));
    if (gradient->codes) {
        const sr_matrix d_x = sr_matrix_of(gradient->d_x, norm->rows, norm->C, SRNN_F32);
        SR_TRY(sr_cuda_fp8_complete(backend, gradient->narrow, d_x, gradient->measured));
    }
    const int64_t parts = sr_pieces(norm->rows, rows_of_part(backend, norm));
    return sr_cuda_add_parts(backend, gradient->d_weight, parted.scratch, parts, norm->C);
}
