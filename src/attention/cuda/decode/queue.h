/* queue.h: small kernels of generation, put together in one that stays on the GPU for all of them.
 *
 * A product of one row is over in a few microseconds, and a kernel that waits for the one in front of it loses as many.
 * While a device gathers (sr_device_repeat), products of few rows and attention of one token are collected instead of
 * started. Whoever asks for the device's stream (sr_cuda_stream) has what was collected started first, as one kernel, so
 * that nothing else needs to know. */
#ifndef SR_ATTENTION_CUDA_DECODE_QUEUE_H
#define SR_ATTENTION_CUDA_DECODE_QUEUE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SR_CHAIN_ROWS = 4 };

/* A matrix in device memory, bf16 or float. */
typedef struct sr_chain_place {
    void *data;
    int64_t stride; /* numbers from row to row */
    srnn_dtype dtype;
} sr_chain_place;

/* d (M, N) = x (M, K) weight^T + c, and what stands around that: x may be normed before; then pairs of columns turn by
 * a rotary position, or become one by SwiGLU. */
typedef struct sr_chain_product {
    sr_chain_place x, c, d; /* c.data NULL: nothing is added */
    const void *weight;     /* (N, K) bf16 */
    int M, N, K;            /* M up to SR_CHAIN_ROWS, K a multiple of 64, N even if there is c */
    const float *norm;      /* (K): the weight of an RMS norm of x; NULL: none */
    float epsilon;
    bool swiglu; /* column n of d is silu(column n) * column n + turned; there are 2 * turned */
    int turned;  /* else so many of the first columns are heads of D that turn */
    int D;
    const float *angles;      /* (positions, D): cosines, then sines */
    const int32_t *positions; /* (M) */
} sr_chain_product;

/* False: the device does not gather now, or cannot do this. */
bool sr_chain_add_product(const srnn_device *device, const sr_chain_product *product);

#ifdef __cplusplus
}
#endif

#endif
