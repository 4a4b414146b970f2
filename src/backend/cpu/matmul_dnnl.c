/* matmul_dnnl.c: one matrix product by oneDNN. */
#include "backend/cpu/matmul.h"

#include <dnnl.h>
#include <omp.h>

const char *sr_matmul_library(void) {
    return "oneDNN";
}

/* oneDNN would use every thread when called outside a parallel region, and other bits with them. */
bool sr_matmul(const sr_product *p) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    bool done = dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->M, p->N, p->K,
                           1.0f, p->a, p->a_stride, p->b, p->b_stride, p->add ? 1.0f : 0.0f, p->c,
                           p->c_stride) == dnnl_success;
    omp_set_num_threads(threads);
    return done;
}
