/* multipliers.cu: constant factors and caps of activations and logits. Bytes per number in bf16
 * (twice that in float): scale and cap 2 + 2, cap backward 4 + 2; add_scaled 8 + 4. */
#include "ops/cuda/elements.h"

enum { THREADS = 256 };

struct scaled {
    float factor;
    SR_DEVICE float operator()(float x) const {
        return factor * x;
    }
};

struct capped {
    float cap;
    SR_DEVICE float operator()(float x) const {
        return cap * tanhf(x / cap);
    }
};

/* x = f(x) in place. A thread owns W columns of one row: global -> registers -> global. */
template <class N, int W, class F>
static __global__ void __launch_bounds__(THREADS) apply(const sr_matrix x, const F f) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    if (row >= x.rows || c >= x.columns)
        return;
    N *const at = (N *)x.data + row * x.stride + c;
    float numbers[W];
    load_numbers<W>(numbers, at);
#pragma unroll
    for (int k = 0; k < W; k++)
        numbers[k] = f(numbers[k]);
    store_numbers<W>(at, numbers);
}

template <class F> static srnn_status start(sr_backend *backend, sr_matrix x, F f) {
    const sr_place places[] = {sr_place_of(x)};
    if (x.rows == 0 || x.columns == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, x.columns, places, 1, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(x.rows, x.columns / A::W);
        SR_CUDA(sr_launch(apply<typename A::N, A::W, F>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), x, f));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_scale(sr_backend *backend, sr_matrix x, float factor) {
    return start(backend, x, scaled{factor});
}

srnn_status sr_cuda_cap_forward(sr_backend *backend, sr_matrix x, float cap) {
    return start(backend, x, capped{cap});
}

/* d_x *= 1 - (capped / cap)^2. A thread owns W columns of one row: loads both, stores d_x. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    cap_back(const sr_matrix d_x, const sr_matrix capped, float cap) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    if (row >= d_x.rows || c >= d_x.columns)
        return;
    N *const at = (N *)d_x.data + row * d_x.stride + c;
    float d[W], t[W];
    load_numbers<W>(d, at);
    load_numbers<W>(t, (const N *)capped.data + row * capped.stride + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        d[k] *= (1.0f - t[k] / cap) * (1.0f + t[k] / cap);
    store_numbers<W>(at, d);
}

srnn_status sr_cuda_cap_backward(sr_backend *backend, sr_matrix d_x, sr_matrix capped, float cap) {
    const sr_place places[] = {sr_place_of(d_x), sr_place_of(capped)};
    if (d_x.rows == 0 || d_x.columns == 0)
        return SRNN_OK;
    return sr_with_access<8>(d_x.dtype, d_x.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(d_x.rows, d_x.columns / A::W);
        SR_CUDA(sr_launch(cap_back<typename A::N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), d_x, capped, cap));
        return SRNN_OK;
    });
}

/* out = x + factor y; out may be x. A thread owns W columns of one row: loads both, stores out. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    add_scaled(const sr_matrix out, const sr_matrix x, const sr_matrix y, float factor) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    if (row >= out.rows || c >= out.columns)
        return;
    float sum[W], more[W];
    load_numbers<W>(sum, (const float *)x.data + row * x.stride + c);
    load_numbers<W>(more, (const N *)y.data + row * y.stride + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        sum[k] += factor * more[k];
    store_numbers<W>((float *)out.data + row * out.stride + c, sum);
}

srnn_status sr_cuda_add_scaled(sr_backend *backend, sr_matrix out, sr_matrix x, sr_matrix y,
                               float factor) {
    const sr_place places[] = {sr_place_of(out), sr_place_of(x), sr_place_of(y)};
    if (out.rows == 0 || out.columns == 0)
        return SRNN_OK;
    return sr_with_access<4>(y.dtype, out.columns, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(out.rows, out.columns / A::W);
        SR_CUDA(sr_launch(add_scaled<typename A::N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), out, x, y, factor));
        return SRNN_OK;
    });
}
