/* test_bf16.c: rounding to bf16, and linear layers in bf16. */
#include "base/random.h"
#include "ops/backend.h"
#include "ops/cpu/rows.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void rounding(void **state) {
    (void)state;
    static const uint32_t bits[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0xbf807fff,
                                    0x7f7fffff, 0x7f800000, 0x7fffffff, 0x00000000, 0xff800001};
    static const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80,
                                    0x7f80, 0x7f80, 0x7fff, 0x0000, 0xffc0};
    enum { COUNT = sizeof bits / sizeof *bits };
    float x[COUNT];
    uint16_t got[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        x[i] = from_bits(bits[i]);
    sr_cpu_rows_best()->to_bf16(got, x, COUNT);
    assert_memory_equal(got, want, sizeof want);
}

static float *numbers(int64_t count, uint64_t stream) {
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)sr_random_normal(5, stream, (uint64_t)i);
    return x;
}

/* The three products of a linear layer, one after the other, in one array. */
static float *products(sr_backend *cpu, int64_t rows, int64_t N, int64_t K) {
    const int64_t y_count = rows * N, x_count = rows * K, w_count = N * K;
    float *x = numbers(x_count, 1), *weight = numbers(w_count, 2), *d_y = numbers(y_count, 3);
    float *bias = numbers(N, 4), *all = numbers(y_count + x_count + w_count, 5);
    const sr_matrix X = sr_matrix_of(x, rows, K, SRNN_F32),
                    d_Y = sr_matrix_of(d_y, rows, N, SRNN_F32);
    const sr_matrix Y = sr_matrix_of(all, rows, N, SRNN_F32);
    const sr_matrix d_X = sr_matrix_of(all + y_count, rows, K, SRNN_F32);
    const sr_linear layer = {weight, bias, .N = N};
    const sr_linear_gradient gradient = {all + y_count + x_count, NULL, N};
    assert_int_equal(cpu->linear_forward(cpu, Y, (sr_matrix){0}, X, &layer, 1), SRNN_OK);
    assert_int_equal(cpu->linear_backward_input(cpu, d_X, d_Y, &layer, 1), SRNN_OK);
    assert_int_equal(cpu->linear_backward_weight(cpu, &gradient, 1, d_Y, X), SRNN_OK);
    free(x), free(weight), free(d_y), free(bias);
    return all;
}

static double error_of(const float *got, const float *want, int64_t count) {
    double difference = 0, size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(difference / size);
}

static void check_shape(sr_backend *whole, sr_backend *half, int64_t rows, int64_t N, int64_t K) {
    const int64_t sizes[3] = {rows * N, rows * K, N * K};
    float *want = products(whole, rows, N, K), *got = products(half, rows, N, K);
    for (int64_t part = 0, at = 0; part < 3; at += sizes[part++]) {
        /* Each operand has a relative error of at most 2^-9. */
        const double error = error_of(got + at, want + at, sizes[part]);
        if (!(error <= 4e-3))
            fail_msg("%lld x %lld x %lld: product %lld is off by %.2e", (long long)rows,
                     (long long)N, (long long)K, (long long)part, error);
    }
    free(want), free(got);
}

static void linear_layers(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},      {3, 5, 7},       {17, 33, 9},
                                        {129, 257, 31}, {300, 520, 65},  {256, 512, 1500},
                                        {8203, 33, 17}, {130, 8211, 40}, {40, 70, 8300}};
    sr_backend *whole, *half;
    assert_int_equal(sr_backend_create(&whole, &(sr_backend_settings){.threads = 0}), SRNN_OK);
    assert_int_equal(sr_backend_create(&half, &(sr_backend_settings){.threads = 2, .bf16 = true}),
                     SRNN_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(whole, half, shapes[i][0], shapes[i][1], shapes[i][2]);
    sr_backend_free(whole);
    sr_backend_free(half);
}

