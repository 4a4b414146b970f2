/* product_few.cu: products with few rows, as generation has them: y = x W^T + c in bf16.
 *
 * What counts is to read W once, 2 bytes a weight, with as many loads under way as there can be. A warp has one or
 * two rows of W (columns of y); its lanes go along them, 8 numbers each. x comes from the caches. The first loads begin
 * before the kernel in front, which makes x, is over. */
#include "backend/cuda/product.h"

#include "backend/cuda/numbers.h"

enum { WARPS = 4, AHEAD = 8, WIDTH = 8, STEP = SR_WARP * WIDTH };

/* sums[row][column] += what this lane's numbers at one place of x and the weights give. */
template <int ROWS, int COLUMNS>
SR_DEVICE void multiply_part(float (*sums)[COLUMNS], const sr_vector<sr_bf16> *weights,
                             const sr_bf16 *x, int64_t stride, int64_t rows) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= rows)
            break;
        float numbers[WIDTH];
        load_numbers<WIDTH>(numbers, x + row * stride);
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sums[row][column] += numbers[i] * to_float(weights[column].number[i]);
    }
}

/* weights[step][column] = this lane's numbers at start + step * STEP, as far as the rows go. The last row comes twice
 * where the columns of y end. */
template <int COLUMNS, int ahead>
SR_DEVICE void load_weights(sr_vector<sr_bf16> (*weights)[COLUMNS], const sr_cuda_product &p,
                            int64_t first, int64_t start) {
    const sr_bf16 *__restrict__ from = (const sr_bf16 *)p.b + start;
#pragma unroll
    for (int step = 0; step < ahead; step++)
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
            if (start + step * STEP < p.K)
                weights[step][column] =
                    load_vector(from + min(first + column, p.N - 1) * p.b_stride + step * STEP);
}

template <int ROWS, int COLUMNS, class Out>
static __global__ void __launch_bounds__(WARPS *SR_WARP) multiply_few(const sr_cuda_product p) {
    const int lane = threadIdx.x % SR_WARP;
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / SR_WARP) * COLUMNS;
    const sr_bf16 *x = (const sr_bf16 *)p.a;
    float sums[ROWS][COLUMNS] = {};
    constexpr int ahead = AHEAD / COLUMNS;
    sr_vector<sr_bf16> weights[ahead][COLUMNS];
    int64_t start = lane * WIDTH;
    let_next_start();
    load_weights<COLUMNS, ahead>(weights, p, first, start); /* while x is still being made */
    wait_for_previous();
    while (start < p.K) {
#pragma unroll
        for (int step = 0; step < ahead; step++)
            if (start + step * STEP < p.K)
                multiply_part<ROWS, COLUMNS>(sums, weights[step], x + start + step * STEP,
                                             p.a_stride, p.M);
        start += ahead * STEP;
        load_weights<COLUMNS, ahead>(weights, p, first, start);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            float sum = warp_sum(sums[row][column]);
            const int64_t n = first + column;
            if (lane != 0 || row >= p.M || n >= p.N)
                continue;
            if (p.c)
                sum += load_number((const Out *)p.c + row * p.c_stride + n);
            store_number((Out *)p.d + row * p.d_stride + n, sum);
        }
}

template <int ROWS, int COLUMNS>
static srnn_status start(sr_backend *backend, const sr_cuda_product *p) {
    const dim3 grid((unsigned)sr_pieces(p->N, WARPS * COLUMNS)), block(WARPS * SR_WARP);
    if (p->out == SRNN_BF16)
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), multiply_few<ROWS, COLUMNS, sr_bf16>,
                                grid, block, 0, sr_stream_of(backend), *p));
    else
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), multiply_few<ROWS, COLUMNS, float>,
                                grid, block, 0, sr_stream_of(backend), *p));
    return SRNN_OK;
}

bool sr_cuda_is_few(const sr_cuda_product *p) {
    return p->in == SRNN_BF16 && p->M <= SR_CUDA_FEW_ROWS && !p->transpose_a && p->transpose_b &&
           p->K % WIDTH == 0 && sr_is_aligned({p->a, p->a_stride, p->in}, WIDTH) &&
           sr_is_aligned({p->b, p->b_stride, p->in}, WIDTH);
}

srnn_status sr_cuda_multiply_few(sr_backend *backend, const sr_cuda_product *p) {
    if (p->M == 1)
        return start<1, 1>(backend, p);
    if (p->M <= 4)
        return start<4, 1>(backend, p);
    return start<SR_CUDA_FEW_ROWS, 2>(backend, p);
}
