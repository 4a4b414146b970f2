/* gemm.h (private): one GEMM on the GPU. */
#ifndef SR_OPS_CUDA_GEMM_GEMM_H
#define SR_OPS_CUDA_GEMM_GEMM_H

#include "ops/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Several products of one shape: how many, and the numbers from one's matrices to the next's. */
typedef struct sr_cuda_gemm_batch {
    int64_t count; /* 0: one */
    int64_t a, b, c, d;
} sr_cuda_gemm_batch;

/* d (M, N) = A B + c. A is (M, K), or stored as (K, M) if transpose_a; B is (K, N), or stored as
 * (N, K) if transpose_b; not both. Strides are those of the stored rows. Sums are float, rounded
 * only when stored. */
typedef struct sr_cuda_gemm_call {
    const void *a, *b; /* of type `in` */
    /* (M, N) of type `out`; may be d, and then has its stride; NULL: nothing is added */
    const void *c;
    void *d; /* of type `out` */
    int64_t a_stride, b_stride, c_stride, d_stride;
    int64_t M, N, K;
    bool transpose_a, transpose_b;
    srnn_dtype in, out; /* float and float, or bf16 and either */
    sr_cuda_gemm_batch batch;
} sr_cuda_gemm_call;

/* By the kernels for few rows where they apply; by cuBLASLt where it is present and supports it;
 * else by the kernels of gemm.cu. */
srnn_status sr_cuda_multiply(sr_backend *backend, const sr_cuda_gemm_call *product);

/* Whether the kernels for few rows are the fastest for this shape; and those kernels: few_rows.cu
 * up to the first number of rows, cluster_rows.cu (Hopper) up to the second, if there are not too
 * many columns: sr_cuda_few_rows of N columns. */
enum { SR_CUDA_FEW_ROWS = 4, SR_CUDA_MANY_ROWS = 32, SR_CUDA_MANY_COLUMNS = 8192 };
int64_t sr_cuda_few_rows(const sr_backend *backend, int64_t N);
bool sr_cuda_is_few(const sr_backend *backend, const sr_cuda_gemm_call *product);
srnn_status sr_cuda_multiply_few(sr_backend *backend, const sr_cuda_gemm_call *product);

/* Epilogue of two columns of a normed GEMM that belong together. */
typedef struct sr_few_end {
    /* Column n of d is silu(column n) * column (n + pair_columns), of 2 * pair_columns. */
    bool swiglu;
    /* else this many of the first columns are heads to which `rope` is applied */
    int64_t pair_columns;
    sr_rope rope;
} sr_few_end;

/* A GEMM of few rows with prologue and epilogue. norm.weight NULL: neither. */
typedef struct sr_few_rows_gemm {
    sr_cuda_gemm_call product; /* a: float where it is normed; then c is NULL and d bf16 */
    sr_rmsnorm norm;
    sr_few_end end;
} sr_few_rows_gemm;

srnn_status sr_cuda_start_few(sr_backend *backend, const sr_few_rows_gemm *product);
srnn_status sr_cuda_start_many(sr_backend *backend, const sr_few_rows_gemm *product);

#ifdef __cplusplus
}
#endif

#endif