/* Layers that share their input give what each of them gives alone. */
static void groups(void **state) {
    (void)state;
    enum { ROWS = 150, K = 70, FIRST = 70, SECOND = 70, N = FIRST + SECOND };
    sr_backend *cpu;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 2, .bf16 = true}),
                     SRNN_OK);
    float *x = numbers(ROWS * K, 1), *weight = numbers(N * K, 2), *y = numbers(ROWS * N, 3);
    float *alone = numbers(ROWS * N, 3), *d_x = numbers(ROWS * K, 4), *sum = numbers(ROWS * K, 5);
    const sr_matrix X = sr_matrix_of(x, ROWS, K, SRNN_F32);
    const sr_matrix Y = sr_matrix_of(y, ROWS, N, SRNN_F32);
    const sr_matrix Alone = sr_matrix_of(alone, ROWS, N, SRNN_F32);
    const sr_linear layers[] = {{weight, NULL, .N = FIRST},
                                {weight + FIRST * K, NULL, .N = SECOND}};
    const sr_linear both = {weight, NULL, .N = N};
    assert_int_equal(cpu->linear_forward(cpu, Y, (sr_matrix){0}, X, layers, 2), SRNN_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            cpu->linear_forward(cpu, sr_matrix_columns(Alone, i ? FIRST : 0, i ? SECOND : FIRST),
                                (sr_matrix){0}, X, &layers[i], 1),
            SRNN_OK);
    assert_memory_equal(y, alone, ROWS * N * sizeof *y);
    assert_int_equal(cpu->linear_backward_input(cpu, sr_matrix_of(d_x, ROWS, K, SRNN_F32), Y,
                                                layers, 2),
                     SRNN_OK);
    assert_int_equal(cpu->linear_backward_input(cpu, sr_matrix_of(sum, ROWS, K, SRNN_F32), Y, &both,
                                                1),
                     SRNN_OK);
    assert_true(error_of(d_x, sum, ROWS * K) < 1e-6);
    free(x), free(weight), free(y), free(alone), free(d_x), free(sum);
    sr_backend_free(cpu);
}

/* Weights that are stored in bf16 give what the same weights give as floats: few rows, which read
 * them where they are, and many. */
static void narrow_weights(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 5, 7},     {3, 257, 1500}, {8, 40, 64},
                                        {9, 300, 129}, {130, 70, 33},  {6, 3, 1025}};
    sr_backend *cpu;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 2, .bf16 = true}),
                     SRNN_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t rows = shapes[i][0], N = shapes[i][1], K = shapes[i][2];
        float *x = numbers(rows * K, 1), *wide = numbers(N * K, 2), *got = numbers(rows * N, 3);
        float *bias = numbers(N, 4), *want = numbers(rows * N, 3);
        uint16_t *weight = malloc((size_t)(N * K) * sizeof *weight);
        assert_non_null(weight);
        sr_cpu_rows_best()->to_bf16(weight, wide, N * K);
        sr_cpu_rows_best()->from_bf16(wide, weight, N * K);
        const sr_matrix X = sr_matrix_of(x, rows, K, SRNN_F32);
        const sr_matrix Got = sr_matrix_of(got, rows, N, SRNN_F32);
        const sr_matrix Want = sr_matrix_of(want, rows, N, SRNN_F32);
        const sr_linear narrow = {weight, bias, .N = N, .narrow = true},
                        plain = {wide, bias, .N = N};
        assert_int_equal(cpu->linear_forward(cpu, Got, Got, X, &narrow, 1), SRNN_OK);
        assert_int_equal(cpu->linear_forward(cpu, Want, Want, X, &plain, 1), SRNN_OK);
        const double error = error_of(got, want, rows * N);
        if (!(error <= 1e-6))
            fail_msg("%lld x %lld x %lld: off by %.2e", (long long)rows, (long long)N, (long long)K,
                     error);
        free(x), free(wide), free(got), free(bias), free(want), free(weight);
    }
    sr_backend_free(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding),
        cmocka_unit_test(linear_layers),
        cmocka_unit_test(groups),
        cmocka_unit_test(narrow_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
