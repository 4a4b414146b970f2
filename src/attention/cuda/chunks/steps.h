/* steps.h (private): the steps of a call around its core: rows, gates and factors for it, and what
 * becomes of its results.
 *
 * Rows of models, widths of 8 to 256 numbers that are a power of two, aligned to 16 bytes, with the
 * usual features, gates and norms, go from the caller's arrays to the core and back in bf16, and
 * where nothing is to be done to them the core reads and writes the caller's arrays themselves
 * (inputs.cu, outputs.cu). All others take the prologue and epilogue of axes/ in float, with
 * conversions between (steps.cu). */
#ifndef SR_ATTENTION_CUDA_CHUNKS_STEPS_H
#define SR_ATTENTION_CUDA_CHUNKS_STEPS_H

#include "attention/cuda/axes/call.h"
#include "attention/cuda/chunks/core.h"

/* In bf16: linear scores with every axis of rows, decay per head or channel, either write. */
extern const sr_attention_kernel sr_cuda_attention_chunks;

/* srnn_states: by this kernel, where the matrix of a state is all that goes from token to token. */
bool sr_cuda_carries_states(const srnn_plan *plan);

/* The widths that a core sees: multiples of 8, with zeros behind the numbers. */
static inline int sr_chunk_width(int numbers) {
    return (numbers + 7) / 8 * 8;
}

/* A call with the core's view of it. */
struct sr_chunk_steps {
    sr_axes_call call;
    sr_chunk_call chunk;
    bool direct;          /* rows in bf16, without those of axes/ */
    sr_chunk_rows d_skip; /* (B, H, T, Dv); direct, backward, where the core does not fold it */
    float *sums;          /* partial sums of learned vectors; direct, backward */
};

/* Takes the arrays from `layout`. Of the core: its `parts`; units: it makes features of unit
 * length, where it may. */
sr_chunk_steps sr_chunk_steps_of(const sr_axes_call &call, int parts, bool units, bool backward,
                                 sr_layout *layout);

/* Bytes that these take at most for a plan, after those of axes/. */
size_t sr_chunk_steps_bytes(const sr_axes_call &facts);

/* Before the core: what it reads. After it: outputs. */
srnn_status sr_chunks_begin(const sr_chunk_steps &steps, cudaStream_t stream);
srnn_status sr_chunks_finish(const sr_chunk_steps &steps, cudaStream_t stream);

/* After sr_chunks_begin: the gradients that the core reads. After the core: those of operands. */
srnn_status sr_chunks_begin_backward(const sr_chunk_steps &steps, cudaStream_t stream);
srnn_status sr_chunks_finish_backward(const sr_chunk_steps &steps, cudaStream_t stream);

/* ---- the steps of direct calls ---- */

/* Features, factors of values, gates. */
srnn_status sr_chunks_inputs(const sr_axes_call &call, const sr_chunk_call &chunk,
                             cudaStream_t stream);
/* Weights of levels; gradients of what they are made of, by way of `sums`. */
srnn_status sr_chunks_levels(const sr_axes_call &call, cudaStream_t stream);
srnn_status sr_chunks_levels_backward(const sr_axes_call &call, float *sums, cudaStream_t stream);
/* Outputs from numerators. */
srnn_status sr_chunks_outputs(const sr_axes_call &call, const sr_chunk_call &chunk,
                              cudaStream_t stream);
/* Gradients of numerators and row sums, of what outputs are made of, and of the skip. */
srnn_status sr_chunks_outputs_backward(const sr_chunk_steps &steps, cudaStream_t stream);
/* Gradients of operands from those of features, values and gates. */
srnn_status sr_chunks_inputs_backward(const sr_chunk_steps &steps, cudaStream_t stream);

#endif
