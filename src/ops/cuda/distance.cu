/* distance.cu: how far a student is from its teacher: divergence of logits, squared error of rows.
 *
 * A block owns a row. Divergence reads both rows of logits twice (three times reversed), from the
 * second time on out of the L2 cache, so that memory moves 2 + 2 bytes in and 2 out per pair of
 * numbers (bf16; float 4 + 4 and 4). */
#include "ops/cuda/elements.h"

#include <float.h>

/* Of a row x (V): largest number, and the logarithm of the sum of exp((x - largest) / t). */
struct log_total {
    float largest, log_sum;
};

SR_DEVICE float block_largest(float x, float *shared) {
    const int lane = threadIdx.x % SR_WARP, warps = (int)blockDim.x / SR_WARP;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    if (lane == 0)
        shared[threadIdx.x / SR_WARP] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : -FLT_MAX;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    __syncthreads();
    return x;
}

/* Two passes over the row, each thread with every blockDim.x-th piece of W: the largest, then the
 * sum; every thread gets the same bits. */
template <class N, int W>
SR_DEVICE log_total total_of_row(const N *x, int V, float inverse, float *shared) {
    float largest = -FLT_MAX, sum = 0, logits[W];
    for (int v = threadIdx.x * W; v < V; v += (int)blockDim.x * W) {
        load_numbers<W>(logits, x + v);
#pragma unroll
        for (int k = 0; k < W; k++)
            largest = fmaxf(largest, logits[k]);
    }
    largest = block_largest(largest, shared);
    for (int v = threadIdx.x * W; v < V; v += (int)blockDim.x * W) {
        load_numbers<W>(logits, x + v);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum += expf((logits[k] - largest) * inverse);
    }
    return {largest, logf(block_sum(sum, shared))};
}

SR_DEVICE float log_of(float x, log_total total, float inverse) {
    return (x - total.largest) * inverse - total.log_sum;
}

struct diverging_rows {
    float *losses;
    const int32_t *targets;
    int64_t student_stride, teacher_stride;
    float inverse, temperature, scale;
    int V;
    bool reversed;
};

/* A block owns a row of V logits of both models; a thread every blockDim.x-th piece of W. The two
 * totals come first (global -> registers, combined through shuffles and shared memory), then the
 * sum of the divergence, which thread 0 stores; after the barrier in block_sum no thread reads the
 * sum's logits any more but their own thread, which overwrites them with the gradient. Rows that
 * are not counted get loss 0 and gradient 0. */
template <class N, int W>
static __global__ void __launch_bounds__(512)
    diverge_row(N *student, const N *teacher, const diverging_rows rows) {
    __shared__ float shared[SR_WARP];
    const int64_t row = blockIdx.x;
    N *x = student + row * rows.student_stride;
    const N *y = teacher + row * rows.teacher_stride;
    const bool counted = rows.targets[row] >= 0;
    float sum = 0, at_x[W], at_y[W];
    log_total q = {0, 0}, p = {0, 0};
    if (counted) { /* the same for the whole block */
        q = total_of_row<N, W>(x, rows.V, rows.inverse, shared);
        p = total_of_row<N, W>(y, rows.V, rows.inverse, shared);
        for (int v = threadIdx.x * W; v < rows.V; v += (int)blockDim.x * W) {
            load_numbers<W>(at_x, x + v);
            load_numbers<W>(at_y, y + v);
#pragma unroll
            for (int k = 0; k < W; k++) {
                const float log_q = log_of(at_x[k], q, rows.inverse);
                const float log_p = log_of(at_y[k], p, rows.inverse);
                sum +=
                    rows.reversed ? expf(log_q) * (log_q - log_p) : expf(log_p) * (log_p - log_q);
            }
        }
        sum = block_sum(sum, shared);
    }
    if (threadIdx.x == 0)
        rows.losses[row] = rows.temperature * rows.temperature * sum;
    const float factor = counted ? rows.scale * rows.temperature : 0.0f;
    for (int v = threadIdx.x * W; v < rows.V; v += (int)blockDim.x * W) {
        load_numbers<W>(at_x, x + v);
        load_numbers<W>(at_y, y + v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float log_q = log_of(at_x[k], q, rows.inverse);
            const float log_p = log_of(at_y[k], p, rows.inverse);
            const float slope =
                rows.reversed ? expf(log_q) * (log_q - log_p - sum) : expf(log_q) - expf(log_p);
            at_x[k] = counted ? factor * slope : 0.0f;
        }
        store_numbers<W>(x + v, at_x);
    }
}

srnn_status sr_cuda_divergence(sr_backend *backend, float *losses, const sr_divergence *of) {
    const sr_matrix x = of->student, y = of->teacher;
    const sr_place places[] = {sr_place_of(x), sr_place_of(y)};
    const diverging_rows rows = {
        losses,          of->targets, x.stride,       y.stride,    1.0f / of->temperature,
        of->temperature, of->scale,   (int)x.columns, of->reversed};
    if (x.rows == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, x.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(diverge_row<typename A::N, A::W>, dim3((unsigned)x.rows),
                          dim3(sr_row_threads(x.columns / A::W)), 0, sr_stream_of(backend),
                          (typename A::N *)x.data, (const typename A::N *)y.data, rows));
        return SRNN_OK;
    });
}

/* A block owns a row of C numbers of x and y; a thread every blockDim.x-th piece of W: global ->
 * registers, the difference to d_x where it is wanted, its squares summed over the block through
 * shuffles and shared memory; thread 0 adds the sum to the row's error. */
template <class N, int W>
static __global__ void __launch_bounds__(512)
    error_of_row(float *errors, N *d_x, int64_t stride, const sr_square_error of) {
    __shared__ float shared[SR_WARP];
    const int64_t row = blockIdx.x;
    const float *x = of.x + row * of.C, *y = of.y + row * of.C;
    const float counted = of.targets[row] < 0 ? 0.0f : 1.0f;
    const float slope = counted * 2.0f * of.factor * of.scale;
    float sum = 0, at_x[W], at_y[W];
    for (int64_t c = (int64_t)threadIdx.x * W; c < of.C; c += (int64_t)blockDim.x * W) {
        load_numbers<W>(at_x, x + c);
        load_numbers<W>(at_y, y + c);
#pragma unroll
        for (int k = 0; k < W; k++) {
            at_x[k] -= at_y[k];
            sum += at_x[k] * at_x[k];
            at_x[k] *= slope;
        }
        if (d_x)
            store_numbers<W>(d_x + row * stride + c, at_x);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        errors[row] += counted * of.factor * sum;
}

srnn_status sr_cuda_square_error(sr_backend *backend, float *errors, sr_matrix d_x,
                                 const sr_square_error *of) {
    const srnn_dtype number = d_x.data ? d_x.dtype : SRNN_F32;
    const sr_place places[] = {{of->x, of->C, SRNN_F32},
                               {of->y, of->C, SRNN_F32},
                               {d_x.data, d_x.data ? d_x.stride : 0, number}};
    if (of->rows == 0)
        return SRNN_OK;
    return sr_with_access<4>(number, of->C, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(error_of_row<typename A::N, A::W>, dim3((unsigned)of->rows),
                          dim3(sr_row_threads(of->C / A::W)), 0, sr_stream_of(backend), errors,
                          (typename A::N *)d_x.data, d_x.stride, *of));
        return SRNN_OK;
    });
}
