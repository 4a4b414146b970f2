/* cross_entropy.cu: cross-entropy loss of each row of logits, and its gradient in their place.
 *
 * A block owns a row: one pass finds maximum, sum and whether the target is the largest (online
 * softmax), another writes the gradient; the rows in flight fit the L2 cache, so that memory moves
 * 2 + 2 bytes per number (bf16; float 4 + 4). */
#include "ops/cuda/elements.h"

#include <float.h>

/* Online softmax over part of a row: sum = sum of exp(x - maximum). */
struct row_total {
    float maximum, sum;
};

template <class N> SR_DEVICE row_total total_of_both(row_total a, row_total b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    return {maximum,
            a.sum * exp_for<N>(a.maximum - maximum) + b.sum * exp_for<N>(b.maximum - maximum)};
}

/* Over the block; every thread gets the same bits. */
template <class N> SR_DEVICE row_total block_total(row_total total, row_total *shared) {
    const int lane = threadIdx.x % SR_WARP, warps = (int)blockDim.x / SR_WARP;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        total = total_of_both<N>(total,
                                 {shuffle_xor(total.maximum, mask), shuffle_xor(total.sum, mask)});
    if (lane == 0)
        shared[threadIdx.x / SR_WARP] = total;
    __syncthreads();
    total = lane < warps ? shared[lane] : row_total{-FLT_MAX, 0};
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        total = total_of_both<N>(total,
                                 {shuffle_xor(total.maximum, mask), shuffle_xor(total.sum, mask)});
    return total;
}

struct losses_of_rows {
    float *losses;
    int32_t *hits;
    const int32_t *targets;
    int64_t stride;
    float scale, z;
    int V;
    sr_matrix_note *note; /* NULL: none */
};

/* This thread's part of the row. *beaten: whether the target's logit is not the largest, the first
 * of equals, or NaN. The maximum starts finite, so that -inf can be subtracted from it. */
template <class N, int W> SR_DEVICE row_total read_row(int *beaten, const N *x, int V, int target) {
    const float target_logit = load_number(x + target);
    row_total total = {-FLT_MAX, 0};
    *beaten = target_logit != target_logit;
    for (int v = threadIdx.x * W; v < V; v += (int)blockDim.x * W) {
        float logits[W];
        load_numbers<W>(logits, x + v);
        float largest = total.maximum;
#pragma unroll
        for (int k = 0; k < W; k++) {
            largest = fmaxf(largest, logits[k]);
            *beaten |= v + k < target ? logits[k] >= target_logit : logits[k] > target_logit;
        }
        float sum = total.sum * exp_for<N>(total.maximum - largest);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum += exp_for<N>(logits[k] - largest);
        total = {largest, sum};
    }
    return total;
}

template <class N, int W> SR_DEVICE void zero_row(N *x, int V) {
    const float zeros[W] = {0};
    for (int v = threadIdx.x * W; v < V; v += (int)blockDim.x * W)
        store_numbers<W>(x + v, zeros);
}

/* A size, as bits, that no number of scale ((1 + more) softmax - onehot) exceeds; 1.01: what
 * rounding may add. */
SR_DEVICE uint32_t gradient_bound(float scale, float more) {
    return float_bits(scale * (1 + fabsf(more)) * 1.01f) & 0x7fffffffu;
}

/* A block owns a row of V logits; a thread every blockDim.x-th piece of W. First pass: global ->
 * registers, online softmax per thread, combined over the block through shuffles and shared memory
 * (one barrier each for totals and hits); thread 0 stores loss and hit. After a barrier (the
 * target's logit has been read) the second pass reads the logits again, from the L2 cache, and
 * overwrites them with the gradient scale ((1 + 2 z log_sum) softmax - onehot), whose largest size
 * thread 0 bounds by an atomic maximum. Rows without a target get loss 0 and gradient 0. */
template <class N, int W>
static __global__ void __launch_bounds__(512) lose_row(N *logits, const losses_of_rows rows) {
    __shared__ row_total shared[SR_WARP];
    __shared__ int counts[SR_WARP];
    const int64_t row = blockIdx.x;
    const int target = rows.targets[row];
    N *x = logits + row * rows.stride;
    if (target < 0) {
        if (threadIdx.x == 0)
            rows.losses[row] = 0;
        if (threadIdx.x == 0 && rows.hits)
            rows.hits[row] = 0;
        if (rows.scale != 0)
            zero_row<N, W>(x, rows.V);
        return;
    }
    int beaten;
    const row_total total = block_total<N>(read_row<N, W>(&beaten, x, rows.V, target), shared);
    beaten = block_sum(beaten, counts);
    const float log_sum = logf(total.sum) + total.maximum;
    if (threadIdx.x == 0) {
        rows.losses[row] = log_sum - load_number(x + target);
        if (rows.hits)
            rows.hits[row] = beaten == 0;
    }
    if (rows.scale == 0)
        return;
    if (rows.note && threadIdx.x == 0)
        atomicMax(&rows.note->largest, gradient_bound(rows.scale, 2 * rows.z * log_sum));
    __syncthreads(); /* the target's logit has been read */
    const float factor = rows.scale * (1 + 2 * rows.z * log_sum) / total.sum;
    for (int v = threadIdx.x * W; v < rows.V; v += (int)blockDim.x * W) {
        float gradient[W];
        load_numbers<W>(gradient, x + v);
#pragma unroll
        for (int k = 0; k < W; k++)
            gradient[k] = factor * exp_for<N>(gradient[k] - total.maximum) -
                          (v + k == target ? rows.scale : 0.0f);
        store_numbers<W>(x + v, gradient);
    }
}

srnn_status sr_cuda_cross_entropy(sr_backend *backend, float *losses, int32_t *hits,
                                  sr_matrix logits, const sr_cross_entropy *of) {
    const sr_place place = sr_place_of(logits);
    const losses_of_rows rows = {losses,    hits,  of->targets,        logits.stride,
                                 of->scale, of->z, (int)logits.columns, logits.note};
    if (logits.rows == 0)
        return SRNN_OK;
    if (logits.note)
        SR_TRY(sr_device_zero(backend->device, logits.note, sizeof *logits.note));
    return sr_with_access<8>(
        logits.dtype, logits.columns, &place, 1, [&](auto access) -> srnn_status {
            using A = decltype(access);
            SR_CUDA(sr_launch(lose_row<typename A::N, A::W>, dim3((unsigned)logits.rows),
                              dim3(sr_row_threads(logits.columns / A::W)), 0, sr_stream_of(backend),
                              (typename A::N *)logits.data, rows));
            return SRNN_OK;
        });
}
