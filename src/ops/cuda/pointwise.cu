/* pointwise.cu: elementwise ops over n numbers. Bytes per number: narrow 6 (bf16), add 12. */
#include "ops/cuda/elements.h"

enum { THREADS = 256 };

/* Rounds float to N. A thread owns W consecutive numbers: global -> registers -> global, one vector
 * load and store each; a block owns 256 W of them. */
template <class N, int W>
static __global__ void __launch_bounds__(THREADS)
    narrow(N *__restrict__ out, const float *__restrict__ x, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n)
        return;
    float numbers[W];
    load_numbers<W>(numbers, x + i);
    store_numbers<W>(out + i, numbers);
}

/* y += x. A thread owns W consecutive numbers of y: loads both, adds, stores; nobody else touches
 * them. */
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
        SR_CUDA(sr_launch(narrow<typename A::N, A::W>, blocks_for(n, A::W), dim3(THREADS), 0,
                          sr_stream_of(backend), (typename A::N *)out, x, n));
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

/* y += x for matrices with strides. Block (x, y) owns 256 columns of row y, a thread one number:
 * global -> registers -> global. */
template <class N>
static __global__ void __launch_bounds__(THREADS) add_rows(const sr_matrix y, const sr_matrix x) {
    const int64_t row = blockIdx.y, column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (column >= y.columns)
        return;
    N *to = (N *)y.data + row * y.stride + column;
    float sum, more;
    load_numbers<1>(&sum, to);
    load_numbers<1>(&more, (const N *)x.data + row * x.stride + column);
    sum += more;
    store_numbers<1>(to, &sum);
}

srnn_status sr_cuda_add_rows(sr_backend *backend, sr_matrix y, sr_matrix x) {
    const int64_t most = 32768; /* per launch */
    for (int64_t first = 0; first < y.rows; first += most) {
        const int64_t rows = y.rows - first < most ? y.rows - first : most;
        const dim3 grid((unsigned)sr_pieces(y.columns, THREADS), (unsigned)rows);
        const sr_matrix to = sr_matrix_rows(y, first, rows), from = sr_matrix_rows(x, first, rows);
        if (y.dtype == SRNN_BF16)
            SR_CUDA(sr_launch(add_rows<sr_bf16>, grid, dim3(THREADS), 0, sr_stream_of(backend), to,
                              from));
        else
            SR_CUDA(sr_launch(add_rows<float>, grid, dim3(THREADS), 0, sr_stream_of(backend), to,
                              from));
    }
    return SRNN_OK;
}
