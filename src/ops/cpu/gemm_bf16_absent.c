/* gemm_bf16_absent.c: stubs for bf16 GEMMs, for libraries without them. */
#include "ops/cpu/gemm.h"

#include <stddef.h>

bool sr_gemm_bf16_available(void) {
    return false;
}

sr_gemm_bf16 *sr_gemm_bf16_create(void) {
    return NULL;
}

void sr_gemm_bf16_free(sr_gemm_bf16 *cache) {
    (void)cache;
}

bool sr_gemm_bf16_run(sr_gemm_bf16 *cache, const sr_product_bf16 *product) {
    (void)cache, (void)product;
    return false;
}
