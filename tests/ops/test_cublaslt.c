/* test_cublaslt.c: calls of cuBLASLt, with a fake library in its place (fake_cublaslt.c). */
#include "base/bf16.h"
#include "ops/cuda/gemm/cublaslt.h"
#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 * 64 };

static sr_cublaslt *library;
static _Alignas(256) char workspace[256];
static const sr_cublaslt_place place = {workspace, workspace, sizeof workspace};

static int open_library(void **state) {
    (void)state;
    return setenv("SOFTRNN_CUBLASLT", SOFTRNN_FAKE_CUBLASLT, 1) == 0 &&
                   sr_cublaslt_open(&library) == SRNN_OK && library
               ? 0
               : -1;
}

static int close_library(void **state) {
    (void)state;
    sr_cublaslt_close(library);
    return unsetenv("SOFTRNN_CUBLASLT");
}

static _Alignas(16) float a[MOST], b[MOST], c[MOST], d[MOST];
static uint16_t narrow_a[MOST], narrow_b[MOST];

static void fill(void) {
    for (int i = 0; i < MOST; i++) {
        a[i] = (float)(i * 37 % 29 - 14) / 8;
        b[i] = (float)(i * 23 % 31 - 15) / 8;
        c[i] = (float)(i * 11 % 17);
        d[i] = NAN;
        narrow_a[i] = sr_bf16_of(a[i]);
        narrow_b[i] = sr_bf16_of(b[i]);
    }
}

static double wanted(const sr_cuda_gemm_call *p, int64_t z, int64_t m, int64_t n) {
    const float *own_a = a + z * p->batch.a, *own_b = b + z * p->batch.b;
    double sum = p->c ? (double)c[z * p->batch.c + m * p->c_stride + n] : 0;
    for (int64_t k = 0; k < p->K; k++)
        sum += (double)own_a[p->transpose_a ? k * p->a_stride + m : m * p->a_stride + k] *
               (double)own_b[p->transpose_b ? n * p->b_stride + k : k * p->b_stride + n];
    return sum;
}

static void check(sr_cuda_gemm_call p) {
    bool started = false;
    fill();
    p.a = p.in == SRNN_BF16 ? (void *)narrow_a : (void *)a;
    p.b = p.in == SRNN_BF16 ? (void *)narrow_b : (void *)b;
    p.d = d;
    assert_int_equal(sr_cublaslt_multiply(library, &started, &p, NULL, &place), SRNN_OK);
    assert_true(started);
    for (int64_t i = 0; i < (p.batch.count > 1 ? p.batch.count : 1) * p.M; i++) {
        const int64_t z = i / p.M, m = i % p.M;
        const float *row = d + z * p.batch.d + m * p.d_stride;
        for (int64_t n = 0; n < p.N; n++)
            assert_true(fabs((double)row[n] - wanted(&p, z, m, n)) < 1e-3);
        for (int64_t n = p.N; n < p.d_stride; n++)
            assert_true(isnan(row[n]));
    }
}

/* The three products of a linear layer, with and without addend, strides larger than rows. */
static void products(void **state) {
    (void)state;
    for (int kind = 0; kind < 12; kind++) {
        const bool transpose_a = kind % 3 == 2, transpose_b = kind % 3 == 0;
        const int64_t M = 5, N = 7, K = 11;
        check((sr_cuda_gemm_call){.c = kind / 3 % 2 ? c : NULL,
                                  .a_stride = (transpose_a ? M : K) + 3,
                                  .b_stride = (transpose_b ? K : N) + 1,
                                  .c_stride = N + 2,
                                  .d_stride = N + 4,
                                  .M = M,
                                  .N = N,
                                  .K = K,
                                  .transpose_a = transpose_a,
                                  .transpose_b = transpose_b,
                                  .in = kind < 6 ? SRNN_F32 : SRNN_BF16,
                                  .out = SRNN_F32});
    }
}

