/* matmul_dnnl.c: one matrix product by oneDNN. */
#include "backend/cpu/matmul.h"

#include <dnnl.h>

const char *sr_matmul_library(void) {
    return "oneDNN";
}

bool sr_matmul(const sr_product *p) {
    return dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->M, p->N, p->K,
                      1.0f, p->a, p->a_stride, p->b, p->b_stride, p->add ? 1.0f : 0.0f, p->c,
                      p->c_stride) == dnnl_success;
}
