/* linear.c: the products of a linear layer, in fixed tiles handed to threads. */
#include "backend/cpu/cpu.h"
#include "base/threads.h"

#include <stdatomic.h>
#include <string.h>

/* Each tile of the result is one single-threaded library call: the bits do not depend on the number
 * of threads, and skinny shapes keep every core busy. For tiles this small libraries do not copy
 * their operands; rows that lie a power of two apart then fall into the same few cache lines (a third
 * of the speed was measured). So operands whose rows run along the sum are copied first, to rows a
 * little farther apart; a worker keeps its last copies, which the next tile mostly needs again. */
enum { TILE_M = SR_PACK_A, TILE_N = SR_PACK_B };

typedef struct tiled_product {
    sr_product whole;  /* one slice of the sum */
    const float *bias; /* (N), added to every row, or NULL */
    sr_pack *packs;    /* (threads) */
    const sr_cpu_rows *loops;
    atomic_bool failed;
} tiled_product;

static void copy_panel(float *to, const float *from, int64_t stride, int64_t rows, int64_t columns,
                       int64_t to_stride) {
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * to_stride, from + row * stride, (size_t)columns * sizeof *to);
}

static void pack_tile(sr_product *tile, sr_pack *pack, int64_t m, int64_t n) {
    enum { A_STRIDE = SR_PACK_A + SR_PACK_GAP, B_STRIDE = SR_PACK_B + SR_PACK_GAP };
    if (tile->transpose_a) {
        if (pack->a_panel != m)
            copy_panel(pack->a, tile->a, tile->a_stride, tile->K, tile->M, A_STRIDE);
        pack->a_panel = m;
        tile->a = pack->a;
        tile->a_stride = A_STRIDE;
    }
    if (!tile->transpose_b) {
        if (pack->b_panel != n)
            copy_panel(pack->b, tile->b, tile->b_stride, tile->K, tile->N, B_STRIDE);
        pack->b_panel = n;
        tile->b = pack->b;
        tile->b_stride = B_STRIDE;
    }
}

static void round_panel(const sr_cpu_rows *loops, uint16_t *to, const float *from, int64_t stride,
                        int64_t rows, int64_t columns, int64_t to_stride) {
    for (int64_t row = 0; row < rows; row++)
        loops->to_bf16(to + row * to_stride, from + row * stride, columns);
}

/* Both operands are copied, as bf16, in the order in which they are stored. */
static bool multiply_bf16(const sr_product *tile, sr_pack *pack, const sr_cpu_rows *loops,
                          int64_t m, int64_t n) {
    enum { A_STRIDE = SR_PACK_A + SR_PACK_GAP, B_STRIDE = SR_PACK_B + SR_PACK_GAP };
    enum { K_STRIDE = SR_PACK_DEPTH + SR_PACK_GAP };
    uint16_t *a = (uint16_t *)(void *)pack->a, *b = (uint16_t *)(void *)pack->b;
    const int64_t a_stride = tile->transpose_a ? A_STRIDE : K_STRIDE;
    const int64_t b_stride = tile->transpose_b ? K_STRIDE : B_STRIDE;
    if (pack->a_panel != m)
        round_panel(loops, a, tile->a, tile->a_stride, tile->transpose_a ? tile->K : tile->M,
                    tile->transpose_a ? tile->M : tile->K, a_stride);
    if (pack->b_panel != n)
        round_panel(loops, b, tile->b, tile->b_stride, tile->transpose_b ? tile->N : tile->K,
                    tile->transpose_b ? tile->K : tile->N, b_stride);
    pack->a_panel = m;
    pack->b_panel = n;
    const sr_product_bf16 product = {.a = a,
                                     .b = b,
                                     .c = tile->c,
                                     .a_stride = a_stride,
                                     .b_stride = b_stride,
                                     .c_stride = tile->c_stride,
                                     .M = tile->M,
                                     .N = tile->N,
                                     .K = tile->K,
                                     .transpose_a = tile->transpose_a,
                                     .transpose_b = tile->transpose_b,
                                     .add = tile->add};
    return sr_matmul_bf16_run(pack->bf16, &product);
}

static bool multiply_float(sr_product *tile, sr_pack *pack, int64_t m, int64_t n) {
    pack_tile(tile, pack, m, n);
    return sr_matmul(tile);
}

static void multiply_tile(void *context, int64_t task, int worker) {
    tiled_product *job = context;
    const sr_product *whole = &job->whole;
    const int64_t down = sr_tiles(whole->M, TILE_M);
    const int64_t m = task % down * TILE_M, n = task / down * TILE_N;
    sr_product tile = *whole;
    tile.M = sr_min(TILE_M, whole->M - m);
    tile.N = sr_min(TILE_N, whole->N - n);
    tile.a += whole->transpose_a ? m : m * whole->a_stride;
    tile.b += whole->transpose_b ? n * whole->b_stride : n;
    tile.c += m * whole->c_stride + n;
    sr_pack *pack = &job->packs[worker];
    if (!(pack->bf16 ? multiply_bf16(&tile, pack, job->loops, m, n)
                     : multiply_float(&tile, pack, m, n)))
        atomic_store(&job->failed, true);
    for (int64_t row = 0; job->bias && row < tile.M; row++)
        for (int64_t column = 0; column < tile.N; column++)
            tile.c[row * tile.c_stride + column] += job->bias[n + column];
}

