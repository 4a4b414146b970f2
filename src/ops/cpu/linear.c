/* linear.c: the GEMMs of a linear layer, in fixed tiles that threads share. */
#include "base/threads.h"
#include "ops/cpu/linear_pairs.h"

#include <stdatomic.h>
#include <string.h>

/* Each tile of a result is one single-threaded library call: the bits do not depend on the number
 * of threads, and skinny shapes keep every core busy. For tiles this small libraries do not pack
 * their operands; rows that are a power of two apart then fall into the same few cache sets (a
 * third of the speed was measured). So operands whose rows run along K are packed first, with a
 * slightly larger stride; a worker keeps its last packs, which the next tile usually needs again.
 * Gradients of weights are small results of long sums: too few tiles for many cores. There K is
 * split too, into parts that are added in order afterwards (split-K). */
enum { TILE_M = SR_PACK_A, TILE_N = SR_PACK_B, TILE_NUMBERS = TILE_M * TILE_N };

typedef struct tile_size {
    int64_t m, n;
} tile_size;

/* If only B is packed, taller tiles pack less of it. If nothing is packed and tiles would be few,
 * smaller ones balance the threads. */
static tile_size tile_size_of(const sr_product *p) {
    enum { FEW = 32 };
    if (p->transpose_a)
        return (tile_size){TILE_M, TILE_N};
    if (!p->transpose_b)
        return (tile_size){TILE_N, TILE_M};
    const bool few = sr_tiles(p->M, TILE_M) * sr_tiles(p->N, TILE_N) < FEW;
    return (tile_size){few ? TILE_M / 2 : TILE_M, TILE_N};
}

/* Independent GEMMs, or GEMMs with a common result, each over one range of K. */
typedef struct tiled_products {
    const sr_biased_product *items;
    int added;     /* this many have the same result and are summed there; 0: each has its own */
    int64_t tiles; /* of all of them */
    int64_t depth; /* K per part; 0: not split */
    int64_t parts;
    float *partial; /* (parts, tiles, TILE_NUMBERS) */
    sr_pack *packs; /* (threads) */
    bool narrow;    /* operands are rounded to bf16 */
    const sr_cpu_rows *loops;
    atomic_bool failed;
} tiled_products;

static int64_t tiles_in(const sr_product *p) {
    const tile_size size = tile_size_of(p);
    return sr_tiles(p->M, size.m) * sr_tiles(p->N, size.n);
}

/* A tile of one of the GEMMs, and its position there. */
typedef struct placed_tile {
    const sr_biased_product *item;
    sr_product product;
    int64_t n;
} placed_tile;

static const void *b_at(const sr_product *p, int64_t number) {
    return p->narrow_b ? (const void *)((const uint16_t *)p->b + number)
                       : (const void *)((const float *)p->b + number);
}

static placed_tile tile_of(const sr_biased_product *item, int64_t number) {
    const sr_product *whole = &item->product;
    const tile_size size = tile_size_of(whole);
    const int64_t down = sr_tiles(whole->M, size.m), m = number % down * size.m;
    placed_tile at = {item, *whole, number / down * size.n};
    at.product.M = sr_min(size.m, whole->M - m);
    at.product.N = sr_min(size.n, whole->N - at.n);
    at.product.a += whole->transpose_a ? m : m * whole->a_stride;
    at.product.b = b_at(whole, whole->transpose_b ? at.n * whole->b_stride : at.n);
    at.product.c += m * whole->c_stride + at.n;
    return at;
}

/* Tile `number` of all GEMMs. */
static placed_tile tile_at(const tiled_products *job, int64_t number) {
    const sr_biased_product *item = job->items;
    for (; number >= tiles_in(&item->product); item++)
        number -= tiles_in(&item->product);
    return tile_of(item, number);
}

/* The range first .. first + depth of K. */
static sr_product stretch_of(sr_product p, int64_t first, int64_t depth) {
    p.K = sr_min(depth, p.K - first);
    p.a += p.transpose_a ? first * p.a_stride : first;
    p.b = b_at(&p, p.transpose_b ? first : first * p.b_stride);
    p.add = p.add || first > 0;
    return p;
}

/* Rows of an operand, to be packed. */
typedef struct panel {
    const float *from;
    int64_t stride, rows, columns;
} panel;

static void copy_panel(float *to, int64_t to_stride, panel p) {
    for (int64_t row = 0; row < p.rows; row++)
        memcpy(to + row * to_stride, p.from + row * p.stride, (size_t)p.columns * sizeof *to);
}

