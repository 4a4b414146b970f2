/* channel.h (private): the core of gates per channel, either write: its steps, and what they leave
 * in the workspace.
 *
 * What needs no state is found for every chunk by itself: scaled rows, scores and the solved
 * triangle (prepare.cu), gradients of queries, keys, gates and betas (outputs.cu).
 * Between are walks over the spans of a head (forward.cu, reverse.cu), in which a
 * warp has 16 value columns of the state in registers, and no warp another's.
 *
 * With q^ and k^ the rows of queries and keys times their weights up to an anchor of the span, q^
 * with the scale, and k~ the keys times theirs from the anchor on (scores.h):
 *
 *     A_ij = beta_i <k^_i, k~_j>, j < i;    X = (I + A)^-1;    P_ij = <q^_i, k~_j>, j <= i
 *     S^ = diag(before) S                   U = X diag(beta) (V - K^ S^)      (write=add: U = V)
 *     numerators = Q^ S^ + P U
 *     S after it = diag(after) (diag(between) S^ + K~' U)
 *
 * Tiles of features are 64 or 128 wide, with zeros behind. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CHANNEL_CHANNEL_H
#define SR_ATTENTION_CUDA_CHUNKS_CHANNEL_CHANNEL_H

#include "attention/cuda/chunks/channel/scores.h"

/* Factors of the features of a state at a span, by the name in the equation. */
enum channel_factor { CHANNEL_BEFORE, CHANNEL_BETWEEN, CHANNEL_AFTER, CHANNEL_FACTORS };

/* Arrays in the workspace, all but factors as they lie in shared memory, so that copies are plain:
 * tiles (64 tokens, F) and (64 values, F) with the swizzle of sr_tile<F>, (64 tokens, 64 values)
 * with that of sr_tile<64>, F the width of tiles; pairs in swizzled blocks of 16 x 16. Heads are
 * those of keys and values but for queries and scores. Where documents begin inside a chunk, rows
 * of tiles are those of their spans, and pairs of tokens of two spans are 0; `before` is that of
 * the first span, the other factors are those of the last: no state lives between. */
struct channel_places {
    sr_bf16 *queries; /* q^: (B H, chunks, tile) */
    sr_bf16 *readers; /* k^: (B Hkv, chunks, tile); delta only */
    sr_bf16 *writers; /* k~: (B Hkv, chunks, tile) */
    sr_bf16 *scores;  /* P: (B H, chunks, SR_DELTA_PAIRS) */
    sr_bf16 *solved;  /* X in transposed blocks: (B Hkv, chunks, SR_DELTA_PAIRS); delta only */
    float *factors;   /* (B Hkv, chunks, CHANNEL_FACTORS, F) */
    /* Of the backward pass. */
    sr_bf16 *used;     /* U: (B Hkv, chunks, slices of values, tile); delta only */
    sr_bf16 *states;   /* S^': (B Hkv, chunks, slices, tile): of the first span of each chunk */
    sr_bf16 *d_states; /* the gradient of S' after the last span of each, times `after` */
};

srnn_status sr_channel_prepare(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream);
srnn_status sr_channel_forward(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream);
/* The same walk for states and U. */
srnn_status sr_channel_states(const sr_chunk_call &call, const channel_places &places,
                              cudaStream_t stream);
srnn_status sr_channel_reverse(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream);
srnn_status sr_channel_outputs(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream);

/* The most shared memory of a block of the steps. */
size_t sr_channel_bytes(int F);

/* SR_CHANNEL_START(start, F, ...) calls start<width>(...) for the width of tiles of features. */
#define SR_CHANNEL_START(start, F, ...) \
    ((F) <= 64 ? start<64>(__VA_ARGS__) : start<128>(__VA_ARGS__))

/* ---- arrays of the workspace ---- */

/* Of values, 64 at a time. */
SR_BOTH int channel_slices(const sr_chunk_call &call) {
    return (call.V + SR_CHUNK - 1) / SR_CHUNK;
}

/* The chunk's part of an array of all heads, `numbers` for each. */
template <class N>
SR_DEVICE N *channel_chunk(N *array, const sr_chunk_call &call, int head, int chunk, int numbers) {
    return array + ((int64_t)head * chunk_count(call.T) + chunk) * numbers;
}

/* Starts the copy of COUNT numbers that lie alike; by THREADS threads. */
template <int COUNT, int THREADS, class N> SR_DEVICE void channel_copy(N *to, const N *from) {
    constexpr int each = 16 / sizeof(N), pieces = COUNT / each;
    static_assert(COUNT % each == 0, "copies are of 16 bytes");
    const int thread = delta_thread();
#pragma unroll
    for (int n = 0; n < pieces; n += THREADS)
        if (pieces % THREADS == 0 || n + thread < pieces)
            cp_async_16(to + (n + thread) * each, from + (n + thread) * each);
}

/* The same for a tile of tokens, rows outside of the span zero. */
template <int WIDTH, int THREADS>
SR_DEVICE void channel_copy_rows(sr_bf16 *to, const sr_bf16 *from, const sr_chunk_span &span) {
    constexpr int pieces = SR_CHUNK * WIDTH / 8;
    if (span.from == span.t0 && span.past == span.t0 + SR_CHUNK) {
        channel_copy<SR_CHUNK * WIDTH, THREADS>(to, from);
        return;
    }
#pragma unroll 1
    for (int n = delta_thread(); n < pieces; n += THREADS) {
        const int t = span.t0 + n / (WIDTH / 8);
        cp_async_16(to + 8 * n, from + 8 * n, t >= span.from && t < span.past ? 16 : 0);
    }
}

/* Block n of a lower triangle of pairs. */
struct channel_block {
    int row, column; /* of its first pair */
};

SR_DEVICE channel_block channel_block_of(int n) {
    const int i = n < 1 ? 0 : n < 3 ? 1 : n < 6 ? 2 : 3;
    return {16 * i, 16 * (n - i * (i + 1) / 2)};
}

#endif
