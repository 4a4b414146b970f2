/* experts.cu: routers of experts, and what one expert adds. The host does not see the weights, so
 * that an expert's products have all rows; rows without a weight are left out of what is added.
 * Bytes per number in bf16 (twice that in float): add 8 + 2 or 8 + 4, weigh backward 8 + 4. */
#include "ops/cuda/elements.h"

#include <limits.h>

enum { THREADS = 256, ROUTE_WARPS = 8, LANE_COLUMNS = SR_EXPERTS_MAX / SR_WARP };
static_assert(LANE_COLUMNS <= 32, "a lane has one bit for each of its columns");

struct choice {
    float number;
    int place;
};

/* The larger, the first of equals. */
SR_DEVICE choice better(choice a, choice b) {
    return b.number > a.number || (b.number == a.number && b.place < a.place) ? b : a;
}

SR_DEVICE choice warp_best(choice own) {
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        own = better(own, {shuffle_xor(own.number, mask), shuffle_xor(own.place, mask)});
    return own;
}

/* p (count) = softmax of z, by a warp; each lane reads back its own columns only. */
template <class N> SR_DEVICE void route_softmax(float *p, const N *z, int count) {
    const int lane = threadIdx.x % SR_WARP;
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < count; i += SR_WARP)
        most = fmaxf(most, load_number(z + i));
    most = warp_maximum(most);
    for (int i = lane; i < count; i += SR_WARP)
        sum += p[i] = expf(load_number(z + i) - most);
    sum = warp_sum(sum);
    for (int i = lane; i < count; i += SR_WARP)
        p[i] /= sum;
}

/* A warp owns a row. Softmax in global memory, of which each lane has every 32nd column; then the
 * warp chooses the largest as often as the routing says, and each lane keeps a bit for those of its
 * columns that are taken; the others become 0. */
template <class N>
static __global__ void __launch_bounds__(ROUTE_WARPS *SR_WARP)
    route(float *all, const sr_matrix logits, const sr_routing r) {
    const int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / SR_WARP;
    const int lane = threadIdx.x % SR_WARP;
    if (row >= logits.rows)
        return;
    const N *z = (const N *)logits.data + row * logits.stride;
    float *weights = all + row * logits.columns, sum = 0;
    uint32_t taken = 0;
    route_softmax(weights, z, r.count);
    for (int n = 0; n < r.chosen; n++) {
        choice best = {-INFINITY, INT_MAX};
        for (int i = lane, bit = 0; i < r.count; i += SR_WARP, bit++)
            if (!(taken >> bit & 1))
                best = better(best, {weights[i], i});
        best = warp_best(best);
        if (best.place == INT_MAX) { /* not a number: nor is what the token gets */
            sum = NAN;
            break;
        }
        sum += best.number;
        if (best.place % SR_WARP == lane)
            taken |= 1u << best.place / SR_WARP;
    }
    for (int i = lane, bit = 0; i < r.count; i += SR_WARP, bit++)
        weights[i] = isnan(sum)            ? sum
                     : !(taken >> bit & 1) ? 0.0f
                     : r.renormalised      ? weights[i] / sum
                                           : weights[i];
    if (r.shared && lane == 0)
        weights[r.count] = 1.0f / (1.0f + expf(-load_number(z + r.count)));
}

/* A warp owns a row; each lane every 32nd column. `workspace` (rows, count): the softmax. */
template <class N>
static __global__ void __launch_bounds__(ROUTE_WARPS *SR_WARP)
    route_back(const sr_matrix d_logits, float *workspace, const float *all_d, const float *all,
               const sr_matrix logits, const sr_routing r) {
    const int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / SR_WARP;
    const int lane = threadIdx.x % SR_WARP;
    if (row >= logits.rows)
        return;
    const N *z = (const N *)logits.data + row * logits.stride;
    const float *weights = all + row * logits.columns, *d_weights = all_d + row * logits.columns;
    N *d = (N *)d_logits.data + row * d_logits.stride;
    float *p = workspace + row * r.count, sum = 0;
    if (!r.renormalised)
        route_softmax(p, z, r.count);
    for (int i = lane; i < r.count; i += SR_WARP)
        sum += weights[i] > 0 ? weights[i] * d_weights[i] : 0.0f;
    sum = warp_sum(sum);
    for (int i = lane; i < r.count; i += SR_WARP)
        store_number(d + i, (r.renormalised ? weights[i] : p[i]) *
                                ((weights[i] > 0 ? d_weights[i] : 0.0f) - sum));
    if (r.shared && lane == 0) {
        const float w = weights[r.count];
        store_number(d + r.count, d_weights[r.count] * w * (1.0f - w));
    }
}

static dim3 route_grid(sr_matrix logits) {
    return dim3((unsigned)sr_pieces(logits.rows, ROUTE_WARPS));
}

