/* qk_clip.cu: the largest scores of heads, and weights that make them smaller.
 *
 * Scores are computed once more for this, as products in float: 2 D operations for each pair of
 * tokens, half of what attention's forward pass has, without its tensor cores. */
#include "ops/cuda/elements.h"

enum { THREADS = 256, TILE = 64, PART = 32, EACH = 4, ROWS = TILE / EACH };

/* Rows first .. first + 63 of a head, channels from d on: global -> shared, as floats, zeros beyond
 * the ends. */
template <class N>
SR_DEVICE void load_tile(float (*to)[PART + 1], const N *data, int64_t time, int64_t first,
                         int64_t d, const sr_scores &s) {
    for (int n = threadIdx.x; n < TILE * PART; n += THREADS) {
        const int row = n / PART, c = n % PART;
        const bool there = first + row < s.T && d + c < s.D;
        to[row][c] = there ? load_number(data + (first + row) * time + d + c) : 0.0f;
    }
}

/* A block owns 64 rows of queries of one head, and walks over the tiles of 64 keys that they see; a
 * thread owns 4 x 4 of the products, 16 apart. Both tiles pass through shared memory, 32 channels
 * at a time, with a barrier before and after. The maximum goes through shuffles and shared memory
 * to one atomic maximum: of positive floats as integers, whose order is the same. */
template <class N>
static __global__ void __launch_bounds__(THREADS) find_largest(float *largest, const sr_scores s) {
    __shared__ float q[TILE][PART + 1], k[TILE][PART + 1], maxima[SR_WARP];
    const int64_t i0 = (int64_t)blockIdx.x * TILE, head = blockIdx.y, b = blockIdx.z;
    const int32_t *const positions = s.positions + b * s.T;
    const int x = threadIdx.x % ROWS, y = threadIdx.x / ROWS;
    const N *const queries = (const N *)s.q.data + b * s.q.batch + head * s.q.head;
    const N *const keys = (const N *)s.k.data + b * s.k.batch + head / (s.H / s.Hkv) * s.k.head;
    const int64_t seen = positions[i0];
    const int64_t window = s.window > 0 && s.window <= seen ? s.window - 1 : seen;
    const int64_t end = i0 + TILE < s.T ? i0 + TILE : s.T;
    float best = 0;
    for (int64_t j0 = (i0 - window) / TILE * TILE; j0 < end; j0 += TILE) {
        float products[EACH][EACH] = {};
        for (int64_t d = 0; d < s.D; d += PART) {
            __syncthreads();
            load_tile(q, queries, s.q.time, i0, d, s);
            load_tile(k, keys, s.k.time, j0, d, s);
            __syncthreads();
#pragma unroll 8
            for (int c = 0; c < PART; c++)
#pragma unroll
                for (int r = 0; r < EACH; r++)
#pragma unroll
                    for (int n = 0; n < EACH; n++)
                        products[r][n] += q[y + r * ROWS][c] * k[x + n * ROWS][c];
        }
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            const int64_t i = i0 + y + r * ROWS;
            const int64_t before = i < s.T ? positions[i] : -1;
#pragma unroll
            for (int n = 0; n < EACH; n++) {
                const int64_t distance = i - (j0 + x + n * ROWS);
                if (distance >= 0 && distance <= before && (s.window == 0 || distance < s.window))
                    best = fmaxf(best, products[r][n]);
            }
        }
    }
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        best = fmaxf(best, shuffle_xor(best, mask));
    if (threadIdx.x % SR_WARP == 0)
        maxima[threadIdx.x / SR_WARP] = best;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int warp = 1; warp < THREADS / SR_WARP; warp++)
        best = fmaxf(best, maxima[warp]);
    if (best > 0)
        atomicMax((int *)largest + head, __float_as_int(s.scale * best));
}

srnn_status sr_cuda_largest_scores(sr_backend *backend, float *largest, const sr_scores *of) {
    const dim3 grid((unsigned)sr_pieces(of->T, TILE), (unsigned)of->H, (unsigned)of->B);
    if (backend->number == SRNN_BF16)
        SR_CUDA(sr_launch(find_largest<sr_bf16>, grid, dim3(THREADS), 0, sr_stream_of(backend),
                          largest, *of));
    else
        SR_CUDA(sr_launch(find_largest<float>, grid, dim3(THREADS), 0, sr_stream_of(backend),
                          largest, *of));
    return SRNN_OK;
}

/* A thread owns one number: finds its head's factor, loads, multiplies, stores weight and copy. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    limit(const sr_head_weights w, const sr_step_stats *stats) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= w.n || !stats->applied)
        return;
    const int64_t head = (w.first + i) / w.head_numbers;
    float largest = 0;
    for (int64_t part = 0; part < w.parts; part++)
        largest = fmaxf(largest, w.largest[part * w.stride + head]);
    if (!(largest > w.limit) || !isfinite(largest))
        return;
    const float factor = w.limit / largest;
    const float weight = w.weight[i] * (w.root ? sqrtf(factor) : factor);
    w.weight[i] = weight;
    if (w.working != w.weight)
        store_number((N *)w.working + i, weight);
}

srnn_status sr_cuda_limit_scores(sr_backend *backend, const sr_step_stats *stats,
                                 const sr_head_weights *of) {
    const dim3 grid((unsigned)sr_pieces(of->n, THREADS));
    if (backend->number == SRNN_BF16)
        SR_CUDA(
            sr_launch(limit<sr_bf16>, grid, dim3(THREADS), 0, sr_stream_of(backend), *of, stats));
    else
        SR_CUDA(sr_launch(limit<float>, grid, dim3(THREADS), 0, sr_stream_of(backend), *of, stats));
    return SRNN_OK;
}
