/* gemm.h: one GEMM on the calling thread, by the library chosen at configure time. */
#ifndef SR_OPS_CPU_GEMM_H
#define SR_OPS_CPU_GEMM_H

#include "base/cpu_level.h"

#include <stdbool.h>
#include <stdint.h>

/* C (M, N) = A B, or C += A B if `add`. A is (M, K), or stored as (K, M) if `transpose_a`; B is
 * (K, N), or stored as (N, K) if `transpose_b`. Strides are those of the stored rows. */
typedef struct sr_product {
    const float *a;
    const void *b; /* float; bf16 if `narrow_b`, which sr_gemm does not multiply */
    float *c;
    int64_t a_stride, b_stride, c_stride;
    int64_t M, N, K;
    bool transpose_a, transpose_b, add, narrow_b;
} sr_product;

/* The name of the library, static text. */
const char *sr_gemm_library(void);

/* Limits the instruction set of later GEMMs. A library that has already run one may keep its
 * earlier choice. */
void sr_gemm_limit(sr_cpu_level level);

/* Called from a task of sr_parallel, so the library uses only the calling thread, with signals
 * blocked (sr_signals_block). False if the library failed (out of memory). */
bool sr_gemm(const sr_product *product);

#endif
