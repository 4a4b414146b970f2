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

/* Numbers of 8 bits: 4 of exponent and 3 of mantissa, or 5 and 2. */
typedef enum sr_fp8_format { SR_FP8_NONE = 0, SR_FP8_E4M3, SR_FP8_E5M2 } sr_fp8_format;

/* A GEMM of operands of 8 bits in place of type `in`: A as it is, B transposed, both contiguous
 * along K, which is a multiple of 16, as are strides and addresses; not both E5M2. */
typedef struct sr_cublaslt_fp8 {
    sr_fp8_format a, b;
    /* (1), device memory, aligned to 16 bytes: what their numbers are multiplied by */
    const float *a_scale, *b_scale;
    bool fast; /* sums may have fewer bits than float */
} sr_cublaslt_fp8;

/* Launches the GEMM; fp8: of operands of 8 bits, or NULL. *started = false: the library does not
 * support it. The algorithm depends on shapes, types and alignment alone, never on timing, so that
 * results are bitwise reproducible. */
srnn_status sr_cublaslt_multiply(sr_cublaslt *library, bool *started,
                                 const sr_cuda_gemm_call *product, const sr_cublaslt_fp8 *fp8,
                                 const sr_cublaslt_place *place);

/* Whether the library supports the GEMM. */
bool sr_cublaslt_supports(sr_cublaslt *library, const sr_cuda_gemm_call *product,
                          const sr_cublaslt_fp8 *fp8, const sr_cublaslt_place *place);

#ifdef __cplusplus
}
#endif

#endif
