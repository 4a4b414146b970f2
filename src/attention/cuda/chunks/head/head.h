/* head.h (private): the core of additive writes with a gate per head, or none: its steps.
 *
 * Forward: forward.cu, one walk per query head and slice of 64 value columns. Backward:
 * states.cu walks forwards for the states before chunks and from the end for their gradients
 * after chunks, both kept in bf16; then gradients.cu has every chunk by itself. Where heads are
 * narrow enough for all of a chunk to be in shared memory, single.cu does, or shared.cu for those
 * that share queries and keys. Walks that are too few to fill the GPU are cut into segments; what
 * each adds to the state is found before. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_HEAD_HEAD_H
#define SR_ATTENTION_CUDA_CHUNKS_HEAD_HEAD_H

#include "attention/cuda/chunks/core.h"
#include "attention/cuda/chunks/tiles.h"
#include "base/memory.h"

/* Whether tokens have weights: gates, or factors of values. */
SR_BOTH bool head_weighs(const sr_chunk_call &call) {
    return call.decays > 0 || call.factor;
}

/* What tokens of a head of keys and values weigh, on its way to shared memory. One warp. */
SR_DEVICE void head_open_gates(sr_chunk_gates &gates, const sr_chunk_call &call, int b, int head,
                               const sr_chunk_span &span) {
    gates.open(call.decays ? call.gate + call.row(call.Hkv, b, head, 0) : nullptr, span);
}
SR_DEVICE void head_publish_gates(sr_chunk_gates &gates, sr_chunk_tokens &tokens,
                                  const sr_chunk_call &call, int b, int head,
                                  const sr_chunk_span &span) {
    gates.publish(tokens, call.factor ? call.factor + call.row(call.Hkv, b, head, 0) : nullptr,
                  span);
}

/* Columns of a tile for this many features. */
static inline int head_width(int numbers) {
    return numbers <= 64 ? 64 : numbers <= 128 ? 128 : 256;
}

SR_BOTH int head_slices(int numbers) {
    return (numbers + SR_CHUNK - 1) / SR_CHUNK;
}

/* A walk is that of a head over the chunks of its row, for a slice of the values: number (b heads +
 * head) slices + slice. The last walks may be cut. */
struct head_walks {
    int B, heads, slices, chunks;
    int group; /* heads with the same keys and values */
    int parts; /* of the features, 64 each */
    int whole; /* walks that are not cut */
    int count; /* segments of the others */
    int each;  /* chunks of a segment */

    SR_BOTH int all() const {
        return B * heads * slices;
    }
    SR_BOTH int blocks() const {
        return whole + (all() - whole) * count;
    }
    SR_BOTH int sums() const { /* segments whose sums are needed: all but the last that is walked */
        return (all() - whole) * (count - 1);
    }
};

/* The walks of the heads of queries, or of keys and values for states. */
head_walks head_forward_walks(const sr_chunk_shape &shape);
head_walks head_states_walks(const sr_chunk_shape &shape);

/* One block's walk: chunks start .. end-1 of head `head`, value columns from 64 slice on. */
struct head_place {
    int number, b, head, slice;
    int order; /* how many segments of the same walk are walked before */
    int start, end;
};

SR_DEVICE head_place head_place_of(const head_walks &walks, int number, int order, bool reverse) {
    head_place at = {number, 0, 0, 0, order, 0, walks.chunks};
    at.slice = number % walks.slices;
    at.head = number / walks.slices % walks.heads;
    at.b = number / walks.slices / walks.heads;
    if (number >= walks.whole) {
        const int segment = reverse ? walks.count - 1 - order : order;
        at.start = segment * walks.each;
        at.end = min(at.start + walks.each, walks.chunks);
    }
    return at;
}

/* Of block `block` of walks.blocks(). */
SR_DEVICE head_place head_place_at(const head_walks &walks, int block, bool reverse) {
    const int cut = block - walks.whole;
    if (cut < 0)
        return head_place_of(walks, block, 0, reverse);
    return head_place_of(walks, walks.whole + cut / walks.count, cut % walks.count, reverse);
}

/* What segments of cut walks add to the state, and what is left of the state before them. */
struct head_sums {
    float *numbers; /* (cut walks, count - 1, parts, SR_PART_NUMBERS) */
    float *factor;  /* (cut walks, count - 1) */

    SR_DEVICE int64_t at(const head_walks &walks, int number, int order) const {
        return (int64_t)(number - walks.whole) * (walks.count - 1) + order;
    }
};

/* The state where a segment begins. `state` holds the one where the walk begins; parts from `part`
 * on. */
SR_DEVICE void head_join(sr_state_part &state, const head_walks &walks, const head_sums &sums,
                         const head_place &at, int part) {
#pragma unroll 1
    for (int order = 0; order < at.order; order++) {
        const int64_t place = sums.at(walks, at.number, order);
        const float factor = sums.factor[place];
        if (factor == 0) /* a document begins inside: 0 times NaN is NaN */
            state.clear();
        state.join_numbers(sums.numbers + (place * walks.parts + part) * SR_PART_NUMBERS, factor);
    }
}

/* States around chunks, in bf16. */
struct head_states {
    sr_bf16 *tiles; /* (B Hkv, chunks, parts, slices, SR_CHUNK_SQUARE): S^T as tiles lie */
    float *ones;    /* (B Hkv, chunks, strips, 64 parts): sums of features, in strips */
};

struct head_workspace {
    head_sums sums;
    head_states before, later; /* states; and their gradients after chunks */
};

/* Placed in `layout`, for both passes of backward or for forward. */
head_workspace head_workspace_of(const sr_chunk_shape &shape, bool backward, sr_layout *layout);

/* Fill sums: of keys and values forwards, or of queries and their gradients from the end. */
srnn_status head_key_sums(const sr_chunk_call &call, const head_walks &walks, const head_sums &sums,
                          cudaStream_t stream);
srnn_status head_query_sums(const sr_chunk_call &call, const head_walks &walks,
                            const head_sums &sums, cudaStream_t stream);

/* Fill the states before chunks, and their gradients after chunks, with d_initial. */
srnn_status head_key_states(const sr_chunk_call &call, const head_walks &walks,
                            const head_sums &sums, const head_states &to, cudaStream_t stream);
srnn_status head_query_states(const sr_chunk_call &call, const head_walks &walks,
                              const head_sums &sums, const head_states &to, cudaStream_t stream);

srnn_status head_forward(const sr_chunk_call &call, const head_walks &walks, const head_sums &sums,
                         cudaStream_t stream);
srnn_status head_gradients(const sr_chunk_call &call, const head_states &before,
                           const head_states &later, cudaStream_t stream);

/* The same for one query head of each head of keys and values, up to 128 features and 64 values,
 * and no row sums: of heads by themselves, or, with call.parts > 0, of those that share queries
 * and keys. */
srnn_status head_single_gradients(const sr_chunk_call &call, const head_states &before,
                                  const head_states &later, cudaStream_t stream);
srnn_status head_shared_gradients(const sr_chunk_call &call, const head_states &before,
                                  const head_states &later, cudaStream_t stream);

/* Shared memory of a block of these. */
size_t head_forward_bytes(int F);
size_t head_gradients_bytes(int F, int V);
size_t head_single_bytes(int F);
size_t head_shared_bytes(int F);

#endif