static void pack_tile(sr_product *tile, sr_pack *pack) {
    enum { A_STRIDE = SR_PACK_A + SR_PACK_GAP, B_STRIDE = SR_PACK_B + SR_PACK_GAP };
    if (tile->transpose_a) {
        if (pack->a_from != tile->a)
            copy_panel(pack->a, A_STRIDE, (panel){tile->a, tile->a_stride, tile->K, tile->M});
        pack->a_from = tile->a;
        tile->a = pack->a;
        tile->a_stride = A_STRIDE;
    }
    if (!tile->transpose_b) {
        if (pack->b_from != tile->b)
            copy_panel(pack->b, B_STRIDE, (panel){tile->b, tile->b_stride, tile->K, tile->N});
        pack->b_from = tile->b;
        tile->b = pack->b;
        tile->b_stride = B_STRIDE;
    }
}

/* The rows of A and B as they are stored; `from` is NULL where they are bf16. */
static panel a_panel(const sr_product *tile) {
    return (panel){tile->a, tile->a_stride, tile->transpose_a ? tile->K : tile->M,
                   tile->transpose_a ? tile->M : tile->K};
}

static panel b_panel(const sr_product *tile) {
    return (panel){tile->narrow_b ? NULL : tile->b, tile->b_stride,
                   tile->transpose_b ? tile->N : tile->K, tile->transpose_b ? tile->K : tile->N};
}

/* Rows of a pack that holds rounded operands. */
enum { K_STRIDE = SR_PACK_DEPTH + SR_PACK_GAP, N_STRIDE = SR_PACK_B + SR_PACK_GAP };

static int64_t a_pack_stride(const sr_product *tile) {
    return tile->transpose_a ? SR_PACK_A + SR_PACK_GAP : K_STRIDE;
}

static int64_t b_pack_stride(const sr_product *tile) {
    return tile->transpose_b ? K_STRIDE : N_STRIDE;
}

/* The floats that bf16 rounds rows to; `narrow`: rows that are bf16, in place of p.from. */
static void widen_panel(float *to, int64_t to_stride, const uint16_t *narrow, panel p,
                        const sr_cpu_rows *loops) {
    uint16_t rounded[SR_PACK_DEPTH];
    for (int64_t row = 0; row < p.rows; row++) {
        if (!narrow)
            loops->to_bf16(rounded, p.from + row * p.stride, p.columns);
        loops->from_bf16(to + row * to_stride, narrow ? narrow + row * p.stride : rounded,
                         p.columns);
    }
}

/* The same where no instruction multiplies bf16: both operands are packed as the floats that it rounds
 * them to. */
static bool multiply_rounded(sr_product *tile, sr_pack *pack, const sr_cpu_rows *loops) {
    const int64_t a_stride = a_pack_stride(tile), b_stride = b_pack_stride(tile);
    if (pack->a_from != tile->a)
        widen_panel(pack->a, a_stride, NULL, a_panel(tile), loops);
    if (pack->b_from != tile->b)
        widen_panel(pack->b, b_stride, tile->narrow_b ? tile->b : NULL, b_panel(tile), loops);
    pack->a_from = tile->a;
    pack->b_from = tile->b;
    tile->a = pack->a;
    tile->b = pack->b;
    tile->a_stride = a_stride;
    tile->b_stride = b_stride;
    tile->narrow_b = false;
    return sr_gemm(tile);
}

/* Few rows, as in generation, read each weight once: where it is, if it is stored as bf16. */
enum { FEW_ROWS = 8 };

static bool is_few_rows(const sr_product *tile) {
    return tile->transpose_b && tile->M <= FEW_ROWS;
}

static void multiply_few_rows(const sr_product *tile, sr_pack *pack, const sr_cpu_rows *loops) {
    uint16_t rounded[SR_PACK_DEPTH];
    if (pack->a_from != tile->a)
        widen_panel(pack->a, K_STRIDE, NULL, a_panel(tile), loops);
    pack->a_from = tile->a;
    for (int64_t n = 0; n < tile->N; n++) {
        float sums[FEW_ROWS];
        const int64_t number = n * tile->b_stride;
        if (!tile->narrow_b)
            loops->to_bf16(rounded, (const float *)tile->b + number, tile->K);
        loops->bf16_products(sums, pack->a, K_STRIDE, tile->M,
                             tile->narrow_b ? (const uint16_t *)tile->b + number : rounded,
                             tile->K);
        for (int64_t m = 0; m < tile->M; m++) {
            float *c = tile->c + m * tile->c_stride + n;
            *c = (tile->add ? *c : 0) + sums[m];
        }
    }
}

static bool multiply_float(sr_product *tile, sr_pack *pack) {
    pack_tile(tile, pack);
    return sr_gemm(tile);
}

static bool multiply_narrow(const tiled_products *job, sr_product *tile, sr_pack *pack) {
    if (is_few_rows(tile)) {
        multiply_few_rows(tile, pack, job->loops);
        return true;
    }
    return multiply_rounded(tile, pack, job->loops);
}

