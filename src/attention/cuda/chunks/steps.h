/* steps.h (private): the steps of a call around its core: rows, gates and factors for it, and its
 * results as the prologue and epilogue of axes/ know them. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_STEPS_H
#define SR_ATTENTION_CUDA_CHUNKS_STEPS_H

#include "attention/cuda/axes/call.h"
#include "attention/cuda/chunks/core.h"

/* In bf16: linear scores with every axis of rows, decay per head or channel, either write. */
extern const sr_attention_kernel sr_cuda_attention_chunks;

/* The widths that a core sees: multiples of 8, with zeros behind the numbers. */
static inline int sr_chunk_width(int numbers) {
    return (numbers + 7) / 8 * 8;
}

/* The core's view of a call; its arrays are taken from `layout`. */
sr_chunk_call sr_chunk_call_of(const sr_axes_call &call, bool backward, sr_layout *layout);

/* After sr_axes_prepare: what the core reads. After it: the numerators. */
srnn_status sr_chunks_rows_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                              cudaStream_t stream);
srnn_status sr_chunks_rows_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                               cudaStream_t stream);

/* After sr_axes_outputs_backward: the gradients that the core reads. After it: its own. */
srnn_status sr_chunks_gradients_in(const sr_axes_call &call, const sr_chunk_call &chunk,
                                   cudaStream_t stream);
srnn_status sr_chunks_gradients_out(const sr_axes_call &call, const sr_chunk_call &chunk,
                                    cudaStream_t stream);

#endif
