/* ops.c: times each op of a backend at the shapes of a training step, and of generation.
 *
 * Usage: bench_ops [DEVICE [float|bf16 [ROWS HIDDEN MLP VOCAB]]]. Prints one JSON line per op:
 * microseconds, the minimal bytes moved and operations, and both as rates. */
#include "base/clock.h"
#include "ops/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 10, ROUNDS = 5, D = 64, WIDTH = 4 };

typedef struct sizes {
    int64_t rows, C, F, V;
} sizes;

/* The arrays that ops work on, each large enough for all of them. */
typedef struct arrays {
    void *x, *y, *z;           /* (rows, 3 C or 2 F), number type */
    void *logits;              /* (logit rows, V), number type */
    void *weight;              /* (V, C), number type */
    float *residual, *d;       /* (rows, C) */
    float *master, *m, *v, *g; /* (V, C) */
    float *table, *rstd, *losses, *scratch;
    int32_t *ids, *positions, *hits;
    sr_step_stats *stats;
} arrays;

typedef struct bench {
    sr_backend *backend;
    sizes size;
    arrays at;
    int64_t logit_rows;
    double bytes, operations; /* of the last op called */
} bench;

static double number_bytes(const bench *b) {
    return (double)sr_element_bytes(b->backend->number);
}

static sr_matrix numbers(const bench *b, void *data, int64_t rows, int64_t columns) {
    return sr_matrix_of(data, rows, columns, b->backend->number);
}

static sr_rmsnorm norm_of(const bench *b, int64_t rows) {
    return (sr_rmsnorm){b->at.residual, b->at.master, b->at.rstd, 1e-5f, rows, b->size.C, NULL};
}

/* y (rows, N) = x (rows, K) W^T; with `residual`, in float and added to. */
static srnn_status forward(bench *b, int64_t rows, int64_t N, int64_t K, bool residual) {
    const sr_linear layer = {b->at.weight, NULL, .N = N};
    const sr_matrix y =
        residual ? sr_matrix_of(b->at.residual, rows, N, SRNN_F32) : numbers(b, b->at.y, rows, N);
    b->operations = 2.0 * (double)rows * (double)N * (double)K;
    b->bytes = number_bytes(b) * (double)(rows * K + N * K) +
               (residual ? 8 : number_bytes(b)) * (double)(rows * N);
    return b->backend->linear_forward(b->backend, y, residual ? y : (sr_matrix){0},
                                      numbers(b, b->at.x, rows, K), &layer, 1);
}

static srnn_status backward_input(bench *b, int64_t N, int64_t K) {
    const sr_linear layer = {b->at.weight, NULL, .N = N};
    const int64_t rows = b->size.rows;
    b->operations = 2.0 * (double)rows * (double)N * (double)K;
    b->bytes = number_bytes(b) * (double)(rows * K + N * K + rows * N);
    return b->backend->linear_backward_input(b->backend, numbers(b, b->at.y, rows, K),
                                             numbers(b, b->at.x, rows, N), &layer, 1);
}

static srnn_status backward_weight(bench *b, int64_t N, int64_t K) {
    const sr_linear_gradient layer = {b->at.g, NULL, N};
    const int64_t rows = b->size.rows;
    b->operations = 2.0 * (double)rows * (double)N * (double)K;
    b->bytes = number_bytes(b) * (double)(rows * K + rows * N) + 8.0 * (double)(N * K);
    return b->backend->linear_backward_weight(b->backend, &layer, 1, numbers(b, b->at.x, rows, N),
                                              numbers(b, b->at.y, rows, K));
}

