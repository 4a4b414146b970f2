/* linear_pairs.h (private): the GEMMs of linear layers where an instruction multiplies bf16. */
#ifndef SR_OPS_CPU_LINEAR_PAIRS_H
#define SR_OPS_CPU_LINEAR_PAIRS_H

#include "ops/cpu/backend.h"

/* A GEMM, and the bias of its columns: (N) or NULL. */
typedef struct sr_biased_product {
    sr_product product;
    const float *bias;
} sr_biased_product;

/* GEMMs one after the other, of a backend that has pairs. */
void sr_cpu_multiply_pairs(sr_backend *backend, const sr_biased_product *items, int count);

#endif