/* Several products of one shape in one call. */
static void batches(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        const bool transpose_a = kind % 3 == 2, transpose_b = kind % 3 == 0;
        const int64_t M = 5, N = 7, K = 11;
        check((sr_cuda_gemm_call){
            .c = kind < 3 ? c : NULL,
            .a_stride = transpose_a ? M : K,
            .b_stride = transpose_b ? K : N,
            .c_stride = N,
            .d_stride = N + 1,
            .M = M,
            .N = N,
            .K = K,
            .transpose_a = transpose_a,
            .transpose_b = transpose_b,
            .in = kind < 3 ? SRNN_F32 : SRNN_BF16,
            .out = SRNN_F32,
            .batch = {.count = 3, .a = M * K, .b = N * K + 2, .c = M * N, .d = M * (N + 1) + 8}});
    }
}

/* Operands of 8 bits, each with its scale, in the three formats that are allowed; what is not is
 * reported beforehand. */
static void small_numbers(void **state) {
    (void)state;
    static _Alignas(16) uint8_t small_a[MOST], small_b[MOST];
    /* 0, 0.5, -1 and 1.5 in E4M3 and in E5M2 */
    static const uint8_t codes[2][4] = {{0x00, 0x30, 0xb8, 0x3c}, {0x00, 0x38, 0xbc, 0x3e}};
    static const double numbers[4] = {0, 0.5, -1, 1.5};
    static _Alignas(16) float a_scale = 0.25f, b_scale = 8, scales[4] = {1, 1, 1, 1};
    const int64_t M = 5, N = 16, K = 32;
    for (int kind = 0; kind < 4; kind++) {
        bool started = false;
        const int a_kind = kind % 2, b_kind = kind / 2;
        const sr_cublaslt_fp8 fp8 = {a_kind ? SR_FP8_E5M2 : SR_FP8_E4M3,
                                     b_kind ? SR_FP8_E5M2 : SR_FP8_E4M3, &a_scale, &b_scale,
                                     kind == 0};
        fill();
        for (int i = 0; i < MOST; i++) {
            small_a[i] = codes[a_kind][i * 7 % 4];
            small_b[i] = codes[b_kind][i * 5 / 3 % 4];
        }
        const sr_cuda_gemm_call p = {.a = small_a,
                                     .b = small_b,
                                     .c = c,
                                     .d = d,
                                     .a_stride = K + 16,
                                     .b_stride = K,
                                     .c_stride = N,
                                     .d_stride = N,
                                     .M = M,
                                     .N = N,
                                     .K = K,
                                     .transpose_b = true,
                                     .in = SRNN_BF16,
                                     .out = SRNN_F32};
        const bool allowed = kind < 3;
        assert_int_equal(sr_cublaslt_supports(library, &p, &fp8, &place), allowed);
        sr_cuda_gemm_call others[] = {p, p, p};
        others[0].N = 24;
        others[1].d = d + 1;
        others[2].c_stride = others[2].d_stride = N + 2;
        for (int n = 0; n < 3; n++)
            assert_false(sr_cublaslt_supports(library, &others[n], &fp8, &place));
        assert_int_equal(sr_cublaslt_multiply(library, &started, &p, &fp8, &place), SRNN_OK);
        assert_int_equal(started, allowed);
        for (int64_t i = 0; allowed && i < M * N; i++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum +=
                    numbers[(i / N * (K + 16) + k) * 7 % 4] * numbers[(i % N * K + k) * 5 / 3 % 4];
            assert_true(fabs((double)d[i] - (double)c[i] - 2 * sum) < 1e-3);
        }
        sr_cublaslt_fp8 behind = fp8; /* a scale that is not aligned is refused late */
        behind.a_scale = &scales[1];
        assert_int_equal(sr_cublaslt_multiply(library, &started, &p, &behind, &place),
                         allowed ? SRNN_ERR_UNSUPPORTED : SRNN_OK);
    }
}

static sr_cuda_gemm_call square(int64_t M, int64_t K) {
    return (sr_cuda_gemm_call){.a = a,
                               .b = b,
                               .d = d,
                               .a_stride = K,
                               .b_stride = 3,
                               .d_stride = 3,
                               .M = M,
                               .N = 3,
                               .K = K,
                               .in = SRNN_F32,
                               .out = SRNN_F32};
}

/* One heuristic query per shape; beyond the capacity of the cache shapes are evicted and queried
 * again. */
