/* producers.h (private): ops that write operands of linear layers as SR_HANDED_CODES. */
#ifndef SR_OPS_CUDA_FP8_PRODUCERS_H
#define SR_OPS_CUDA_FP8_PRODUCERS_H

#include "ops/cuda/backend.h"

/* As rmsnorm_forward, of norm->rows that are a multiple of SR_FP8_STEP, as is norm->C. */
srnn_status sr_cuda_fp8_norm(sr_backend *backend, void *out, const sr_rmsnorm *norm);

/* As swiglu_forward and swiglu_backward, where out, or d_x, is SR_HANDED_CODES. x.note is in
 * forward that of an out that should be alike, or NULL, in backward that of out. */
srnn_status sr_cuda_fp8_swiglu(sr_backend *backend, sr_matrix out, sr_matrix x);
srnn_status sr_cuda_fp8_swiglu_back(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                    sr_matrix x);

#endif
