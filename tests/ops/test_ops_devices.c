/* test_ops_devices.c: the larger ops of a GPU, real or emulated, agree with the CPU, in float and
 * in bf16: mixing and ranking of contexts, norms of segments of rows. Large copies arrive. */
#include "base/bf16.h"
#include "ops/backend.h"
#include "small_model.h"

#include <stdio.h>

static sr_backend *gpu, *cpu;

enum { ARRAYS = 16 };
static void *arrays[ARRAYS]; /* on the GPU */
static int array_count;

static void *on_gpu(const void *host, size_t bytes) {
    void *memory;
    assert_true(array_count < ARRAYS);
    assert_int_equal(sr_device_allocate(gpu->device, &memory, bytes), SRNN_OK);
    arrays[array_count++] = memory;
    if (host)
        assert_int_equal(sr_device_copy_in(gpu->device, memory, host, bytes), SRNN_OK);
    assert_int_equal(srnn_device_wait(gpu->device), SRNN_OK);
    return memory;
}

static void free_arrays(void) {
    while (array_count > 0)
        sr_device_release(gpu->device, arrays[--array_count]);
}

/* Noise that is exact in the GPU's number type. */
static float *noise(int64_t count, uint64_t stream) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = sr_bf16_float(sr_bf16_of((float)sr_random_normal(7, stream, (uint64_t)i)));
    return x;
}

/* A matrix of the number type on the GPU; host NULL: uninitialised. */
static sr_matrix matrix(const float *host, int64_t rows, int64_t columns) {
    const int64_t count = rows * columns;
    void *memory = on_gpu(NULL, (size_t)count * sr_element_bytes(gpu->number));
    if (host)
        assert_int_equal(gpu->narrow(gpu, memory, on_gpu(host, (size_t)count * sizeof *host),
                                     count),
                         SRNN_OK);
    return sr_matrix_of(memory, rows, columns, gpu->number);
}

static void compare(const char *name, const float *got, const float *want, int64_t count,
                    double tolerance) {
    const double error = small_error(got, want, (size_t)count);
    if (!(error < tolerance))
        fail_msg("%s: off by %g", name, error);
}

static void compare_matrix(const char *name, sr_matrix got, const float *want) {
    const int64_t count = got.rows * got.columns;
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    assert_int_equal(sr_matrix_fetch(x, gpu->device, got), SRNN_OK);
    compare(name, x, want, count, gpu->number == SRNN_BF16 ? 2e-2 : 1e-5);
    free(x);
}

static void compare_floats(const char *name, const float *got, const float *want, int64_t count,
                           double tolerance) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    assert_int_equal(sr_device_copy_out(gpu->device, x, got, (size_t)count * sizeof *x), SRNN_OK);
    compare(name, x, want, count, tolerance);
    free(x);
}

/* ---- mixing */

typedef struct mix_case {
    int64_t contexts, context, mixed, tail;
} mix_case;

/* The CPU's numbers of one case: out, d_x, d_weight. */
typedef struct mixed {
    float *x, *weight, *d_out; /* inputs */
    float *out, *d_x, *d_weight;
} mixed;

static mixed mix_on_cpu(const mix_case *c) {
    const int64_t rows = c->contexts * c->context, wide = 2 * c->mixed + c->tail;
    const int64_t joined = wide - c->mixed, pairs = c->context * c->context;
    mixed m = {noise(rows * wide, 1),   noise(pairs, 2),       noise(rows * joined, 3),
               noise(rows * joined, 4), noise(rows * wide, 5), noise(pairs, 6)};
    sr_context_mix mix = {.x = sr_matrix_of(m.x, rows, wide, SRNN_F32),
                          .weight = m.weight,
                          .context = c->context,
                          .mixed = c->mixed};
    const size_t bytes = cpu->context_mix_bytes(cpu, &mix);
    void *scratch = malloc(bytes);
    mix.saved = malloc(bytes);
    assert_true(scratch && mix.saved);
    assert_int_equal(cpu->context_mix_forward(cpu, sr_matrix_of(m.out, rows, joined, SRNN_F32),
                                              &mix),
                     SRNN_OK);
    assert_int_equal(cpu->context_mix_backward(cpu, sr_matrix_of(m.d_x, rows, wide, SRNN_F32),
                                               m.d_weight,
                                               sr_matrix_of(m.d_out, rows, joined, SRNN_F32), &mix,
                                               scratch),
                     SRNN_OK);
    free(mix.saved);
    free(scratch);
    return m;
}

