/* gemm_dnnl.c: one GEMM by oneDNN. */
#include "ops/cpu/gemm.h"

#include <dnnl.h>

const char *sr_gemm_library(void) {
    return "oneDNN";
}

void sr_gemm_limit(sr_cpu_level level) {
    switch (level) {
    case SR_CPU_BASE:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
        break;
    case SR_CPU_V3:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
        break;
    case SR_CPU_V4:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
        break;
    case SR_CPU_BF16:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
        break;
    case SR_CPU_AMX:
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_amx);
        break;
    }
}

bool sr_gemm(const sr_product *p) {
    const dnnl_status_t status =
        dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->M, p->N, p->K, 1.0f,
                   p->a, p->a_stride, p->b, p->b_stride, p->add ? 1.0f : 0.0f, p->c, p->c_stride);
    return status == dnnl_success;
}
