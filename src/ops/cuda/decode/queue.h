/* queue.h (private): the small kernels of a decode step, merged into one persistent kernel.
 *
 * A GEMM of one row takes a few microseconds, and a kernel that waits for the one before it loses
 * as many. While a device coalesces (sr_device_repeat), GEMMs of few rows and attention of one
 * token are queued instead of launched. sr_cuda_stream launches the queue first, as one kernel, so
 * that no other code depends on it. */
#ifndef SR_OPS_CUDA_DECODE_QUEUE_H
#define SR_OPS_CUDA_DECODE_QUEUE_H

#include "attention/cuda/decode/coalesce.h"

/* A matrix in device memory, bf16 or float. */
typedef struct sr_decode_place {
    void *data;
    int64_t stride; /* numbers from row to row */
    srnn_dtype dtype;
} sr_decode_place;

/* d (M, N) = x (M, K) weight^T + c with prologue and epilogue: x may be normed first; then RoPE is
 * applied to pairs of columns, or SwiGLU merges them. */
typedef struct sr_decode_gemm {
    sr_decode_place x, c, d; /* c.data NULL: nothing is added */
    const void *weight;      /* (N, K) bf16 */
    int M, N, K;             /* M up to SR_DECODE_ROWS, K a multiple of 64, N even if there is c */
    const float *norm;       /* (K): the weight of an RMS norm of x; NULL: none */
    float epsilon;
    /* Column n of d is silu(column n) * column (n + pair_columns), of 2 * pair_columns. */
    bool swiglu;
    /* Without swiglu: this many of the first columns are heads of D to which RoPE is applied. */
    int pair_columns;
    int D;
    const float *angles;      /* (positions, D): cosines, then sines */
    const int32_t *positions; /* (M) */
} sr_decode_gemm;

/* False: the device does not coalesce now, or does not support this GEMM. */
bool sr_decode_add_gemm(const srnn_device *device, const sr_decode_gemm *product);

/* Merges GEMMs and attention from now on, where the GPU supports it. */
void sr_decode_install(srnn_device *device);

#endif
