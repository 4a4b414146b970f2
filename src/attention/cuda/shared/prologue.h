/* prologue.h (private): prologue and epilogue of attention on the GPU: what happens to rows before
 * and after the core.
 *
 *     forward:   sr_attention_prepare, core (whose epilogue is row_output; saves for backward)
 *     backward:  sr_attention_prepare, sr_attention_outputs_backward, core,
 *                sr_attention_inputs_backward
 *
 * The core's backward reads row_scale, d_row_sum and d_numerator, and writes
 *     d_q, d_k: slope_unit times the sums, through row_feature_backward
 *     d_v: value_factor times the sums
 *     d_value_gate, value_dot, row_dot, column_dot where the variant has them. */
#ifndef SR_ATTENTION_CUDA_SHARED_PROLOGUE_H
#define SR_ATTENTION_CUDA_SHARED_PROLOGUE_H

#include "attention/cuda/shared/call.h"

/* Prologue: running sums, features of q and k, factors of v, into the workspace. */
template <class N>
srnn_status sr_attention_prepare(const sr_attention_view<N> &call, cudaStream_t stream);

/* Backward preprocess, from d_o and what forward saved: what the core's backward reads; gradients
 * of the output gate (without its running sums) and of the norm's weight and bias. */
template <class N>
srnn_status sr_attention_outputs_backward(const sr_attention_view<N> &call, cudaStream_t stream);

/* Backward epilogue: gradients that need more than one row. Running sums of gates, norms across
 * heads, learned powers of v. */
template <class N>
srnn_status sr_attention_inputs_backward(const sr_attention_view<N> &call, cudaStream_t stream);

#endif
