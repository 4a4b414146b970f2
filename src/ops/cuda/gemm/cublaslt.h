/* cublaslt.h (private): products by cuBLASLt, a library that is looked for when the program
 * runs. */
#ifndef SR_OPS_CUDA_GEMM_CUBLASLT_H
#define SR_OPS_CUDA_GEMM_CUBLASLT_H

#include "ops/cuda/gemm/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sr_cublaslt sr_cublaslt;

/* Looks for the library: the file that SOFTRNN_CUBLASLT names ("none": no library), else
 * libcublasLt.so.13 or .12 where the system finds them. *library = NULL where there is none; it
 * fails if the named file is not it. */
srnn_status sr_cublaslt_open(sr_cublaslt **library);
void sr_cublaslt_close(sr_cublaslt *library); /* accepts NULL */

/* Where a product may run: in order on this stream (a cudaStream_t), with this room. */
typedef struct sr_cublaslt_place {
    void *stream, *workspace;
    size_t workspace_bytes;
} sr_cublaslt_place;

/* Starts the product. *started = false: the library has no way of doing it. Which way is taken
 * depends on shapes, types and alignment alone, never on time, so that a product gives the same
 * bits each time. */
srnn_status sr_cublaslt_multiply(sr_cublaslt *library, bool *started,
                                 const sr_cuda_product *product, const sr_cublaslt_place *place);

#ifdef __cplusplus
}
#endif

#endif
