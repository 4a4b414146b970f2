/* linear.c: the products of a linear layer, in fixed tiles handed to threads. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul.h"
#include "base/threads.h"

#include <stdatomic.h>

/* Each tile of the result is one single-threaded library call: the bits do not depend on the number
 * of threads, and skinny shapes keep every core busy. */
enum { TILE_M = 128, TILE_N = 256 };

typedef struct tiled_product {
    sr_product whole;
    const float *bias; /* (N), added to every row, or NULL */
    atomic_bool failed;
} tiled_product;

static void multiply_tile(void *context, int64_t task, int worker) {
    (void)worker;
    tiled_product *job = context;
    const sr_product *whole = &job->whole;
    const int64_t across = sr_tiles(whole->N, TILE_N);
    const int64_t m = task / across * TILE_M, n = task % across * TILE_N;
    sr_product tile = *whole;
    tile.M = sr_min(TILE_M, whole->M - m);
    tile.N = sr_min(TILE_N, whole->N - n);
    tile.a += whole->transpose_a ? m : m * whole->a_stride;
    tile.b += whole->transpose_b ? n * whole->b_stride : n;
    tile.c += m * whole->c_stride + n;
    if (!sr_matmul(&tile))
        atomic_store(&job->failed, true);
    for (int64_t row = 0; job->bias && row < tile.M; row++)
        for (int64_t column = 0; column < tile.N; column++)
            tile.c[row * tile.c_stride + column] += job->bias[n + column];
}

static srnn_status multiply(sr_backend *backend, const sr_product *product, const float *bias) {
    tiled_product job = {.whole = *product, .bias = bias};
    const int64_t tiles = sr_tiles(product->M, TILE_M) * sr_tiles(product->N, TILE_N);
    sr_parallel(multiply_tile, &job, tiles, backend->threads);
    if (atomic_load(&job.failed))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s had no memory for a product of %lld x %lld x %lld",
                       sr_matmul_library(), (long long)product->M, (long long)product->N,
                       (long long)product->K);
    return SRNN_OK;
}

srnn_status sr_cpu_linear_forward(sr_backend *backend, sr_matrix y, sr_matrix x,
                                  const float *weight, const float *bias, bool add) {
    const sr_product product = {.a = x.data,
                                .b = weight,
                                .c = y.data,
                                .a_stride = x.stride,
                                .b_stride = x.columns,
                                .c_stride = y.stride,
                                .M = y.rows,
                                .N = y.columns,
                                .K = x.columns,
                                .transpose_b = true,
                                .add = add};
    return multiply(backend, &product, bias);
}

srnn_status sr_cpu_linear_backward_input(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const float *weight, bool add) {
    const sr_product product = {.a = d_y.data,
                                .b = weight,
                                .c = d_x.data,
                                .a_stride = d_y.stride,
                                .b_stride = d_x.columns,
                                .c_stride = d_x.stride,
                                .M = d_x.rows,
                                .N = d_x.columns,
                                .K = d_y.columns,
                                .add = add};
    return multiply(backend, &product, NULL);
}

srnn_status sr_cpu_linear_backward_weight(sr_backend *backend, float *d_weight, float *d_bias,
                                          sr_matrix d_y, sr_matrix x) {
    const sr_product product = {.a = d_y.data,
                                .b = x.data,
                                .c = d_weight,
                                .a_stride = d_y.stride,
                                .b_stride = x.stride,
                                .c_stride = x.columns,
                                .M = d_y.columns,
                                .N = x.columns,
                                .K = x.rows,
                                .transpose_a = true,
                                .add = true};
    for (int64_t row = 0; d_bias && row < d_y.rows; row++)
        for (int64_t column = 0; column < d_y.columns; column++)
            d_bias[column] += d_y.data[row * d_y.stride + column];
    return multiply(backend, &product, NULL);
}