static void check_mix(const mix_case *c) {
    const int64_t rows = c->contexts * c->context, wide = 2 * c->mixed + c->tail;
    const int64_t joined = wide - c->mixed, pairs = c->context * c->context;
    mixed m = mix_on_cpu(c);
    float *before = noise(pairs, 6);
    sr_context_mix mix = {.x = matrix(m.x, rows, wide),
                          .weight = on_gpu(m.weight, (size_t)pairs * sizeof(float)),
                          .context = c->context,
                          .mixed = c->mixed};
    const size_t bytes = gpu->context_mix_bytes(gpu, &mix);
    const sr_matrix out = matrix(NULL, rows, joined), d_x = matrix(NULL, rows, wide);
    float *d_weight = on_gpu(before, (size_t)pairs * sizeof(float));
    mix.saved = on_gpu(NULL, bytes);
    assert_int_equal(gpu->context_mix_forward(gpu, out, &mix), SRNN_OK);
    assert_int_equal(gpu->context_mix_backward(gpu, d_x, d_weight, matrix(m.d_out, rows, joined),
                                               &mix, on_gpu(NULL, bytes)),
                     SRNN_OK);
    compare_matrix("mixed rows", out, m.out);
    compare_matrix("the gradient of rows", d_x, m.d_x);
    compare_floats("the gradient of the weight", d_weight, m.d_weight, pairs,
                   gpu->number == SRNN_BF16 ? 2e-2 : 1e-5);
    void *const all[] = {m.x, m.weight, m.d_out, m.out, m.d_x, m.d_weight, before};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free_arrays();
}

