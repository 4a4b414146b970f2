/* quantize.h (private): tensors of bf16 as numbers of 8 bits with a scale. */
#ifndef SR_OPS_CUDA_FP8_QUANTIZE_H
#define SR_OPS_CUDA_FP8_QUANTIZE_H

#include "device/cuda/platform.h"
#include "ops/cuda/backend.h"

/* Rows of `across` end at a multiple of this many numbers, with zeros: cuBLASLt sums over
 * multiples of 16. */
enum { SR_FP8_STEP = 16 };

/* A tensor in device memory. NULL: that form is not wanted. */
typedef struct sr_fp8_tensor {
    uint8_t *along;    /* (rows, columns) */
    uint8_t *across;   /* (columns, rows rounded up to SR_FP8_STEP), zeros at the end */
    sr_bf16 *rounded;  /* (rows, columns): the same numbers times their scale, for GEMMs in bf16 */
    float *scale;      /* (1): what a number is multiplied by; NaN if one of them was not finite */
    uint32_t *largest; /* (1): workspace: the largest size, as bits of a float */
} sr_fp8_tensor;

SR_BOTH int64_t sr_fp8_padded(int64_t rows) {
    return (rows + SR_FP8_STEP - 1) / SR_FP8_STEP * SR_FP8_STEP;
}

/* *largest = the largest size of x, a matrix as below. */
srnn_status sr_cuda_fp8_measure(sr_backend *backend, uint32_t *largest, sr_matrix x);

/* to = x, bf16, measured or not, whose columns are a multiple of SR_FP8_STEP and whose rows are
 * aligned to 16 bytes; fewer than 2^32 numbers. */
srnn_status sr_cuda_fp8_quantize(sr_backend *backend, const sr_fp8_tensor *to, sr_matrix x,
                                 sr_fp8_format format);

/* note->expected = before->largest, or 0 without one; the rest of the note = 0. May be the same. */
srnn_status sr_cuda_fp8_expect(sr_backend *backend, sr_matrix_note *note,
                               const sr_matrix_note *before);

/* As sr_cuda_fp8_quantize to E5M2, of a gradient that is not measured, whose largest size should be
 * near that in the note, which it replaces: x is read once, and once more if it is not. */
srnn_status sr_cuda_fp8_quantize_expected(sr_backend *backend, const sr_fp8_tensor *to, sr_matrix x,
                                          sr_matrix_note *note);

/* SR_HANDED_CODES of x, float, of which only those along rows are there, with the scale of the
 * expected size: the others, and where note->largest is not as expected all, with its scale. */
srnn_status sr_cuda_fp8_complete(sr_backend *backend, void *codes, sr_matrix x,
                                 sr_matrix_note *note);

/* The scale of numbers of E5M2, and the largest size that was rounded, or NULL. */
typedef struct sr_fp8_factor {
    const float *scale;
    const uint32_t *largest;
} sr_fp8_factor;

/* Raises note->largest to a size that no sum of `depth` products of such a number and one of E4M3
 * with this scale exceeds. */
srnn_status sr_cuda_fp8_bound(sr_backend *backend, sr_matrix_note *note, const sr_fp8_factor *e5m2,
                              const float *e4m3_scale, int64_t depth);

/* x->rounded (count) = what x->along (count) stands for; count is a multiple of SR_FP8_STEP. */
srnn_status sr_cuda_fp8_widen(sr_backend *backend, const sr_fp8_tensor *x, int64_t count,
                              sr_fp8_format format);

#endif
