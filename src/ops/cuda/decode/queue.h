/* queue.h (private): the small kernels of a decode step, merged into one persistent kernel.
 *
 * A GEMM of one row takes a few microseconds, and a kernel that waits for the one before it loses
 * as many. While a device coalesces (sr_device_repeat), products of few rows and attention of one
 * token are queued instead of launched. sr_cuda_stream launches what was queued first, as one
 * kernel, so that nothing else needs to know. */
#ifndef SR_OPS_CUDA_DECODE_QUEUE_H
#define SR_OPS_CUDA_DECODE_QUEUE_H

#include "attention/cuda/decode/coalesce.h"

/* A matrix in device memory, bf16 or float. */
typedef struct sr_decode_place {
    void *data;
    int64_t stride; /* numbers from row to row */
    srnn_dtype dtype;
} sr_decode_place;

/* d (M, N) = x (M, K) weight^T + c, and what stands around that: x may be normed before; then pairs
 * of columns turn by a rotary position, or become one by SwiGLU. */
typedef struct sr_decode_product {
    sr_decode_place x, c, d; /* c.data NULL: nothing is added */
    const void *weight;      /* (N, K) bf16 */
    int M, N, K;             /* M up to SR_DECODE_ROWS, K a multiple of 64, N even if there is c */
    const float *norm;       /* (K): the weight of an RMS norm of x; NULL: none */
    float epsilon;
    bool swiglu; /* column n of d is silu(column n) * column n + turned; there are 2 * turned */
    int turned;  /* else so many of the first columns are heads of D that turn */
    int D;
    const float *angles;      /* (positions, D): cosines, then sines */
    const int32_t *positions; /* (M) */
} sr_decode_product;

/* False: the device does not coalesce now, or cannot do this. */
bool sr_decode_add_product(const srnn_device *device, const sr_decode_product *product);

/* Merges products and attention from now on, where the GPU can. */
void sr_decode_install(srnn_device *device);

#endif
