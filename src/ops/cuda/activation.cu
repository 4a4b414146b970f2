/* activation.cu: SwiGLU and GELU. Bytes per number of out in bf16 (twice that in float): SwiGLU
 * forward 4 + 2, backward 6 + 4; GELU 2 + 2, backward 4 + 2. */
#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/producers.h"

/* Three matrices of one shape, or of 2F columns where they hold gate and up. */
template <class N> struct activation {
    N *to;
    const N *d_out, *x;
    int64_t to_stride, d_stride, x_stride, rows;
    int F;
};

/* out = silu(gate) up. A thread owns W columns of one row: loads gate and up, global -> registers,
 * stores W numbers of out. */
template <class N, int W>
static __global__ void __launch_bounds__(256) swiglu(const activation<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    let_next_start();
    wait_for_previous();
    if (row >= a.rows || c >= a.F)
        return;
    float gate[W], up[W];
    load_numbers<W>(gate, a.x + row * a.x_stride + c);
    load_numbers<W>(up, a.x + row * a.x_stride + a.F + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        up[k] *= gate[k] * sigmoid_for<N>(gate[k]);
    store_numbers<W>(a.to + row * a.to_stride + c, up);
}

/* d_gate and d_up from d_out. A thread owns W columns of one row: loads gate, up and d_out, global
 * -> registers, stores both gradients. */
template <class N, int W>
static __global__ void __launch_bounds__(256) swiglu_back(const activation<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    let_next_start();
    wait_for_previous();
    if (row >= a.rows || c >= a.F)
        return;
    float gate[W], up[W], d[W];
    load_numbers<W>(gate, a.x + row * a.x_stride + c);
    load_numbers<W>(up, a.x + row * a.x_stride + a.F + c);
    load_numbers<W>(d, a.d_out + row * a.d_stride + c);
#pragma unroll
    for (int k = 0; k < W; k++) {
        const float g = gate[k], s = sigmoid_for<N>(g);
        gate[k] = d[k] * up[k] * s * (1.0f + g * (1.0f - s));
        up[k] = d[k] * g * s;
    }
    store_numbers<W>(a.to + row * a.to_stride + c, gate);
    store_numbers<W>(a.to + row * a.to_stride + a.F + c, up);
}

/* GELU (erf form). A thread owns W columns of one row: global -> registers -> global. */
template <class N, int W>
static __global__ void __launch_bounds__(256) gelu(const activation<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    let_next_start();
    wait_for_previous();
    if (row >= a.rows || c >= a.F)
        return;
    float x[W];
    load_numbers<W>(x, a.x + row * a.x_stride + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        x[k] *= 0.5f * (1.0f + erff(x[k] * 0.707106781f));
    store_numbers<W>(a.to + row * a.to_stride + c, x);
}

/* d_x from d_out. A thread owns W columns of one row: loads x and d_out, global -> registers,
 * stores d_x. */
template <class N, int W>
static __global__ void __launch_bounds__(256) gelu_back(const activation<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    let_next_start();
    wait_for_previous();
    if (row >= a.rows || c >= a.F)
        return;
    float x[W], d[W];
    load_numbers<W>(x, a.x + row * a.x_stride + c);
    load_numbers<W>(d, a.d_out + row * a.d_stride + c);
#pragma unroll
    for (int k = 0; k < W; k++) {
        const float below = 0.5f * (1.0f + erff(x[k] * 0.707106781f));
        const float density = 0.398942280f * exp_for<N>(-0.5f * x[k] * x[k]);
        d[k] *= below + x[k] * density;
    }
    store_numbers<W>(a.to + row * a.to_stride + c, d);
}

/* Launches kernel.template operator()<N, W>() over (rows, F). */
template <class Choose>
static srnn_status start(sr_backend *backend, sr_matrix to, sr_matrix d_out, sr_matrix x, int64_t F,
                         Choose choose) {
    const sr_place places[] = {sr_place_of(to), sr_place_of(d_out), sr_place_of(x)};
    if (x.rows == 0 || F == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, F, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        const sr_row_grid blocks = sr_row_grid_of(x.rows, F / A::W);
        const activation<N> a = {(N *)to.data,
                                 (const N *)d_out.data,
                                 (const N *)x.data,
                                 to.stride,
                                 d_out.stride,
                                 x.stride,
                                 x.rows,
                                 (int)F};
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), choose(access), blocks.grid,
                                blocks.block, 0, sr_stream_of(backend), a));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_swiglu_forward(sr_backend *backend, sr_matrix out, sr_matrix x) {
    if (out.handed == SR_HANDED_CODES)
        return sr_cuda_fp8_swiglu(backend, out, x);
    return start(backend, out, out, x, out.columns, [](auto access) {
        return swiglu<typename decltype(access)::N, decltype(access)::W>;
    });
}

srnn_status sr_cuda_swiglu_backward(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                    sr_matrix x) {
    if (d_x.handed == SR_HANDED_CODES)
        return sr_cuda_fp8_swiglu_back(backend, d_x, d_out, x);
    return start(backend, d_x, d_out, x, d_out.columns, [](auto access) {
        return swiglu_back<typename decltype(access)::N, decltype(access)::W>;
    });
}

srnn_status sr_cuda_gelu_forward(sr_backend *backend, sr_matrix out, sr_matrix x) {
    return start(backend, out, out, x, out.columns, [](auto access) {
        return gelu<typename decltype(access)::N, decltype(access)::W>;
    });
}

srnn_status sr_cuda_gelu_backward(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                  sr_matrix x) {
    return start(backend, d_x, d_out, x, d_out.columns, [](auto access) {
        return gelu_back<typename decltype(access)::N, decltype(access)::W>;
    });
}
