/* linear.h (private): the GEMMs of a linear layer with operands of 8 bits.
 *
 * Operands are bf16 in memory and quantised for each GEMM: activations and weights to E4M3,
 * gradients to E5M2, each with one scale for all rows of a piece. cuBLASLt multiplies; where it
 * does not support a shape, or is absent, the same numbers are multiplied in bf16. */
#ifndef SR_OPS_CUDA_FP8_LINEAR_H
#define SR_OPS_CUDA_FP8_LINEAR_H

#include "ops/cuda/gemm/gemm.h"

/* Fails where the GPU has no FP8; else takes the workspace of quantised operands; 0: the usual. */
srnn_status sr_cuda_fp8_open(sr_backend *backend, size_t bytes);
void sr_cuda_fp8_close(sr_backend *backend);

/* As expect_gradients of the backend. */
srnn_status sr_cuda_expect_gradients(sr_backend *backend, bool expects);

/* As hold_codes and drop_codes of the backend. */
srnn_status sr_cuda_fp8_hold(sr_backend *backend, size_t *bytes, const void *weights,
                             int64_t numbers);
void sr_cuda_fp8_drop(sr_backend *backend, const void *weights);

/* Whether the backend computes in FP8 and a layer of N outputs and this input may be one of those
 * GEMMs: sizes are multiples of 16, there are more rows than in decoding, rows are aligned. */
bool sr_cuda_fp8_fits(const sr_backend *backend, const sr_linear *layer, sr_matrix x);

/* y = x weight^T + addend; weight (y.columns, x.columns), bf16. */
srnn_status sr_cuda_fp8_forward(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                const void *weight);

/* Of layers whose weights, and whose gradients, are contiguous, without biases. `adds`: adds to
 * d_x. */
srnn_status sr_cuda_fp8_backward(sr_backend *backend, const sr_linear_backward *of, bool adds);

#endif
