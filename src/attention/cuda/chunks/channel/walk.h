/* walk.h (private): what the walks of gates per channel share.
 *
 * A block of four warps owns a head and 64 of its value columns and visits the head's spans one
 * after the other; a warp has 16 columns of the state, transposed, in registers. The copies that a
 * span's first half reads start while the second half of the span before is computed, and those of
 * the second half with the first: shared memory holds each array once, and several blocks share a
 * multiprocessor. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CHANNEL_WALK_H
#define SR_ATTENTION_CUDA_CHUNKS_CHANNEL_WALK_H

#include "attention/cuda/chunks/channel/channel.h"
#include "device/cuda/check.h"

enum { CHANNEL_WALK_THREADS = SR_DELTA_STRIPS * SR_WARP };

/* Where a block is; in shared memory, since registers are scarce. */
struct channel_walk_at {
    int b, query, head, value; /* head: of keys and values; value: the block's first column */
    sr_chunk_span spans[2];    /* alternating: the current one and the next */

    /* Of all heads of keys and values. */
    SR_DEVICE int kv(const sr_chunk_call &call) const {
        return b * call.Hkv + head;
    }
};

/* The warp and its first value column. */
SR_DEVICE int channel_strip() {
    return delta_thread() / SR_WARP;
}
SR_DEVICE int channel_value(const channel_walk_at &at) {
    return at.value + SR_DELTA_STRIP * channel_strip();
}

/* A head's tile of queries, or another array of all heads. */
template <class N>
SR_DEVICE const N *channel_of_query(const N *array, const sr_chunk_call &call,
                                    const channel_walk_at &at, int query, const sr_chunk_span &span,
                                    int numbers) {
    return channel_chunk(array, call, at.b * call.H + query, span.t0 / SR_CHUNK, numbers);
}
template <class N>
SR_DEVICE N *channel_of_key(N *array, const sr_chunk_call &call, const channel_walk_at &at,
                            const sr_chunk_span &span, int numbers) {
    return channel_chunk(array, call, at.kv(call), span.t0 / SR_CHUNK, numbers);
}

/* Starts the copies of the betas of a span, zero outside; delta_beta is for their reader. */
SR_DEVICE void channel_load_betas(float *to, const sr_chunk_call &call, const channel_walk_at &at,
                                  const sr_chunk_span &span) {
    const float *const from = call.beta + call.row(call.Hkv, at.b, at.head, 0);
    const int n = delta_thread(), t = span.t0 + n;
    const bool counts = t >= span.from && t < span.past;
    if (n < SR_CHUNK)
        cp_async_4(to + n, counts ? from + t : from, counts ? 4 : 0);
}

/* The place of the block's slice of values in an array of a chunk's slices. */
SR_DEVICE int channel_slice(const channel_walk_at &at, int tile) {
    return at.value / SR_CHUNK * tile;
}

/* The strip's 16 rows of a transposed state to its tile in an array of all chunks. */
template <int F>
SR_DEVICE void channel_store_state(sr_bf16 *array, const sr_chunk_call &call,
                                   const channel_walk_at &at, const sr_chunk_span &span,
                                   const delta_state<F> &state) {
    constexpr int tile = SR_CHUNK * F;
    sr_bf16 *const to = channel_of_key(array, call, at, span, channel_slices(call) * tile) +
                        channel_slice(at, tile);
    const int lane = delta_lane();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < F / 8; n += 4) {
            uint32_t word[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                word[e] = pack_bf16(state.s[n + e][2 * half], state.s[n + e][2 * half + 1]);
            quad_transpose(word, lane);
            const int row = SR_DELTA_STRIP * channel_strip() + delta_row(half, lane);
            store_words(to + sr_tile<F>::offset(row, n + lane % 4), word);
        }
}

/* use(row, chunk) for each 8 numbers of the strip's columns of a tile (64 tokens, 64 values), the
 * rows of a span. */
template <class Use> SR_DEVICE void channel_each_piece(const sr_chunk_span &span, const Use &use) {
#pragma unroll
    for (int n = delta_lane(); n < 2 * SR_CHUNK; n += SR_WARP) {
        const int t = span.t0 + n / 2;
        if (t >= span.from && t < span.past)
            use(n / 2, 2 * channel_strip() + n % 2);
    }
}

#endif
