/* pointwise.cu: elementwise ops over n numbers. Bytes per number: narrow and widen 6 (bf16), add
 * 12. */
#include "ops/cuda/elements.h"

enum { THREADS = 256 };

/* Rounds float to N, or the other way round. A thread owns W consecutive numbers: global ->
 * registers -> global, one vector load and store each; a block owns 256 W of them. */
template <int W, class To, class From>
static __global__ void __launch_bounds__(THREADS)
    convert(To *__restrict__ out, const From *__restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n)
        return;
    float numbers[W];
    load_numbers<W>(numbers, x + i);
    store_numbers<W>(out + i, numbers);
}

/* y += x. A thread owns W consecutive numbers of y: loads both, adds, stores; no other thread
 * touches them. */
template <int W>
static __global__ void __launch_bounds__(THREADS)
    add(float *y, const float *__restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n)
        return;
    float sum[W], more[W];
    load_numbers<W>(sum, y + i);
    load_numbers<W>(more, x + i);
#pragma unroll
    for (int k = 0; k < W; k++)
        sum[k] += more[k];
    store_numbers<W>(y + i, sum);
}

static dim3 blocks_for(int64_t n, int W) {
    return dim3((unsigned)sr_pieces(n, (int64_t)THREADS * W));
}

srnn_status sr_cuda_narrow(sr_backend *backend, void *out, const float *x, int64_t n) {
    const sr_place places[] = {{out, 0, backend->number}, {x, 0, SRNN_F32}};
    if (n == 0)
        return SRNN_OK;
    if (n > 4 && n % 4 != 0) { /* all but the last few numbers, then those */
        const int64_t body = n - n % 4;
        SR_TRY(sr_cuda_narrow(backend, out, x, body));
        return sr_cuda_narrow(backend, sr_number_at(out, body, backend->number), x + body, n % 4);
    }
    return sr_with_access<4>(backend->number, n, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        SR_CUDA(sr_launch(convert<A::W, N, float>, blocks_for(n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), (N *)out, x, n));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_widen(sr_backend *backend, float *out, const void *x, int64_t n) {
    const sr_place places[] = {{out, 0, SRNN_F32}, {x, 0, backend->number}};
    if (n == 0)
        return SRNN_OK;
    if (n > 4 && n % 4 != 0) {
        const int64_t body = n - n % 4;
        SR_TRY(sr_cuda_widen(backend, out, x, body));
        return sr_cuda_widen(backend, out + body, sr_number_at((void *)x, body, backend->number),
                             n % 4);
    }
    return sr_with_access<4>(backend->number, n, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        SR_CUDA(sr_launch(convert<A::W, float, N>, blocks_for(n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), out, (const N *)x, n));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_add(sr_backend *backend, float *y, const float *x, int64_t n) {
    const sr_place places[] = {{y, 0, SRNN_F32}, {x, 0, SRNN_F32}};
    if (n == 0)
        return SRNN_OK;
    if (n > 4 && n % 4 != 0) {
        const int64_t body = n - n % 4;
        SR_TRY(sr_cuda_add(backend, y, x, body));
        return sr_cuda_add(backend, y + body, x + body, n % 4);
    }
    return sr_with_access<4>(SRNN_F32, n, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(add<A::W>, blocks_for(n, A::W), dim3(THREADS), 0, sr_stream_of(backend),
                          y, x, n));
        return SRNN_OK;
    });
}

/* y += x for matrices with strides. A thread owns W columns of one row: loads both, global ->
 * registers, adds, stores; no other thread touches them. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS) add_rows(const sr_matrix y, const sr_matrix x) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    if (row >= y.rows || c >= y.columns)
        return;
    N *const to = (N *)y.data + row * y.stride + c;
    float sum[W], more[W];
    load_numbers<W>(sum, to);
    load_numbers<W>(more, (const N *)x.data + row * x.stride + c);
#pragma unroll
    for (int k = 0; k < W; k++)
        sum[k] += more[k];
    store_numbers<W>(to, sum);
}

srnn_status sr_cuda_add_rows(sr_backend *backend, sr_matrix y, sr_matrix x) {
    const sr_place places[] = {sr_place_of(y), sr_place_of(x)};
    if (y.rows == 0 || y.columns == 0)
        return SRNN_OK;
    return sr_with_access<8>(y.dtype, y.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(y.rows, y.columns / A::W);
        SR_CUDA(sr_launch(add_rows<typename A::N, A::W>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), y, x));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_copy_rows(sr_backend *backend, sr_matrix out, sr_matrix x) {
    const size_t number = sr_element_bytes(out.dtype);
    if (out.rows == 0 || out.columns == 0)
        return SRNN_OK;
    SR_CUDA(cudaMemcpy2DAsync(out.data, (size_t)out.stride * number, x.data,
                              (size_t)x.stride * number, (size_t)out.columns * number,
                              (size_t)out.rows, cudaMemcpyDeviceToDevice, sr_stream_of(backend)));
    return SRNN_OK;
}

/* Zeros in the rows of states whose first token begins a document. Block (x, b) writes every
 * gridDim.x * THREADS-th number of row b, global only; rows that continue are not touched. */
static __global__ void __launch_bounds__(THREADS)
    clear_starts(const sr_matrix states, const int32_t *__restrict__ positions, int64_t T) {
    const int64_t b = blockIdx.y, step = (int64_t)gridDim.x * THREADS;
    if (positions[b * T] != 0)
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < states.columns; i += step)
        ((float *)states.data)[b * states.stride + i] = 0.0f;
}

srnn_status sr_cuda_clear_starts(sr_backend *backend, sr_matrix states, const int32_t *positions,
                                 int64_t T) {
    enum { BLOCKS = 1024 };
    const int64_t blocks = sr_minimum(BLOCKS, sr_pieces(states.columns, THREADS));
    if (states.rows == 0 || states.columns == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch(clear_starts, dim3((unsigned)blocks, (unsigned)states.rows), dim3(THREADS), 0,
                      sr_stream_of(backend), states, positions, T));
    return SRNN_OK;
}