static void questions(void **state) {
    (void)state;
    void *file = dlopen(SOFTRNN_FAKE_CUBLASLT, RTLD_NOW);
    assert_non_null(file);
    int *count = dlsym(file, "fake_questions");
    assert_non_null(count);
    const int before = *count;
    for (int round = 0; round < 3; round++)
        check(square(2, 9));
    assert_int_equal(*count, before + 1);
    sr_cuda_gemm_call elsewhere = square(2, 9);
    bool started;
    elsewhere.d = (char *)d + 4;
    assert_int_equal(sr_cublaslt_multiply(library, &started, &elsewhere, NULL, &place), SRNN_OK);
    assert_int_equal(*count, before + 2); /* another alignment */
    for (int64_t K = 10; K < 1200; K++)
        check(square(1, K));
    check(square(2, 9));
    dlclose(file);
}

/* Of the proposals (fake_cublaslt.c): the tile for the types, without split-K, that fills the GPU;
 * else the first. */
static void proposals(void **state) {
    (void)state;
    void *file = dlopen(SOFTRNN_FAKE_CUBLASLT, RTLD_NOW);
    assert_non_null(file);
    int *taken = dlsym(file, "fake_taken");
    assert_non_null(taken);
    bool started;
    sr_cuda_gemm_call product = square(6, 4);
    assert_int_equal(sr_cublaslt_multiply(library, &started, &product, NULL, &place), SRNN_OK);
    assert_int_equal(*taken, 4);
    product.in = product.out = SRNN_BF16;
    assert_int_equal(sr_cublaslt_multiply(library, &started, &product, NULL, &place), SRNN_OK);
    assert_int_equal(*taken, 5);
    product.M = 12;
    assert_int_equal(sr_cublaslt_multiply(library, &started, &product, NULL, &place), SRNN_OK);
    assert_int_equal(*taken, 0);
    static _Alignas(16) uint8_t codes[16 * 16];
    static _Alignas(16) float scale = 1;
    static const int wanted[2][2] = {{4, 1}, {5, 0}}; /* float, bf16; of all, of three proposals */
    const sr_cublaslt_fp8 fp8 = {SR_FP8_E4M3, SR_FP8_E4M3, &scale, &scale, true};
    for (int kind = 0; kind < 4; kind++) {
        const sr_cuda_gemm_call small = {.a = codes,
                                         .b = codes,
                                         .d = d,
                                         .a_stride = 16,
                                         .b_stride = 16,
                                         .d_stride = 16,
                                         .M = kind % 2 ? 12 : 6,
                                         .N = 16,
                                         .K = 16,
                                         .transpose_b = true,
                                         .in = SRNN_BF16,
                                         .out = kind / 2 ? SRNN_BF16 : SRNN_F32};
        assert_int_equal(sr_cublaslt_multiply(library, &started, &small, &fp8, &place), SRNN_OK);
        assert_int_equal(*taken, wanted[kind / 2][kind % 2]);
    }
    dlclose(file);
}

static void refusals(void **state) {
    (void)state;
    bool started = true;
    const sr_cuda_gemm_call unknown = square(13, 4);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(sr_cublaslt_multiply(library, &started, &unknown, NULL, &place), SRNN_OK);
        assert_false(started);
    }
    const sr_cublaslt_place nowhere = {NULL, workspace, sizeof workspace};
    const sr_cuda_gemm_call known = square(2, 4);
    assert_int_equal(sr_cublaslt_multiply(library, &started, &known, NULL, &nowhere),
                     SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "2 x 3 x 4"));
}

static void libraries(void **state) {
    (void)state;
    sr_cublaslt *other;
    setenv("SOFTRNN_CUBLASLT", "none", 1);
    assert_int_equal(sr_cublaslt_open(&other), SRNN_OK);
    assert_null(other);
    setenv("SOFTRNN_CUBLASLT", "/nowhere/at.all", 1);
    assert_int_equal(sr_cublaslt_open(&other), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "/nowhere/at.all"));
    setenv("SOFTRNN_CUBLASLT", "libm.so.6", 1);
    assert_int_equal(sr_cublaslt_open(&other), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "not cuBLASLt"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),  cmocka_unit_test(batches),   cmocka_unit_test(small_numbers),
        cmocka_unit_test(questions), cmocka_unit_test(proposals), cmocka_unit_test(refusals),
        cmocka_unit_test(libraries),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