static srnn_status qkv(bench *b) {
    return forward(b, b->size.rows, 3 * b->size.C, b->size.C, false);
}
static srnn_status output(bench *b) {
    return forward(b, b->size.rows, b->size.C, b->size.C, true);
}
static srnn_status gate_up(bench *b) {
    return forward(b, b->size.rows, 2 * b->size.F, b->size.C, false);
}
static srnn_status down(bench *b) {
    return forward(b, b->size.rows, b->size.C, b->size.F, true);
}
static srnn_status qkv_input(bench *b) {
    return backward_input(b, 3 * b->size.C, b->size.C);
}
static srnn_status qkv_weight(bench *b) {
    return backward_weight(b, 3 * b->size.C, b->size.C);
}
static srnn_status gate_up_input(bench *b) {
    return backward_input(b, 2 * b->size.F, b->size.C);
}
static srnn_status gate_up_weight(bench *b) {
    return backward_weight(b, 2 * b->size.F, b->size.C);
}
static srnn_status down_input(bench *b) {
    return backward_input(b, b->size.C, b->size.F);
}
static srnn_status down_weight(bench *b) {
    return backward_weight(b, b->size.C, b->size.F);
}
static srnn_status qkv_of_one(bench *b) {
    return forward(b, 1, 3 * b->size.C, b->size.C, false);
}
static srnn_status down_of_one(bench *b) {
    return forward(b, 1, b->size.C, b->size.F, true);
}
static srnn_status qkv_of_eight(bench *b) {
    return forward(b, 8, 3 * b->size.C, b->size.C, false);
}
static srnn_status qkv_of_64(bench *b) {
    return forward(b, 64, 3 * b->size.C, b->size.C, false);
}
static srnn_status head_of_one(bench *b) {
    return forward(b, 1, b->size.V, b->size.C, false);
}

static srnn_status head(bench *b) {
    const sr_linear layer = {b->at.weight, NULL, .N = b->size.V};
    const int64_t rows = b->logit_rows, V = b->size.V, C = b->size.C;
    b->operations = 2.0 * (double)rows * (double)V * (double)C;
    b->bytes = number_bytes(b) * (double)(rows * C + V * C + rows * V);
    return b->backend->linear_forward(b->backend, numbers(b, b->at.logits, rows, V), (sr_matrix){0},
                                      numbers(b, b->at.x, rows, C), &layer, 1);
}

static srnn_status cross_entropy(bench *b) {
    const int64_t rows = b->logit_rows;
    b->bytes = 2 * number_bytes(b) * (double)(rows * b->size.V);
    return b->backend->cross_entropy(b->backend, b->at.losses, b->at.hits,
                                     numbers(b, b->at.logits, rows, b->size.V),
                                     &(sr_cross_entropy){.targets = b->at.ids, .scale = 1e-5f});
}

static srnn_status norm(bench *b) {
    const sr_rmsnorm of = norm_of(b, b->size.rows);
    b->bytes = (4 + number_bytes(b)) * (double)(b->size.rows * b->size.C);
    return b->backend->rmsnorm_forward(b->backend, b->at.x, &of);
}

static srnn_status norm_of_one(bench *b) {
    const sr_rmsnorm of = norm_of(b, 1);
    b->bytes = (4 + number_bytes(b)) * (double)b->size.C;
    return b->backend->rmsnorm_forward(b->backend, b->at.x, &of);
}

static srnn_status norm_back(bench *b) {
    const sr_rmsnorm of = norm_of(b, b->size.rows);
    const bool narrow = b->backend->number != SRNN_F32;
    const sr_rmsnorm_gradient gradient = {b->at.d, narrow ? b->at.y : (void *)b->at.d,
                                          b->at.m, b->at.scratch,
                                          NULL,    false};
    b->bytes = (12 + (narrow ? 2 : 1) * number_bytes(b)) * (double)(b->size.rows * b->size.C);
    return b->backend->rmsnorm_backward(b->backend, &gradient, b->at.x, &of);
}

static srnn_status rope(bench *b) {
    const sr_rope turn = {b->at.table, b->at.positions, (int)(2 * b->size.C / D), .D = D};
    sr_matrix x = numbers(b, b->at.x, b->size.rows, 3 * b->size.C);
    b->bytes = 2 * number_bytes(b) * (double)(b->size.rows * 2 * b->size.C);
    x.columns = 2 * b->size.C;
    return b->backend->rope_forward(b->backend, x, &turn);
}

