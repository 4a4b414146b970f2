/* cublaslt_absent.c: no cuBLASLt where the GPU is emulated: it could not access its memory. */
#include "ops/cuda/gemm/cublaslt.h"

srnn_status sr_cublaslt_open(sr_cublaslt **library) {
    *library = NULL;
    return SRNN_OK;
}

void sr_cublaslt_close(sr_cublaslt *library) {
    (void)library;
}

srnn_status sr_cublaslt_multiply(sr_cublaslt *library, bool *started,
                                 const sr_cuda_gemm_call *product, const sr_cublaslt_fp8 *fp8,
                                 const sr_cublaslt_place *place) {
    (void)library, (void)product, (void)fp8, (void)place;
    *started = false;
    return SRNN_OK;
}

bool sr_cublaslt_supports(sr_cublaslt *library, const sr_cuda_gemm_call *product,
                          const sr_cublaslt_fp8 *fp8, const sr_cublaslt_place *place) {
    (void)library, (void)product, (void)fp8, (void)place;
    return false;
}