static void multiply_one(tiled_products *job, sr_product *tile, int worker) {
    sr_pack *pack = &job->packs[worker];
    if (!(job->narrow ? multiply_narrow(job, tile, pack) : multiply_float(tile, pack)))
        atomic_store(&job->failed, true);
}

static void multiply_tile(void *context, int64_t task, int worker) {
    tiled_products *job = context;
    placed_tile at = tile_at(job, task);
    const sr_product tile = at.product;
    multiply_one(job, &at.product, worker);
    for (int64_t row = 0; at.item->bias && row < tile.M; row++)
        for (int64_t column = 0; column < tile.N; column++)
            tile.c[row * tile.c_stride + column] += at.item->bias[at.n + column];
}

/* All GEMMs that contribute to one tile, in order; long sums in ranges that fit the packs. */
static void add_up_tile(void *context, int64_t task, int worker) {
    tiled_products *job = context;
    for (int i = 0; i < job->added; i++) {
        const sr_product tile = tile_of(&job->items[i], task).product;
        for (int64_t k = 0; k < tile.K; k += SR_PACK_DEPTH) {
            sr_product stretch = stretch_of(tile, k, SR_PACK_DEPTH);
            multiply_one(job, &stretch, worker);
        }
    }
}

static void multiply_part(void *context, int64_t task, int worker) {
    tiled_products *job = context;
    const placed_tile at = tile_at(job, task % job->tiles);
    sr_product part = stretch_of(at.product, task / job->tiles * job->depth, job->depth);
    part.c = job->partial + task * TILE_NUMBERS;
    part.c_stride = tile_size_of(&at.item->product).n;
    part.add = false;
    multiply_one(job, &part, worker);
}

/* Few rows per task: there are few tiles when K is split. */
enum { ADD_ROWS = 16 };

static int64_t additions(const tiled_products *job) {
    return sr_tiles(tile_size_of(&job->items->product).m, ADD_ROWS);
}

static void add_parts(void *context, int64_t task, int worker) {
    const tiled_products *job = context;
    const int64_t number = task / additions(job), first = task % additions(job) * ADD_ROWS;
    const sr_product tile = tile_at(job, number).product;
    (void)worker;
    const int64_t stride = tile_size_of(&tile).n;
    for (int64_t row = first; row < sr_min(first + ADD_ROWS, tile.M); row++) {
        float *c = tile.c + row * tile.c_stride;
        if (!tile.add)
            memset(c, 0, (size_t)tile.N * sizeof *c);
        for (int64_t part = 0; part < job->parts; part++)
            job->loops->add(c, c,
                            job->partial + (part * job->tiles + number) * TILE_NUMBERS +
                                row * stride,
                            tile.N);
    }
}

/* oneDNN's AVX kernels may use the block that they allocated for packed panels as their stack (seen
 * for K of 65 and more; the threshold depends on the processor). A signal handler would then write
 * its frame below that block, into memory with another owner: a Ctrl-C during a GEMM corrupted the
 * heap. So signals are blocked while this thread multiplies; the threads of the pool always block
 * them. */
static srnn_status run(sr_backend *backend, tiled_products *job) {
    sigset_t before;
    sr_signals_block(&before);
    for (int worker = 0; worker < backend->threads; worker++)
        job->packs[worker].a_from = job->packs[worker].b_from = NULL;
    if (job->depth) {
        sr_parallel(multiply_part, job, job->tiles * job->parts, backend->threads);
        sr_parallel(add_parts, job, job->tiles * additions(job), backend->threads);
    } else if (job->added) {
        sr_parallel(add_up_tile, job, job->tiles, backend->threads);
    } else {
        sr_parallel(multiply_tile, job, job->tiles, backend->threads);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    const sr_product *first = &job->items->product;
    if (atomic_load(&job->failed))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s had no memory for a product of %lld x %lld x %lld",
                       sr_gemm_library(), (long long)first->M, (long long)first->N,
                       (long long)first->K);
    return SRNN_OK;
}

/* True if rows of an operand run along K. */
static bool runs_along(const sr_product *p) {
    return p->transpose_a || !p->transpose_b;
}

static tiled_products job_of(sr_backend *backend, const sr_biased_product *items, int64_t tiles) {
    const sr_backend_cpu *cpu = (const sr_backend_cpu *)backend;
    const sr_product *first = &items->product;
    tiled_products job = {.items = items,
                          .tiles = tiles,
                          .partial = cpu->parts,
                          .packs = cpu->packs,
                          .narrow = backend->product == SRNN_BF16,
                          .loops = cpu->rows};
    enum { TILES_WANTED = 16, PART_DEPTH = 256 };
    if (runs_along(first) && tiles < TILES_WANTED && first->K > PART_DEPTH)
        job.depth = PART_DEPTH;
    return job;
}