srnn_status sr_cuda_route_forward(sr_backend *backend, float *weights, sr_matrix logits,
                                  const sr_routing *routing) {
    const auto kernel = logits.dtype == SRNN_BF16 ? route<sr_bf16> : route<float>;
    if (logits.rows == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch(kernel, route_grid(logits), dim3(ROUTE_WARPS * SR_WARP), 0,
                      sr_stream_of(backend), weights, logits, *routing));
    return SRNN_OK;
}

/* As many rows at a time as the workspace holds. */
srnn_status sr_cuda_route_backward(sr_backend *backend, sr_matrix d_logits, const float *d_weights,
                                   const float *weights, sr_matrix logits,
                                   const sr_routing *routing) {
    const auto kernel = logits.dtype == SRNN_BF16 ? route_back<sr_bf16> : route_back<float>;
    const int64_t most = sr_workspace_floats(backend) / routing->count;
    for (int64_t first = 0; first < logits.rows; first += most) {
        const int64_t rows = sr_minimum(most, logits.rows - first), at = first * logits.columns;
        const sr_matrix part = sr_matrix_rows(logits, first, rows);
        SR_CUDA(sr_launch(kernel, route_grid(part), dim3(ROUTE_WARPS * SR_WARP), 0,
                          sr_stream_of(backend), sr_matrix_rows(d_logits, first, rows),
                          sr_workspace_of(backend), d_weights + at, weights + at, part, *routing));
    }
    return SRNN_OK;
}

/* ---- one expert */

srnn_status sr_cuda_expert_gather(sr_backend *backend, sr_matrix *out, sr_matrix x,
                                  const sr_expert_rows *of) {
    (void)of;
    out->rows = x.rows;
    return sr_device_copy(backend->device, out->data, x.data,
                          (size_t)(x.rows * x.columns) * sr_element_bytes(x.dtype));
}

/* y += rows, times the row's weight; rows without one stay. A thread owns W columns of one row:
 * loads both, adds, stores y. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    add_weighted(const sr_matrix y, const sr_matrix rows, const sr_expert_rows of, bool weighted) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    if (row >= y.rows || c >= y.columns)
        return;
    const float weight = of.weights[row * of.columns + of.expert];
    if (weight == 0)
        return;
    float *const at = (float *)y.data + row * y.stride + c;
    float sum[W], more[W];
    load_numbers<W>(sum, at);
    load_numbers<W>(more, (const N *)rows.data + row * rows.stride + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        sum[k] += (weighted ? weight : 1.0f) * more[k];
    store_numbers<W>(at, sum);
}

srnn_status sr_cuda_expert_add(sr_backend *backend, sr_matrix y, sr_matrix rows,
                               const sr_expert_rows *of, bool weighted) {
    const sr_place places[] = {sr_place_of(y), sr_place_of(rows)};
    if (y.rows == 0 || y.columns == 0)
        return SRNN_OK;
    return sr_with_access<4>(rows.dtype, y.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(y.rows, y.columns / A::W);
        SR_CUDA(sr_launch(add_weighted<typename A::N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), y, rows, *of, weighted));
        return SRNN_OK;
    });
}

/* The gradient of one weight. A block owns a row: its threads stride over the columns, load, sum
 * and store both gradients times the weight, so that rows without a weight become 0; a block sum
 * through shared memory, and thread 0 stores the weight's gradient. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    weigh_back(const sr_matrix d_out, const sr_matrix d_activated, const sr_matrix activated,
               const float *bias, const sr_expert_rows of) {
    __shared__ float shared[SR_WARP];
    const int64_t row = blockIdx.x, at = row * of.columns + of.expert;
    const float weight = of.weights[at];
    N *const out = (N *)d_out.data + row * d_out.stride;
    N *const inner = (N *)d_activated.data + row * d_activated.stride;
    const N *const seen = (const N *)activated.data + row * activated.stride;
    float sum = 0;
    for (int f = (int)threadIdx.x; f < activated.columns; f += THREADS) {
        const float d = load_number(inner + f);
        sum += d * load_number(seen + f);
        store_number(inner + f, weight == 0 ? 0.0f : weight * d);
    }
    for (int c = (int)threadIdx.x; c < d_out.columns; c += THREADS) {
        const float d = load_number(out + c);
        sum += bias ? d * bias[c] : 0.0f;
        store_number(out + c, weight == 0 ? 0.0f : weight * d);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        of.d_weights[at] = weight == 0 ? 0.0f : sum;
}

srnn_status sr_cuda_expert_weigh_backward(sr_backend *backend, sr_matrix d_out,
                                          sr_matrix d_activated, sr_matrix activated,
                                          const float *bias, const sr_expert_rows *of) {
    const auto kernel = d_out.dtype == SRNN_BF16 ? weigh_back<sr_bf16> : weigh_back<float>;
    if (d_out.rows == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch(kernel, dim3((unsigned)d_out.rows), dim3(THREADS), 0, sr_stream_of(backend),
                      d_out, d_activated, activated, bias, *of));
    return SRNN_OK;
}
