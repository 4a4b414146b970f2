/* prologue.h (private): what happens to rows before and after the core of the equation, on the GPU.
 *
 *     forward:   sr_attention_prepare, core (which ends a row with row_output and writes what is saved)
 *     backward:  sr_attention_prepare, sr_attention_outputs_backward, core, sr_attention_inputs_backward
 *
 * The core's backward reads row_scale, d_row_sum and d_numerator, and writes
 *     d_q, d_k: slope_unit times the sums, through row_feature_backward
 *     d_v: value_factor times the sums
 *     d_value_gate, value_dot, row_dot, column_dot where the variant has them. */
#ifndef SR_ATTENTION_CUDA_SHARED_PROLOGUE_H
#define SR_ATTENTION_CUDA_SHARED_PROLOGUE_H

#include "attention/cuda/shared/call.h"

/* Running sums, features of q and k, factors of v, into scratch memory. */
template <class N>
srnn_status sr_attention_prepare(const sr_attention_view<N> &call, cudaStream_t stream);

/* From d_o and what forward saved: what the core's backward reads; gradients of the output gate,
 * but for its running sums, and of the norm's weight and bias. */
template <class N>
srnn_status sr_attention_outputs_backward(const sr_attention_view<N> &call, cudaStream_t stream);

/* After the core: what needs more than one row. Running sums of gates, norms across the heads,
 * learned powers of v. */
template <class N>
srnn_status sr_attention_inputs_backward(const sr_attention_view<N> &call, cudaStream_t stream);

#endif