static srnn_status swiglu(bench *b) {
    const int64_t rows = b->size.rows, F = b->size.F;
    b->bytes = 3 * number_bytes(b) * (double)(rows * F);
    return b->backend->swiglu_forward(b->backend, numbers(b, b->at.y, rows, F),
                                      numbers(b, b->at.x, rows, 2 * F));
}

static srnn_status swiglu_back(bench *b) {
    const int64_t rows = b->size.rows, F = b->size.F;
    b->bytes = 5 * number_bytes(b) * (double)(rows * F);
    return b->backend->swiglu_backward(b->backend, numbers(b, b->at.z, rows, 2 * F),
                                       numbers(b, b->at.y, rows, F),
                                       numbers(b, b->at.x, rows, 2 * F));
}

static sr_short_conv conv_of(const bench *b) {
    return (sr_short_conv){.x = numbers(b, b->at.x, b->size.rows, b->size.C),
                           .weight = b->at.master,
                           .positions = b->at.positions,
                           .width = WIDTH,
                           .T = b->size.rows};
}

static srnn_status short_conv(bench *b) {
    const sr_short_conv conv = conv_of(b);
    b->bytes = 2 * number_bytes(b) * (double)(b->size.rows * b->size.C);
    return b->backend->short_conv_forward(b->backend, numbers(b, b->at.y, b->size.rows, b->size.C),
                                          &conv);
}

static srnn_status short_conv_back(bench *b) {
    const sr_short_conv conv = conv_of(b);
    b->bytes = 5 * number_bytes(b) * (double)(b->size.rows * b->size.C);
    return b->backend->short_conv_backward(b->backend, numbers(b, b->at.y, b->size.rows, b->size.C),
                                           b->at.g, NULL,
                                           numbers(b, b->at.z, b->size.rows, b->size.C), &conv);
}

static srnn_status embed(bench *b) {
    const sr_matrix x = sr_matrix_of(b->at.residual, b->size.rows, b->size.C, SRNN_F32);
    const sr_matrix table = sr_matrix_of(b->at.master, b->size.V, b->size.C, SRNN_F32);
    b->bytes = 8.0 * (double)(b->size.rows * b->size.C);
    return b->backend->embed_forward(b->backend, x, table, b->at.ids);
}

static srnn_status embed_back(bench *b) {
    b->bytes = 12.0 * (double)(b->size.rows * b->size.C);
    return b->backend->embed_backward(b->backend, b->at.g,
                                      sr_matrix_of(b->at.d, b->size.rows, b->size.C, SRNN_F32),
                                      b->at.ids);
}

static srnn_status stats_losses(bench *b) {
    b->bytes = 12.0 * (double)b->size.rows;
    return b->backend->stats_losses(b->backend, b->at.stats, b->at.losses, b->at.hits, b->at.ids,
                                    b->size.rows);
}

static srnn_status stats_squares(bench *b) {
    const int64_t n = b->size.V * b->size.C;
    b->bytes = 4.0 * (double)n;
    return b->backend->stats_squares(b->backend, b->at.stats, b->at.g, n);
}

static srnn_status adamw(bench *b) {
    const bool narrow = b->backend->number != SRNN_F32;
    const sr_adamw update = {.weight = b->at.master,
                             .mean = b->at.m,
                             .square = b->at.v,
                             .gradient = b->at.g,
                             .working = narrow ? b->at.weight : (void *)b->at.master,
                             .n = b->size.V * b->size.C,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .nominal = 1};
    b->bytes = (28 + (narrow ? number_bytes(b) : 0)) * (double)update.n;
    return b->backend->adamw(b->backend, b->at.stats, &update);
}

