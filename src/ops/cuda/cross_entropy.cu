/* cross_entropy.cu: cross-entropy loss of each row of logits, and its gradient in their place or in
 * 8 bits.
 *
 * A block owns a row: one pass finds maximum, sum and whether the target is the largest (online
 * softmax), another writes the gradient; the rows in flight fit the L2 cache, so that memory moves
 * 2 + 2 bytes per number (bf16; float 4 + 4). In 8 bits blocks of another kernel own tiles, since
 * the gradient is written transposed as well: 2, then 2 + 2. */
#include "ops/cuda/fp8/tile.h"

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
    /* Of a gradient in 8 bits; NULL: it goes in the place of the logits. */
    struct row_gradient *gradients; /* (rows) */
    sr_matrix_note *note;
};

/* The gradient of a row is factor exp(logits - maximum), minus the scale at the target. */
struct row_gradient {
    float maximum, factor;
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
 * overwrites them with the gradient scale ((1 + 2 z log_sum) softmax - onehot). Rows without a
 * target get loss 0 and gradient 0. For a gradient in 8 bits thread 0 stores what it is computed
 * from, and bounds its largest size by an atomic maximum. */
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
        if (rows.scale != 0 && !rows.gradients)
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
    const float factor = rows.scale * (1 + 2 * rows.z * log_sum) / total.sum;
    if (rows.gradients) {
        if (threadIdx.x == 0) {
            rows.gradients[row] = {total.maximum, factor};
            atomicMax(&rows.note->largest, gradient_bound(rows.scale, 2 * rows.z * log_sum));
        }
        return;
    }
    __syncthreads(); /* the target's logit has been read */
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

/* The gradient in 8 bits. A block owns a tile, a thread a piece of it (tile.h): logits and what the
 * gradients of their rows are computed from go global memory -> registers, codes from there as
 * tile.h has it (one barrier). */
static __global__ void __launch_bounds__(SR_FP8_TILE_THREADS, 5)
    gradient_codes(const sr_fp8_forms to, const sr_bf16 *__restrict__ logits,
                   const losses_of_rows rows) {
    __shared__ sr_fp8_tile tile;
    const sr_fp8_piece own = fp8_piece(to.columns, blockIdx.x);
    uint4 raw[4] = {};
    row_gradient of[4] = {};
    int target[4] = {-1, -1, -1, -1};
    uint32_t codes[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < to.columns && own.row + i < to.rows) {
            raw[i] =
                *reinterpret_cast<const uint4 *>(logits + (own.row + i) * rows.stride + own.column);
            of[i] = rows.gradients[own.row + i];
            target[i] = rows.targets[own.row + i];
        }
    const sr_fp8_scaling scaling = fp8_scaling<sr_e5m2>(rows.note->largest);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        rows.note->scale = scaling.back;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (target[i] >= 0) {
            float gradient[SR_EIGHT];
            fp8_unpack(gradient, raw[i]);
#pragma unroll
            for (int n = 0; n < SR_EIGHT; n++)
                gradient[n] = of[i].factor * exp_for<sr_bf16>(gradient[n] - of[i].maximum) -
                              (own.column + n == target[i] ? rows.scale : 0.0f);
            fp8_codes<sr_e5m2>(codes[i], gradient, scaling.multiply);
        }
    fp8_store_along(tile, codes, to, own);
    __syncthreads();
    fp8_store_across(tile, to, own);
}

static srnn_status write_codes(sr_backend *backend, sr_matrix codes, sr_matrix logits,
                               const losses_of_rows &rows) {
    uint8_t *const along = (uint8_t *)codes.data;
    const sr_fp8_forms to = {along, along + codes.rows * codes.columns, codes.columns,
                             (int)codes.rows, (int)codes.columns};
    SR_CUDA(sr_launch(gradient_codes, dim3(sr_fp8_tiles(codes.rows, codes.columns)),
                      dim3(SR_FP8_TILE_THREADS), 0, sr_stream_of(backend), to,
                      (const sr_bf16 *)logits.data, rows));
    return SRNN_OK;
}

srnn_status sr_cuda_cross_entropy(sr_backend *backend, float *losses, int32_t *hits,
                                  sr_matrix logits, const sr_cross_entropy *of) {
    const sr_place place = sr_place_of(logits);
    const bool coded = of->codes.data && of->scale != 0;
    const losses_of_rows rows = {losses,
                                 hits,
                                 of->targets,
                                 logits.stride,
                                 of->scale,
                                 of->z,
                                 (int)logits.columns,
                                 coded ? (row_gradient *)sr_workspace_of(backend) : nullptr,
                                 of->codes.note};
    if (logits.rows == 0)
        return SRNN_OK;
    if (coded && 2 * logits.rows > sr_workspace_floats(backend))
        return SR_FAIL(SRNN_ERR_LIMIT, "the loss of %lld rows at once in 8 bits",
                       (long long)logits.rows);
    if (coded)
        SR_TRY(sr_device_zero(backend->device, of->codes.note, sizeof *of->codes.note));
    SR_TRY(
        sr_with_access<8>(logits.dtype, logits.columns, &place, 1, [&](auto access) -> srnn_status {
            using A = decltype(access);
            SR_CUDA(sr_launch(lose_row<typename A::N, A::W>, dim3((unsigned)logits.rows),
                              dim3(sr_row_threads(logits.columns / A::W)), 0, sr_stream_of(backend),
                              (typename A::N *)logits.data, rows));
            return SRNN_OK;
        }));
    return coded ? write_codes(backend, of->codes, logits, rows) : SRNN_OK;
}
