/* cublaslt.h (private): GEMMs by cuBLASLt, a library that is loaded at run time. */
#ifndef SR_OPS_CUDA_GEMM_CUBLASLT_H
#define SR_OPS_CUDA_GEMM_CUBLASLT_H

#include "ops/cuda/gemm/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sr_cublaslt sr_cublaslt;

/* Loads the library: the file that SOFTRNN_CUBLASLT names ("none": no library), else
 * libcublasLt.so.13 or .12 from the system's search path. *library = NULL where there is none;
 * fails if the named file is not cuBLASLt. */
srnn_status sr_cublaslt_open(sr_cublaslt **library);
void sr_cublaslt_close(sr_cublaslt *library); /* accepts NULL */

/* Where a GEMM runs: in order on this stream (a cudaStream_t), with this workspace. */
typedef struct sr_cublaslt_place {
    void *stream, *workspace;
    size_t workspace_bytes;
} sr_cublaslt_place;

/* Launches the GEMM. *started = false: the library does not support it. The algorithm depends on
 * shapes, types and alignment alone, never on timing, so that results are bitwise reproducible. */
srnn_status sr_cublaslt_multiply(sr_cublaslt *library, bool *started,
                                 const sr_cuda_gemm_call *product, const sr_cublaslt_place *place);

#ifdef __cplusplus
}
#endif

#endif
