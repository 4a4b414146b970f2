/* linear.c: the products of a linear layer, in fixed tiles handed to threads. */
#include "backend/cpu/cpu.h"
#include "base/threads.h"

#include <stdatomic.h>
#include <string.h>

/* Each tile of a result is one single-threaded library call: the bits do not depend on the number
 * of threads, and skinny shapes keep every core busy. For tiles this small libraries do not copy
 * their operands; rows that lie a power of two apart then fall into the same few cache lines (a third
 * of the speed was measured). So operands whose rows run along the sum are copied first, to rows a
 * little farther apart; a worker keeps its last copies, which the next tile mostly needs again. */

/* A product, and what is added to each of its rows: (N) or NULL. */
typedef struct biased_product {
    sr_product product;
    const float *bias;
} biased_product;

typedef struct tile_size {
    int64_t m, n;
} tile_size;

/* Products of one depth that run side by side; of each, one slice of the sum. */
typedef struct tiled_products {
    const biased_product *items;
    tile_size tile;
    sr_pack *packs; /* (threads) */
    const sr_cpu_rows *loops;
    atomic_bool failed;
} tiled_products;

static int64_t tiles_in(const sr_product *p, tile_size tile) {
    return sr_tiles(p->M, tile.m) * sr_tiles(p->N, tile.n);
}

static int64_t all_tiles(const biased_product *items, int count, tile_size tile) {
    int64_t tiles = 0;
    for (int i = 0; i < count; i++)
        tiles += tiles_in(&items[i].product, tile);
    return tiles;
}

/* Large tiles are faster, many keep more cores busy: the largest that are enough of them. Threads
 * have no say in it, as they must not change the bits. */
static tile_size tile_size_for(const biased_product *items, int count) {
    enum { TILES_WANTED = 32, LEAST = 64 };
    tile_size tile = {SR_PACK_A, SR_PACK_B};
    while (all_tiles(items, count, tile) < TILES_WANTED && tile.n > LEAST)
        *(tile.n > tile.m ? &tile.n : &tile.m) /= 2;
    return tile;
}

static void copy_panel(float *to, const float *from, int64_t stride, int64_t rows, int64_t columns,
                       int64_t to_stride) {
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * to_stride, from + row * stride, (size_t)columns * sizeof *to);
}