/* Contexts larger than the tiles of products; no tail; one row. */
static void mixing(void **state) {
    (void)state;
    static const mix_case cases[] = {
        {1, 1, 1, 0}, {3, 6, 5, 4}, {2, 33, 16, 0}, {1, 70, 8, 24}, {2, 130, 12, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_mix(&cases[i]);
}

/* ---- ranking */

typedef struct rank_case {
    int64_t B, N, C, gap, first; /* rows between sequences; the first context */
    int chunk, chunks;
    bool causal;
} rank_case;

static sr_ranking ranking_of(const rank_case *c) {
    return (sr_ranking){.B = c->B,
                        .N = c->N,
                        .C = c->C,
                        .stride = c->N * c->chunk + c->gap,
                        .first = c->first,
                        .chunk = c->chunk,
                        .chunks = c->chunks,
                        .causal = c->causal};
}

static void check_rank(const rank_case *c) {
    sr_ranking host = ranking_of(c), device = host;
    const int64_t tokens = c->B * host.stride * c->C;
    const int64_t numbers = c->B * (c->N - c->first) * c->chunks * c->chunk * c->C;
    float *e = noise(tokens, 1), *d_out = noise(numbers, 2), *out = noise(numbers, 3);
    float *d_e = noise(tokens, 4), *before = noise(tokens, 4);
    memset(e + tokens - 2 * c->C, 0, 2 * (size_t)c->C * sizeof *e); /* after the end of a text */
    host.e = e;
    host.saved = malloc(cpu->rank_bytes(cpu, &host));
    assert_non_null(host.saved);
    assert_int_equal(cpu->rank_forward(cpu, out, &host), SRNN_OK);
    assert_int_equal(cpu->rank_backward(cpu, d_e, d_out, &host), SRNN_OK);
    device.e = on_gpu(e, (size_t)tokens * sizeof *e);
    device.saved = on_gpu(NULL, gpu->rank_bytes(gpu, &device));
    float *made = on_gpu(NULL, (size_t)numbers * sizeof *made);
    float *gradient = on_gpu(before, (size_t)tokens * sizeof *gradient);
    assert_int_equal(gpu->rank_forward(gpu, made, &device), SRNN_OK);
    assert_int_equal(gpu->rank_backward(gpu, gradient,
                                        on_gpu(d_out, (size_t)numbers * sizeof *d_out), &device),
                     SRNN_OK);
    compare_floats("contexts", made, out, numbers, 1e-6);
    compare_floats("the gradient of tokens", gradient, d_e, tokens, 1e-5);
    void *const all[] = {e, d_out, out, d_e, before, host.saved};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free_arrays();
}

/* Chunks larger than a tile of cosines, more and fewer chunks than a context has, a part of the
 * contexts, rows outside of all chunks. */
static void ranking(void **state) {
    (void)state;
    static const rank_case cases[] = {
        {1, 1, 3, 0, 0, 2, 1, true},  {2, 5, 8, 0, 0, 4, 3, true},   {2, 5, 7, 0, 0, 4, 3, false},
        {2, 4, 12, 6, 2, 3, 8, true}, {1, 3, 20, 0, 0, 70, 2, true}, {1, 3, 17, 0, 1, 65, 3, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_rank(&cases[i]);
}

/* ---- norms of pieces */

typedef struct norm_case {
    int64_t rows, groups, C;
    bool own_weights, subtract_mean, bias, adds;
} norm_case;

static sr_norm norm_of(const norm_case *c, sr_matrix x, const float *weight, const float *bias) {
    return (sr_norm){.x = x,
                     .weight = weight,
                     .bias = c->bias ? bias : NULL,
                     .groups = c->groups,
                     .C = c->C,
                     .own_weights = c->own_weights,
                     .subtract_mean = c->subtract_mean,
                     .offset = c->adds ? 1.0f : 0.0f,
                     .epsilon = 1e-5f};
}

/* d_x adds to floats, as a block's, or is written over d_out, as that of q and k. */
static void check_norm(const norm_case *c) {
    const int64_t columns = c->groups * c->C, count = c->rows * columns;
    const int64_t weights = c->own_weights ? columns : c->C;
    const size_t bytes = (size_t)weights * sizeof(float);
    float *x = noise(count, 1), *d_out = noise(count, 2), *weight = noise(weights, 3);
    float *bias = noise(weights, 4), *out = noise(count, 5), *d_x = noise(count, 6);
    float *d_weight = noise(weights, 7), *d_bias = noise(weights, 8);
    float *scratch = noise(SR_ROW_PARTS * 2 * weights, 9);
    const sr_matrix gpu_d_out = matrix(d_out, c->rows, columns);
    const sr_matrix gpu_out = matrix(NULL, c->rows, columns);
    const sr_matrix gpu_d_x =
        c->adds ? sr_matrix_of(on_gpu(d_x, (size_t)count * sizeof *d_x), c->rows, columns, SRNN_F32)
                : gpu_d_out;
    const sr_norm there =
        norm_of(c, matrix(x, c->rows, columns), on_gpu(weight, bytes), on_gpu(bias, bytes));
    const sr_norm_gradient moved = {gpu_d_x, on_gpu(d_weight, bytes),
                                    c->bias ? on_gpu(d_bias, bytes) : NULL, NULL, c->adds};
    const sr_norm here = norm_of(c, sr_matrix_of(x, c->rows, columns, SRNN_F32), weight, bias);
    const sr_norm_gradient gradient = {sr_matrix_of(d_x, c->rows, columns, SRNN_F32), d_weight,
                                       c->bias ? d_bias : NULL, scratch, c->adds};
    assert_int_equal(gpu->norm_forward(gpu, gpu_out, &there), SRNN_OK);
    assert_int_equal(gpu->norm_backward(gpu, &moved, gpu_d_out, &there), SRNN_OK);
    assert_int_equal(cpu->norm_forward(cpu, sr_matrix_of(out, c->rows, columns, SRNN_F32), &here),
                     SRNN_OK);
    assert_int_equal(cpu->norm_backward(cpu, &gradient,
                                        sr_matrix_of(d_out, c->rows, columns, SRNN_F32), &here),
                     SRNN_OK);
    compare_matrix("the norm", gpu_out, out);
    compare_matrix("d_x", gpu_d_x, d_x);
    compare_floats("d_weight", moved.d_weight, d_weight, weights, 1e-5);
    if (c->bias)
        compare_floats("d_bias", moved.d_bias, d_bias, weights, 1e-5);
    void *const all[] = {x, d_out, weight, bias, out, d_x, d_weight, d_bias, scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free_arrays();
}

/* Heads by warps, whole rows by blocks, more rows than a part of the sums has. */
static void norms(void **state) {
    (void)state;
    static const norm_case cases[] = {
        {1, 1, 3, false, false, false, false},   {5, 3, 7, false, false, false, false},
        {6, 4, 40, true, true, true, false},     {3, 1, 1100, false, true, true, true},
        {2, 2, 1030, true, false, false, false}, {300, 1, 24, false, false, false, true},
        {530, 2, 12, false, true, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_norm(&cases[i]);
}

/* ---- distances from a teacher */

static void check_divergence(int64_t rows, int64_t V, float t, bool reversed) {
    float *student = noise(rows * V, 1), *teacher = noise(rows * V, 2), *losses = noise(rows, 3);
    int32_t *targets = malloc((size_t)rows * sizeof *targets);
    assert_non_null(targets);
    for (int64_t r = 0; r < rows; r++)
        targets[r] = r % 4 == 1 ? -1 : 0;
    memcpy(student, teacher, (size_t)V * sizeof *student); /* equal rows: exactly 0 */
    sr_divergence of = {.student = matrix(student, rows, V),
                        .teacher = matrix(teacher, rows, V),
                        .targets = on_gpu(targets, (size_t)rows * sizeof *targets),
                        .reversed = reversed,
                        .temperature = t,
                        .scale = 0.5f};
    const sr_matrix gradient = of.student;
    float *on_device = on_gpu(losses, (size_t)rows * sizeof *losses), first;
    assert_int_equal(gpu->divergence(gpu, on_device, &of), SRNN_OK);
    of.student = sr_matrix_of(student, rows, V, SRNN_F32);
    of.teacher = sr_matrix_of(teacher, rows, V, SRNN_F32);
    of.targets = targets;
    assert_int_equal(cpu->divergence(cpu, losses, &of), SRNN_OK);
    compare_floats("divergences", on_device, losses, rows, 1e-5);
    compare_matrix("the gradient of a divergence", gradient, student);
    assert_int_equal(sr_device_copy_out(gpu->device, &first, on_device, sizeof first), SRNN_OK);
    assert_true(first == 0);
    free(student), free(teacher), free(losses), free(targets);
    free_arrays();
}

static void check_square_error(int64_t rows, int64_t C) {
    float *x = noise(rows * C, 1), *y = noise(rows * C, 2), *errors = noise(rows, 3);
    float *d = noise(rows * C, 4);
    int32_t *targets = malloc((size_t)rows * sizeof *targets);
    assert_non_null(targets);
    for (int64_t r = 0; r < rows; r++)
        targets[r] = r % 4 == 1 ? -1 : 0;
    sr_square_error of = {.x = on_gpu(x, (size_t)(rows * C) * sizeof *x),
                          .y = on_gpu(y, (size_t)(rows * C) * sizeof *y),
                          .targets = on_gpu(targets, (size_t)rows * sizeof *targets),
                          .rows = rows,
                          .C = C,
                          .factor = 0.5f,
                          .scale = 0.25f};
    const sr_matrix d_x = matrix(NULL, rows, C);
    float *on_device = on_gpu(errors, (size_t)rows * sizeof *errors);
    assert_int_equal(gpu->square_error(gpu, on_device, d_x, &of), SRNN_OK);
    assert_int_equal(gpu->square_error(gpu, on_device, (sr_matrix){0}, &of), SRNN_OK);
    of.x = x, of.y = y, of.targets = targets;
    assert_int_equal(cpu->square_error(cpu, errors, sr_matrix_of(d, rows, C, SRNN_F32), &of),
                     SRNN_OK);
    assert_int_equal(cpu->square_error(cpu, errors, (sr_matrix){0}, &of), SRNN_OK);
    compare_floats("errors", on_device, errors, rows, 1e-5);
    compare_matrix("the gradient of an error", d_x, d);
    free(x), free(y), free(errors), free(d), free(targets);
    free_arrays();
}

static void distances(void **state) {
    (void)state;
    check_divergence(1, 1, 1, false);
    check_divergence(5, 37, 2.5f, false);
    check_divergence(5, 264, 0.5f, true);
    check_square_error(1, 1);
    check_square_error(6, 37);
    check_square_error(6, 72);
}

static int open_gpu(bool bf16) {
    const sr_backend_settings settings = {.device = "cuda", .bf16 = bf16};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int open_float(void **state) {
    (void)state;
    return open_gpu(false);
}

static int open_bf16(void **state) {
    (void)state;
    return open_gpu(true);
}

static int close_gpu(void **state) {
    (void)state;
    sr_backend_free(gpu);
    return 0;
}

/* Host memory that was copied in may change at once; the last piece is not whole. */
static void large_copies(void **state) {
    const size_t bytes = ((size_t)27 << 20) + 5;
    unsigned char *const host = malloc(bytes), *const got = malloc(bytes);
    (void)state;
    assert_true(host && got);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 2654435761u >> 24);
    unsigned char *const there = on_gpu(NULL, bytes);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(sr_device_copy_in(gpu->device, there, host, bytes), SRNN_OK);
        memcpy(got, host, bytes);
        memset(host, 0, bytes);
        assert_int_equal(sr_device_copy_out(gpu->device, host, there, bytes), SRNN_OK);
        assert_memory_equal(host, got, bytes);
        for (size_t i = 0; i < bytes; i++)
            host[i] ^= 0xff;
    }
    free(host);
    free(got);
    free_arrays();
}

int main(void) {
    const sr_backend_settings host = {.threads = 1};
    if (open_gpu(false) != 0) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    sr_backend_free(gpu);
    assert_int_equal(sr_backend_create(&cpu, &host), SRNN_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(mixing), cmocka_unit_test(ranking),
                                       cmocka_unit_test(norms), cmocka_unit_test(distances),
                                       cmocka_unit_test(large_copies)};
    const int failed = cmocka_run_group_tests_name("float", tests, open_float, close_gpu) +
                       cmocka_run_group_tests_name("bf16", tests, open_bf16, close_gpu);
    sr_backend_free(cpu);
    return failed;
}