/* Whether the products are those of linear_pairs.h. */
static bool goes_by_pairs(const sr_backend *backend, const sr_product *first) {
    return ((const sr_backend_cpu *)backend)->pairs && backend->product == SRNN_BF16 &&
           !is_few_rows(first);
}

/* Independent GEMMs with the same K, of which one range at a time fits packs and partial. The split
 * depends on shapes alone, since the number of threads must not change the bits. */
static srnn_status multiply(sr_backend *backend, const sr_biased_product *items, int count) {
    const sr_product *first = &items->product;
    if (goes_by_pairs(backend, first)) {
        sr_cpu_multiply_pairs(backend, items, count);
        return SRNN_OK;
    }
    const bool packs = runs_along(first) || backend->product == SRNN_BF16;
    int64_t tiles = 0;
    for (int i = 0; i < count; i++)
        tiles += tiles_in(&items[i].product);
    tiled_products job = job_of(backend, items, tiles);
    const int64_t stretch = job.depth ? SR_PRODUCT_PARTS / tiles * job.depth
                            : packs   ? SR_PACK_DEPTH
                                      : first->K;
    for (int64_t k = 0; k < first->K; k += stretch) {
        sr_biased_product cut[SR_LINEAR_GROUP_MAX];
        for (int i = 0; i < count; i++)
            cut[i] = (sr_biased_product){stretch_of(items[i].product, k, stretch),
                                         k == 0 ? items[i].bias : NULL};
        job.items = cut;
        job.parts = job.depth ? sr_tiles(cut->product.K, job.depth) : 1;
        SR_TRY(run(backend, &job));
    }
    return SRNN_OK;
}

/* The sum of several GEMMs, each of which says whether it accumulates. */
static srnn_status add_up(sr_backend *backend, const sr_biased_product *items, int count) {
    tiled_products job = job_of(backend, items, tiles_in(&items->product));
    if (goes_by_pairs(backend, &items->product)) {
        sr_cpu_multiply_pairs(backend, items, count);
        return SRNN_OK;
    }
    if (job.depth) { /* split sums have their own order */
        for (int i = 0; i < count; i++)
            SR_TRY(multiply(backend, &items[i], 1));
        return SRNN_OK;
    }
    job.added = count;
    return run(backend, &job);
}

/* The columns of y that belong to one layer of a group. */
static sr_biased_product forward_one(sr_matrix y, sr_matrix x, const sr_linear *layer, bool add) {
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
                                .add = add,
                                .narrow_b = layer->narrow};
    return (sr_biased_product){product, layer->bias};
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
    sr_biased_product items[SR_LINEAR_GROUP_MAX];
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N)
        items[i] = forward_one(sr_matrix_columns(y, first, layers[i].N), x, &layers[i],
                               addend.data != NULL);
    return multiply(backend, items, count);
}

srnn_status sr_cpu_linear_backward_input(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const sr_linear *layers, int count) {
    sr_biased_product items[SR_LINEAR_GROUP_MAX];
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N)
        items[i] =
            (sr_biased_product){.product = {.a = sr_matrix_columns(d_y, first, layers[i].N).data,
                                            .b = layers[i].weight,
                                            .c = d_x.data,
                                            .a_stride = d_y.stride,
                                            .b_stride = d_x.columns,
                                            .c_stride = d_x.stride,
                                            .M = d_x.rows,
                                            .N = d_x.columns,
                                            .K = layers[i].N,
                                            .add = i > 0,
                                            .narrow_b = layers[i].narrow}};
    return add_up(backend, items, count);
}

static sr_biased_product backward_weight_one(const sr_linear_gradient *layer, sr_matrix d_y,
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
    return (sr_biased_product){.product = product};
}

static void backward_bias(float *bias, sr_matrix d_y) {
    for (int64_t row = 0; row < d_y.rows; row++)
        for (int64_t column = 0; column < d_y.columns; column++)
            bias[column] += sr_cpu_row(d_y, row)[column];
}

srnn_status sr_cpu_linear_backward_weight(sr_backend *backend, const sr_linear_gradient *layers,
                                          int count, sr_matrix d_y, sr_matrix x) {
    sr_biased_product items[SR_LINEAR_GROUP_MAX];
    for (int64_t i = 0, first = 0; i < count; first += layers[i++].N) {
        const sr_matrix columns = sr_matrix_columns(d_y, first, layers[i].N);
        items[i] = backward_weight_one(&layers[i], columns, x);
        if (layers[i].bias)
            backward_bias(layers[i].bias, columns);
    }
    return multiply(backend, items, count);
}