static srnn_status multiply_slice(sr_backend *backend, const sr_product *slice, const float *bias) {
    tiled_product job = {.whole = *slice,
                         .bias = bias,
                         .packs = ((sr_backend_cpu *)backend)->packs,
                         .loops = sr_cpu_rows_of(backend)};
    const int64_t tiles = sr_tiles(slice->M, TILE_M) * sr_tiles(slice->N, TILE_N);
    for (int worker = 0; worker < backend->threads; worker++)
        job.packs[worker].a_panel = job.packs[worker].b_panel = -1;
    sr_parallel(multiply_tile, &job, tiles, backend->threads);
    if (atomic_load(&job.failed))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s had no memory for a product of %lld x %lld x %lld",
                       sr_matmul_library(), (long long)slice->M, (long long)slice->N,
                       (long long)slice->K);
    return SRNN_OK;
}

/* Long sums are done in slices that fit the packs. */
static srnn_status multiply(sr_backend *backend, const sr_product *product, const float *bias) {
    const bool packs = product->transpose_a || !product->transpose_b ||
                       ((const sr_backend_cpu *)backend)->packs->bf16;
    const int64_t depth = packs ? SR_PACK_DEPTH : product->K;
    for (int64_t k = 0; k < product->K; k += depth) {
        sr_product slice = *product;
        slice.K = sr_min(depth, product->K - k);
        slice.a += product->transpose_a ? k * product->a_stride : k;
        slice.b += product->transpose_b ? k : k * product->b_stride;
        slice.add = product->add || k > 0;
        SR_TRY(multiply_slice(backend, &slice, k == 0 ? bias : NULL));
    }
    return SRNN_OK;
}

/* Columns first .. first + N of y, beside those of the other layers of a group. */
static srnn_status forward_one(sr_backend *backend, sr_matrix y, sr_matrix x,
                               const sr_linear *layer, bool add) {
    const sr_product product = {.a = x.data,
                                .b = layer->weight,
                                .c = y.data,
                                .a_stride = x.stride,
                                .b_stride = x.columns,
                                .c_stride = y.stride,
                                .M = y.rows,
                                .N = y.columns,
                                .K = x.columns,
                                .transpose_b = true,
                                .add = add};
    return multiply(backend, &product, layer->bias);
}

typedef struct row_copy {
    sr_matrix to, from;
} row_copy;

enum { COPY_ROWS = 64 };

static void copy_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_copy *job = context;
    const int64_t end = sr_min((task + 1) * COPY_ROWS, job->to.rows);
    for (int64_t row = task * COPY_ROWS; row < end; row++)
        memcpy(sr_cpu_row(job->to, row), sr_cpu_row(job->from, row),
               (size_t)job->to.columns * sizeof(float));
}

srnn_status sr_cpu_linear_forward(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                  const sr_linear *layers, int count) {
    if (addend.data && addend.data != y.data) {
        row_copy job = {y, addend};
        sr_parallel(copy_rows, &job, sr_tiles(y.rows, COPY_ROWS), backend->threads);
    }
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N)
        SR_TRY(forward_one(backend, sr_matrix_columns(y, first, layers[i].N), x, &layers[i],
                           addend.data != NULL));
    return SRNN_OK;
}

srnn_status sr_cpu_linear_backward_input(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const sr_linear *layers, int count) {
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N) {
        const sr_product product = {.a = sr_matrix_columns(d_y, first, layers[i].N).data,
                                    .b = layers[i].weight,
                                    .c = d_x.data,
                                    .a_stride = d_y.stride,
                                    .b_stride = d_x.columns,
                                    .c_stride = d_x.stride,
                                    .M = d_x.rows,
                                    .N = d_x.columns,
                                    .K = layers[i].N,
                                    .add = i > 0};
        SR_TRY(multiply(backend, &product, NULL));
    }
    return SRNN_OK;
}

static srnn_status backward_weight_one(sr_backend *backend, const sr_linear_gradient *layer,
                                       sr_matrix d_y, sr_matrix x) {
    const sr_product product = {.a = d_y.data,
                                .b = x.data,
                                .c = layer->weight,
                                .a_stride = d_y.stride,
                                .b_stride = x.stride,
                                .c_stride = x.columns,
                                .M = d_y.columns,
                                .N = x.columns,
                                .K = x.rows,
                                .transpose_a = true,
                                .add = true};
    for (int64_t row = 0; layer->bias && row < d_y.rows; row++)
        for (int64_t column = 0; column < d_y.columns; column++)
            layer->bias[column] += sr_cpu_row(d_y, row)[column];
    return multiply(backend, &product, NULL);
}

srnn_status sr_cpu_linear_backward_weight(sr_backend *backend, const sr_linear_gradient *layers,
                                          int count, sr_matrix d_y, sr_matrix x) {
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N)
        SR_TRY(backward_weight_one(backend, &layers[i], sr_matrix_columns(d_y, first, layers[i].N),
                                   x));
    return SRNN_OK;
}
