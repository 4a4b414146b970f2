/* mlp_activation.cu: activations of MLPs other than SwiGLU and the exact GELU. Bytes per number of
 * out in bf16 (twice that in float): forward 2 + 2, gated 4 + 2; backward 4 + 2, gated 6 + 4. */
#include "ops/activation.h"
#include "ops/cuda/elements.h"

enum { THREADS = 256, PARTS = 512 };

/* Three matrices of one shape, or of 2F columns where they hold gate and up. */
template <class N> struct activation_call {
    N *to;
    const N *d_out, *x;
    int64_t to_stride, d_stride, x_stride, rows;
    int F;
    sr_mlp_activation activation;
};

/* out = f(x), or f(gate) up. A thread owns W columns of one row: global -> registers -> global. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS) activate(const activation_call<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    if (row >= a.rows || c >= a.F)
        return;
    const sr_activation_function f = sr_activation_of(&a.activation);
    float x[W], up[W] = {0};
    load_numbers<W>(x, a.x + row * a.x_stride + c);
    if (a.activation.gated)
        load_numbers<W>(up, a.x + row * a.x_stride + a.F + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        x[k] = sr_activation_value(&f, x[k]) *
               (a.activation.gated ? sr_activation_gated(&f, up[k]) : 1.0f);
    store_numbers<W>(a.to + row * a.to_stride + c, x);
}

/* d_x from d_out, over which it may be written. A thread owns W columns of one row, and of gate and
 * up where there is a gate: global -> registers -> global. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS) activate_back(const activation_call<N> a) {
    const int64_t row = grid_row();
    const int c = grid_item() * W;
    if (row >= a.rows || c >= a.F)
        return;
    const sr_activation_function f = sr_activation_of(&a.activation);
    float x[W], up[W] = {0}, d[W], d_up[W];
    load_numbers<W>(x, a.x + row * a.x_stride + c);
    load_numbers<W>(d, a.d_out + row * a.d_stride + c);
    if (a.activation.gated)
        load_numbers<W>(up, a.x + row * a.x_stride + a.F + c);
#pragma unroll
    for (int k = 0; k < W; k++) {
        d_up[k] = d[k] * sr_activation_value(&f, x[k]) * sr_activation_gated_slope(&f, up[k]);
        d[k] *= sr_activation_slope(&f, x[k]) *
                (a.activation.gated ? sr_activation_gated(&f, up[k]) : 1.0f);
    }
    store_numbers<W>(a.to + row * a.to_stride + c, d);
    if (a.activation.gated)
        store_numbers<W>(a.to + row * a.to_stride + a.F + c, d_up);
}

/* parts (gridDim.x, 2): gradients of alpha_p and alpha_n, without the slope of softplus. A block
 * owns every gridDim.x-th row, a thread every 256th column of it: sums in double in registers, then
 * two block sums. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    alpha_parts(double *parts, const activation_call<N> a) {
    __shared__ double shared[SR_WARP];
    double positive = 0, negative = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x)
        for (int c = (int)threadIdx.x; c < a.F; c += THREADS) {
            const N *at = a.x + row * a.x_stride + c;
            const float x = load_number(at);
            const float d = load_number(a.d_out + row * a.d_stride + c) *
                            (a.activation.gated ? load_number(at + a.F) : 1.0f);
            if (x > 0)
                positive += (double)(d * x * x);
            else
                negative += (double)(d * (sr_xielu_below(x) - x));
        }
    positive = block_sum(positive, shared);
    negative = block_sum(negative, shared);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = positive;
        parts[2 * blockIdx.x + 1] = negative;
    }
}

/* Two threads, one for each alpha: read the parts in order from global memory, add in double, and
 * add the sum times the slope of softplus to the gradient. */
static __global__ void add_alphas(float *d_alpha_p, float *d_alpha_n, const double *parts,
                                  int count, const sr_mlp_activation activation) {
    const bool second = threadIdx.x == 1;
    double sum = 0;
    for (int part = 0; part < count; part++)
        sum += parts[2 * part + second];
    *(second ? d_alpha_n : d_alpha_p) +=
        (float)sum * sr_activation_sigmoid(second ? *activation.alpha_n : *activation.alpha_p);
}

template <class N>
static activation_call<N> call_of(sr_matrix to, sr_matrix d_out, sr_matrix x, int64_t F,
                                  const sr_mlp_activation *activation) {
    return {(N *)to.data,
            (const N *)d_out.data,
            (const N *)x.data,
            to.stride,
            d_out.stride,
            x.stride,
            x.rows,
            (int)F,
            *activation};
}

srnn_status sr_cuda_activation_forward(sr_backend *backend, sr_matrix out, sr_matrix x,
                                       const sr_mlp_activation *activation) {
    const int64_t F = out.columns;
    const sr_place places[] = {sr_place_of(out), sr_place_of(x)};
    if (x.rows == 0 || F == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, F, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(x.rows, F / A::W);
        SR_CUDA(sr_launch(activate<typename A::N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend),
                          call_of<typename A::N>(out, out, x, F, activation)));
        return SRNN_OK;
    });
}

template <class N>
static srnn_status start_alphas(sr_backend *backend, float *const d_alpha[2],
                                const activation_call<N> &call) {
    double *parts = (double *)(void *)sr_workspace_of(backend);
    const int count = (int)sr_minimum(PARTS, call.rows);
    SR_CUDA(sr_launch(alpha_parts<N>, dim3((unsigned)count), dim3(THREADS), 0,
                      sr_stream_of(backend), parts, call));
    SR_CUDA(sr_launch(add_alphas, dim3(1), dim3(2), 0, sr_stream_of(backend), d_alpha[0],
                      d_alpha[1], parts, count, call.activation));
    return SRNN_OK;
}

/* The sums of XIELU come first, because d_x may be written over d_out. */
srnn_status sr_cuda_activation_backward(sr_backend *backend, sr_matrix d_x, float *const d_alpha[2],
                                        sr_matrix d_out, sr_matrix x,
                                        const sr_mlp_activation *activation) {
    const int64_t F = d_out.columns;
    const sr_place places[] = {sr_place_of(d_x), sr_place_of(d_out), sr_place_of(x)};
    if (x.rows == 0 || F == 0)
        return SRNN_OK;
    return sr_with_access<8>(x.dtype, F, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        const activation_call<N> call = call_of<N>(d_x, d_out, x, F, activation);
        const sr_row_grid blocks = sr_row_grid_of(x.rows, F / A::W);
        if (activation->function == SR_ACTIVATION_XIELU)
            SR_TRY(start_alphas<N>(backend, d_alpha, call));
        SR_CUDA(sr_launch(activate_back<N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), call));
        return SRNN_OK;
    });
}