static const struct {
    const char *name;
    srnn_status (*call)(bench *b);
} ops[] = {
    {"qkv", qkv},
    {"output", output},
    {"gate_up", gate_up},
    {"down", down},
    {"qkv_input", qkv_input},
    {"qkv_weight", qkv_weight},
    {"gate_up_input", gate_up_input},
    {"gate_up_weight", gate_up_weight},
    {"down_input", down_input},
    {"down_weight", down_weight},
    {"head", head},
    {"cross_entropy", cross_entropy},
    {"norm", norm},
    {"norm_back", norm_back},
    {"rope", rope},
    {"swiglu", swiglu},
    {"swiglu_back", swiglu_back},
    {"short_conv", short_conv},
    {"short_conv_back", short_conv_back},
    {"embed", embed},
    {"embed_back", embed_back},
    {"tally_losses", stats_losses},
    {"tally_squares", stats_squares},
    {"adamw", adamw},
    {"norm_of_one", norm_of_one},
    {"qkv_of_one", qkv_of_one},
    {"down_of_one", down_of_one},
    {"head_of_one", head_of_one},
    {"qkv_of_eight", qkv_of_eight},
    {"qkv_of_64", qkv_of_64},
};

static srnn_status zeros(const bench *b, void *out, int64_t count, size_t size) {
    void *memory;
    SR_TRY(sr_device_allocate(b->backend->device, &memory, (size_t)count * size));
    SR_TRY(sr_device_zero(b->backend->device, memory, (size_t)count * size));
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

enum { NOISE = 1 << 20 };

/* Realistic values: products of zeros need less power and run faster. */
static srnn_status fill_noise(const bench *b, float *host, float *block) {
    uint32_t seed = 1;
    for (int64_t i = 0; i < NOISE; i++) {
        seed = seed * 1664525u + 1013904223u;
        host[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    SR_TRY(sr_device_copy_in(b->backend->device, block, host, NOISE * sizeof *host));
    return srnn_device_wait(b->backend->device);
}

static srnn_status spread_noise(const bench *b, void *to, int64_t count, const float *block) {
    for (int64_t i = 0; i < count; i += NOISE)
        SR_TRY(b->backend->narrow(b->backend, sr_number_at(to, i, b->backend->number), block,
                                  count - i < NOISE ? count - i : NOISE));
    return SRNN_OK;
}

/* Freed with the process. */
static srnn_status make_arrays(bench *b) {
    const sizes s = b->size;
    const size_t number = sr_element_bytes(b->backend->number);
    const int64_t width = 3 * s.C > 2 * s.F ? 3 * s.C : 2 * s.F, rows = s.rows > 64 ? s.rows : 64;
    const int64_t widest = width * rows > s.V ? width * rows : s.V;
    const int64_t weights = s.V * s.C > 2 * s.F * s.C ? s.V * s.C : 2 * s.F * s.C;
    void *wide[] = {&b->at.x, &b->at.y, &b->at.z};
    void *master[] = {&b->at.master, &b->at.m, &b->at.v, &b->at.g};
    b->logit_rows = s.rows < 8192 ? s.rows : 8192;
    float *host = malloc(NOISE * sizeof *host), *block;
    if (!host)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %d numbers", NOISE);
    SR_TRY(zeros(b, &block, NOISE, sizeof *block));
    SR_TRY(fill_noise(b, host, block));
    free(host);
    for (int i = 0; i < 3; i++)
        SR_TRY(zeros(b, wide[i], widest, number));
    for (int i = 0; i < 4; i++)
        SR_TRY(zeros(b, master[i], weights, sizeof(float)));
    SR_TRY(zeros(b, &b->at.weight, weights, number));
    SR_TRY(zeros(b, &b->at.logits, b->logit_rows * s.V, number));
    SR_TRY(zeros(b, &b->at.residual, rows * s.C, sizeof(float)));
    SR_TRY(zeros(b, &b->at.d, rows * s.C, sizeof(float)));
    SR_TRY(zeros(b, &b->at.table, D, sizeof(float)));
    SR_TRY(zeros(b, &b->at.rstd, rows, sizeof(float)));
    SR_TRY(zeros(b, &b->at.losses, rows, sizeof(float)));
    SR_TRY(zeros(b, &b->at.scratch, SR_ROW_PARTS * s.C, sizeof(float)));
    SR_TRY(zeros(b, &b->at.positions, rows, sizeof(int32_t)));
    SR_TRY(zeros(b, &b->at.hits, rows, sizeof(int32_t)));
    SR_TRY(zeros(b, &b->at.stats, 1, sizeof(sr_step_stats)));
    SR_TRY(spread_noise(b, b->at.x, widest, block));
    SR_TRY(spread_noise(b, b->at.y, widest, block));
    SR_TRY(spread_noise(b, b->at.weight, weights, block));
    int32_t *ids = malloc((size_t)rows * sizeof *ids);
    if (!ids)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %lld tokens", (long long)rows);
    for (int64_t i = 0; i < rows; i++) /* a few often, most rarely, as in text */
        ids[i] = (int32_t)(i % 16 == 0 ? 7 : (i * 7919) % s.V);
    SR_TRY(zeros(b, &b->at.ids, rows, sizeof *ids));
    const srnn_status status =
        sr_device_copy_in(b->backend->device, b->at.ids, ids, (size_t)rows * sizeof *ids);
    SR_TRY(srnn_device_wait(b->backend->device));
    free(ids);
    return status;
}

typedef struct repeated {
    bench *of;
    srnn_status (*call)(bench *b);
} repeated;

static srnn_status call_often(void *context) {
    const repeated *work = context;
    for (int i = 0; i < CALLS; i++)
        SR_TRY(work->call(work->of));
    return SRNN_OK;
}

static srnn_status measure(bench *b, const char *name, srnn_status (*call)(bench *b)) {
    srnn_device *device = b->backend->device;
    repeated work = {b, call};
    sr_graph graph = {0};
    double best = 1e30;
    b->bytes = b->operations = 0;
    for (int warm = 0; warm < 2; warm++) /* called, then captured */
        SR_TRY(sr_device_repeat(device, &graph, call_often, &work));
    SR_TRY(srnn_device_wait(device));
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = sr_clock_seconds();
        SR_TRY(sr_device_repeat(device, &graph, call_often, &work));
        SR_TRY(srnn_device_wait(device));
        const double taken = (sr_clock_seconds() - begin) / CALLS;
        best = taken < best ? taken : best;
    }
    sr_device_forget(device, &graph);
    printf("{\"bench\": \"ops\", \"op\": \"%s\", \"microseconds\": %.2f, \"bytes\": %.0f, "
           "\"gigabytes_a_second\": %.0f, \"teraflops\": %.1f}\n",
           name, best * 1e6, b->bytes, b->bytes / best / 1e9, b->operations / best / 1e12);
    fflush(stdout);
    return SRNN_OK;
}

static srnn_status run(int argc, char **argv) {
    const sr_backend_settings settings = {.device = argc > 1 ? argv[1] : "cpu",
                                          .bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0};
    bench b = {.size = {36864, 1024, 2048, 32000}};
    int64_t *const given[] = {&b.size.rows, &b.size.C, &b.size.F, &b.size.V};
    for (int i = 3; i < argc && i < 7; i++)
        *given[i - 3] = atoll(argv[i]);
    SR_TRY(sr_backend_create(&b.backend, &settings));
    SR_TRY(make_arrays(&b));
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        SR_TRY(measure(&b, ops[i].name, ops[i].call));
    sr_backend_free(b.backend);
    return SRNN_OK;
}

int main(int argc, char **argv) {
    if (run(argc, argv) == SRNN_OK)
        return 0;
    fprintf(stderr, "bench_ops: %s\n", srnn_error_detail());
    return 1;
}