static void pack_tile(sr_product *tile, sr_pack *pack) {
    enum { A_STRIDE = SR_PACK_A + SR_PACK_GAP, B_STRIDE = SR_PACK_B + SR_PACK_GAP };
    if (tile->transpose_a) {
        if (pack->a_from != tile->a)
            copy_panel(pack->a, tile->a, tile->a_stride, tile->K, tile->M, A_STRIDE);
        pack->a_from = tile->a;
        tile->a = pack->a;
        tile->a_stride = A_STRIDE;
    }
    if (!tile->transpose_b) {
        if (pack->b_from != tile->b)
            copy_panel(pack->b, tile->b, tile->b_stride, tile->K, tile->N, B_STRIDE);
        pack->b_from = tile->b;
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
static bool multiply_bf16(const sr_product *tile, sr_pack *pack, const sr_cpu_rows *loops) {
    enum { A_STRIDE = SR_PACK_A + SR_PACK_GAP, B_STRIDE = SR_PACK_B + SR_PACK_GAP };
    enum { K_STRIDE = SR_PACK_DEPTH + SR_PACK_GAP };
    uint16_t *a = (uint16_t *)(void *)pack->a, *b = (uint16_t *)(void *)pack->b;
    const int64_t a_stride = tile->transpose_a ? A_STRIDE : K_STRIDE;
    const int64_t b_stride = tile->transpose_b ? K_STRIDE : B_STRIDE;
    if (pack->a_from != tile->a)
        round_panel(loops, a, tile->a, tile->a_stride, tile->transpose_a ? tile->K : tile->M,
                    tile->transpose_a ? tile->M : tile->K, a_stride);
    if (pack->b_from != tile->b)
        round_panel(loops, b, tile->b, tile->b_stride, tile->transpose_b ? tile->N : tile->K,
                    tile->transpose_b ? tile->K : tile->N, b_stride);
    pack->a_from = tile->a;
    pack->b_from = tile->b;
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

static bool multiply_float(sr_product *tile, sr_pack *pack) {
    pack_tile(tile, pack);
    return sr_matmul(tile);
}

static void multiply_tile(void *context, int64_t task, int worker) {
    tiled_products *job = context;
    const biased_product *item = job->items;
    for (; task >= tiles_in(&item->product, job->tile); item++)
        task -= tiles_in(&item->product, job->tile);
    const sr_product *whole = &item->product;
    const int64_t down = sr_tiles(whole->M, job->tile.m);
    const int64_t m = task % down * job->tile.m, n = task / down * job->tile.n;
    sr_product tile = *whole;
    tile.M = sr_min(job->tile.m, whole->M - m);
    tile.N = sr_min(job->tile.n, whole->N - n);
    tile.a += whole->transpose_a ? m : m * whole->a_stride;
    tile.b += whole->transpose_b ? n * whole->b_stride : n;
    tile.c += m * whole->c_stride + n;
    sr_pack *pack = &job->packs[worker];
    if (!(pack->bf16 ? multiply_bf16(&tile, pack, job->loops) : multiply_float(&tile, pack)))
        atomic_store(&job->failed, true);
    for (int64_t row = 0; item->bias && row < tile.M; row++)
        for (int64_t column = 0; column < tile.N; column++)
            tile.c[row * tile.c_stride + column] += item->bias[n + column];
}

static srnn_status multiply_slices(sr_backend *backend, const biased_product *slices, int count,
                                   tile_size tile) {
    tiled_products job = {.items = slices,
                          .tile = tile,
                          .packs = ((sr_backend_cpu *)backend)->packs,
                          .loops = sr_cpu_rows_of(backend)};
    for (int worker = 0; worker < backend->threads; worker++)
        job.packs[worker].a_from = job.packs[worker].b_from = NULL;
    sr_parallel(multiply_tile, &job, all_tiles(slices, count, tile), backend->threads);
    if (atomic_load(&job.failed))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s had no memory for a product of %lld x %lld x %lld",
                       sr_matmul_library(), (long long)slices->product.M,
                       (long long)slices->product.N, (long long)slices->product.K);
    return SRNN_OK;
}

/* Products that need not wait for each other, with sums of one length; long ones are done in slices
 * that fit the packs. */
static srnn_status multiply(sr_backend *backend, const biased_product *items, int count) {
    const sr_product *first = &items->product;
    const bool packs =
        first->transpose_a || !first->transpose_b || ((const sr_backend_cpu *)backend)->packs->bf16;
    const int64_t depth = packs ? SR_PACK_DEPTH : first->K;
    const tile_size tile = tile_size_for(items, count);
    for (int64_t k = 0; k < first->K; k += depth) {
        biased_product slices[SR_LINEAR_GROUP_MAX];
        for (int i = 0; i < count; i++) {
            sr_product slice = items[i].product;
            slice.K = sr_min(depth, slice.K - k);
            slice.a += slice.transpose_a ? k * slice.a_stride : k;
            slice.b += slice.transpose_b ? k : k * slice.b_stride;
            slice.add = slice.add || k > 0;
            slices[i] = (biased_product){slice, k == 0 ? items[i].bias : NULL};
        }
        SR_TRY(multiply_slices(backend, slices, count, tile));
    }
    return SRNN_OK;
}

/* Columns of y, beside those of the other layers of a group. */
static biased_product forward_one(sr_matrix y, sr_matrix x, const sr_linear *layer, bool add) {
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
    return (biased_product){product, layer->bias};
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
    biased_product items[SR_LINEAR_GROUP_MAX];
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N)
        items[i] = forward_one(sr_matrix_columns(y, first, layers[i].N), x, &layers[i],
                               addend.data != NULL);
    return multiply(backend, items, count);
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
        SR_TRY(multiply(backend, &(biased_product){.product = product}, 1));
    }
    return SRNN_OK;
}

static biased_product backward_weight_one(const sr_linear_gradient *layer, sr_matrix d_y,
                                          sr_matrix x) {
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
    return (biased_product){.product = product};
}

static void backward_bias(float *bias, sr_matrix d_y) {
    for (int64_t row = 0; row < d_y.rows; row++)
        for (int64_t column = 0; column < d_y.columns; column++)
            bias[column] += sr_cpu_row(d_y, row)[column];
}

srnn_status sr_cpu_linear_backward_weight(sr_backend *backend, const sr_linear_gradient *layers,
                                          int count, sr_matrix d_y, sr_matrix x) {
    biased_product items[SR_LINEAR_GROUP_MAX];
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N) {
        const sr_matrix columns = sr_matrix_columns(d_y, first, layers[i].N);
        items[i] = backward_weight_one(&layers[i], columns, x);
        if (layers[i].bias)
            backward_bias(layers[i].bias, columns);
    }
    return multiply(backend, items, count);
}
