/* gemm.h: one matrix product on the calling thread, from the library chosen at configure time. */
#ifndef SR_OPS_CPU_GEMM_H
#define SR_OPS_CPU_GEMM_H

#include "base/cpu_level.h"

#include <stdbool.h>
#include <stdint.h>

/* C (M, N) = A B, or C += A B if `add`. A is (M, K), or stored as (K, M) if `transpose_a`; B is
 * (K, N), or stored as (N, K) if `transpose_b`. Strides are those of the stored rows. */
typedef struct sr_product {
    const float *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    int64_t M, N, K;
    bool transpose_a, transpose_b, add;
} sr_product;

/* The name of the library, static text. */
const char *sr_gemm_library(void);

/* No instructions beyond this level, in products to come. A library that has multiplied before may
 * keep to what it chose then. */
void sr_gemm_limit(sr_cpu_level level);

/* Called from a task of sr_parallel, where the library uses the calling thread only, and with
 * signals blocked (sr_signals_block). False if the library refused (it had no memory). */
bool sr_gemm(const sr_product *product);

/* The same with a and b in bf16, the upper half of a float; sums and c are float. */
typedef struct sr_product_bf16 {
    const uint16_t *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    int64_t M, N, K;
    bool transpose_a, transpose_b, add;
} sr_product_bf16;

/* What one worker keeps between products in bf16. */
typedef struct sr_gemm_bf16 sr_gemm_bf16;

/* True if this library on this machine has instructions for it. */
bool sr_gemm_bf16_available(void);

/* NULL if the library refused. */
sr_gemm_bf16 *sr_gemm_bf16_create(void);
void sr_gemm_bf16_free(sr_gemm_bf16 *keeper);

/* As sr_matmul, with the calling worker's own keeper. */
bool sr_gemm_bf16_run(sr_gemm_bf16 *keeper, const sr_product_bf16 *product);

#endif
