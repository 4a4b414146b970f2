/* linear_pairs.c: the GEMMs of linear layers where an instruction multiplies bf16.
 *
 * Products are so fast there that packing must be done once: both operands are rounded into memory
 * of the backend, by all threads, then all tiles read them. What does not fit is cut into ranges of
 * rows, columns and K, by sizes alone: the number of threads does not change the bits. */
#include "ops/cpu/linear_pairs.h"

#include "base/threads.h"

enum { PANEL = 32, LARGE = 256, SMALL = 128, TILES_WANTED = 64 };

/* One range of a GEMM whose operands fit the packs. */
typedef struct range_job {
    const sr_cpu_pairs *pairs;
    sr_product product;
    const float *bias; /* of the range's columns, or NULL */
    uint16_t *a;
    uint32_t *b;
    bool a_is_packed;
    int64_t tile; /* rows and columns */
} range_job;

static int64_t padded(int64_t n) {
    return sr_tiles(n, PANEL) * PANEL;
}

/* Rows row .. and columns column .. of a product. */
static sr_product part_of(sr_product p, int64_t row, int64_t column, int64_t most) {
    const int64_t b_at = p.transpose_b ? column * p.b_stride : column;
    p.a += p.transpose_a ? row : row * p.a_stride;
    p.b = p.narrow_b ? (const void *)((const uint16_t *)p.b + b_at)
                     : (const void *)((const float *)p.b + b_at);
    p.c += row * p.c_stride + column;
    p.M = sr_min(most, p.M - row);
    p.N = sr_min(most, p.N - column);
    return p;
}

/* The same of K. */
static sr_product depth_of(sr_product p, int64_t k) {
    const int64_t b_at = p.transpose_b ? k : k * p.b_stride;
    p.a += p.transpose_a ? k * p.a_stride : k;
    p.b = p.narrow_b ? (const void *)((const uint16_t *)p.b + b_at)
                     : (const void *)((const float *)p.b + b_at);
    p.K = sr_min(SR_PACK_DEPTH, p.K - k);
    p.add = p.add || k > 0;
    return p;
}

static int64_t panels_of_a(const range_job *job) {
    return job->a_is_packed ? 0 : sr_tiles(job->product.M, PANEL);
}

static void pack_panel(void *context, int64_t task, int worker) {
    const range_job *job = context;
    const int64_t K = padded(job->product.K), of_a = panels_of_a(job);
    (void)worker;
    if (task < of_a) {
        const sr_product panel = part_of(job->product, task * PANEL, 0, PANEL);
        job->pairs->pack_a(job->a + task * PANEL * K, &panel);
    } else {
        const int64_t column = (task - of_a) * PANEL;
        const sr_product panel = part_of(job->product, 0, column, PANEL);
        job->pairs->pack_b(job->b + column * K / 2, &panel);
    }
}

static void multiply_tile(void *context, int64_t task, int worker) {
    const range_job *job = context;
    const int64_t K = padded(job->product.K), down = sr_tiles(job->product.M, job->tile);
    const int64_t row = task % down * job->tile, column = task / down * job->tile;
    const sr_product tile = part_of(job->product, row, column, job->tile);
    (void)worker;
    job->pairs->multiply(&tile, job->a + row * K, job->b + column * K / 2);
    for (int64_t m = 0; job->bias && m < tile.M; m++)
        for (int64_t n = 0; n < tile.N; n++)
            tile.c[m * tile.c_stride + n] += job->bias[column + n];
}

static int64_t tiles_of(const sr_product *p, int64_t tile) {
    return sr_tiles(p->M, tile) * sr_tiles(p->N, tile);
}

static void multiply_range(sr_backend *backend, range_job *job) {
    const sr_product *p = &job->product;
    job->tile = tiles_of(p, LARGE) < TILES_WANTED ? SMALL : LARGE;
    sr_parallel(pack_panel, job, panels_of_a(job) + sr_tiles(p->N, PANEL), backend->threads);
    sr_parallel(multiply_tile, job, tiles_of(p, job->tile), backend->threads);
}

/* The range of K from k on: rows and columns as many as fit the packs. */
static void multiply_depth(sr_backend *backend, const sr_biased_product *item, bool a_is_packed,
                           int64_t k) {
    const sr_backend_cpu *cpu = (const sr_backend_cpu *)backend;
    const sr_product whole = depth_of(item->product, k);
    for (int64_t row = 0; row < whole.M; row += SR_PAIR_ROWS)
        for (int64_t column = 0; column < whole.N; column += SR_PAIR_ROWS) {
            range_job job = {.pairs = cpu->pairs,
                             .product = part_of(whole, row, column, SR_PAIR_ROWS),
                             .bias = item->bias && k == 0 ? item->bias + column : NULL,
                             .a = cpu->pair_a,
                             .b = cpu->pair_b,
                             .a_is_packed = a_is_packed || column > 0};
            multiply_range(backend, &job);
        }
}

/* Whether A of the second is in the pack after the first. */
static bool has_same_a(const sr_product *x, const sr_product *y) {
    return x->a == y->a && x->a_stride == y->a_stride && x->M == y->M && x->K == y->K &&
           x->transpose_a == y->transpose_a && x->M <= SR_PAIR_ROWS && x->K <= SR_PACK_DEPTH;
}

void sr_cpu_multiply_pairs(sr_backend *backend, const sr_biased_product *items, int count) {
    for (int i = 0; i < count; i++) {
        const bool packed = i > 0 && has_same_a(&items[i - 1].product, &items[i].product);
        for (int64_t k = 0; k < items[i].product.K; k += SR_PACK_DEPTH)
            multiply_depth(backend, &items[i], packed, k);
    }
}
