/* matmul.h: one matrix product on the calling thread, from the library chosen at configure time. */
#ifndef SR_BACKEND_CPU_MATMUL_H
#define SR_BACKEND_CPU_MATMUL_H

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
const char *sr_matmul_library(void);

/* Called from a task of sr_parallel, where the library uses the calling thread only. False if the
 * library refused (it had no memory). */
bool sr_matmul(const sr_product *product);

#endif
