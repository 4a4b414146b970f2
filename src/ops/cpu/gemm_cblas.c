/* gemm_cblas.c: one GEMM by a CBLAS library. */
#include "ops/cpu/gemm.h"

#include <cblas.h>

const char *sr_gemm_library(void) {
    return "CBLAS";
}

void sr_gemm_limit(sr_cpu_level level) {
    (void)level; /* BLAS has no call for it */
}

bool sr_gemm(const sr_product *p) {
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
                p->transpose_b ? CblasTrans : CblasNoTrans, (int)p->M, (int)p->N, (int)p->K, 1.0f,
                p->a, (int)p->a_stride, p->b, (int)p->b_stride, p->add ? 1.0f : 0.0f, p->c,
                (int)p->c_stride);
    return true;
}
