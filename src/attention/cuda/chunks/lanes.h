/* lanes.h (private): kernels over rows of bf16, 8 numbers a thread: who owns what, sums over a row,
 * sums over all tokens in a fixed order.
 *
 * A block owns `slots` tokens at a time, and of each all heads: thread (slot, h, piece) has numbers
 * 8 piece .. of the row of head h, and keeps h and piece from token to token, so that sums over
 * tokens stay in its registers. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_LANES_H
#define SR_ATTENTION_CUDA_CHUNKS_LANES_H

#include "attention/cuda/axes/decays.h"

/* Threads of a block at most and at least; of all blocks where each takes several tokens, which
 * fill an H200. */
enum { CHUNK_LANES_MAX = 512, CHUNK_LANES_LEAST = 128, CHUNK_LANES_ALL = 132 * 1024 };

struct chunk_lanes {
    int heads, pieces, slots;

    SR_BOTH int threads() const {
        return heads * pieces * slots;
    }
};

/* slots is 0 where a block cannot have such rows: pieces is a power of two up to 32. */
static inline chunk_lanes chunk_lanes_of(int heads, int width) {
    chunk_lanes lanes = {heads, width / 8, 0};
    const int each = lanes.heads * lanes.pieces;
    if (width % 8 != 0 || (lanes.pieces & (lanes.pieces - 1)) != 0 || lanes.pieces > SR_WARP)
        return lanes;
    for (int slots = 1; slots * each <= CHUNK_LANES_MAX && lanes.slots == 0; slots++)
        if (slots * each >= CHUNK_LANES_LEAST && slots * each % SR_WARP == 0)
            lanes.slots = slots;
    return lanes;
}

/* The blocks for this many tokens, of which each takes several in turn. */
static inline unsigned chunk_lanes_blocks(const chunk_lanes &lanes, int64_t tokens, int most) {
    const int64_t all = (tokens + lanes.slots - 1) / lanes.slots;
    return (unsigned)(all < most ? all : most);
}

/* A thread's place. */
struct chunk_lane {
    int slot, h, piece;
};

SR_DEVICE chunk_lane chunk_lane_of(const chunk_lanes &lanes) {
    const int thread = (int)threadIdx.x;
    return {thread / (lanes.pieces * lanes.heads), thread / lanes.pieces % lanes.heads,
            thread % lanes.pieces};
}

/* Of the tokens of all rows, fewer than 2^31. */
struct chunk_token {
    int b, t;
};

SR_DEVICE chunk_token chunk_token_of(const sr_axes_call &call, int64_t token) {
    const uint32_t n = (uint32_t)token, T = (uint32_t)call.T, b = n / T;
    return {(int)b, (int)(n - b * T)};
}

/* Over the lanes of a row: every lane gets the same bits. */
SR_DEVICE float chunk_row_sum(float x, int pieces) {
    for (int mask = pieces / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

SR_DEVICE float chunk_dot(const float (&a)[8], const float (&b)[8]) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 8; c++)
        sum = fmaf(a[c], b[c], sum);
    return sum;
}

/* Eight numbers as they are in memory. */
SR_DEVICE sr_vector<uint32_t> chunk_words(const sr_bf16 *from) {
    return load_vector(reinterpret_cast<const uint32_t *>(from));
}

SR_DEVICE void chunk_unpack_8(float (&x)[8], const sr_vector<uint32_t> &pairs) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float2 pair = unpack_bf16(pairs.number[c]);
        x[2 * c] = pair.x;
        x[2 * c + 1] = pair.y;
    }
}

SR_DEVICE void chunk_load_8(float (&x)[8], const sr_bf16 *from) {
    chunk_unpack_8(x, chunk_words(from));
}

SR_DEVICE void chunk_store_8(sr_bf16 *to, const float (&x)[8]) {
    sr_vector<uint32_t> pairs;
#pragma unroll
    for (int c = 0; c < 4; c++)
        pairs.number[c] = pack_bf16(x[2 * c], x[2 * c + 1]);
    store_vector(reinterpret_cast<uint32_t *>(to), pairs);
}

/* Numbers 8 piece .. of a row of the caller's, which is bf16 and aligned. */
SR_DEVICE sr_bf16 *chunk_piece(const sr_axes_tensor &x, int b, int h, int64_t t, int piece) {
    return (sr_bf16 *)x.data + x.place(b, h, t, 8 * piece);
}

/* ---- pointwise functions in float ---- */

/* Activations of gates and their slopes. */
SR_DEVICE void chunk_gates_of(float (&value)[8], float (&slope)[8], srnn_gate_shape shape,
                              const float (&z)[8]) {
    float sigmoid[8], silu_slope[8];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        sigmoid[c] = gate_sigmoid(z[c]);
        silu_slope[c] = sigmoid[c] * (1 + z[c] * (1 - sigmoid[c]));
    }
    switch (shape) {
    case SRNN_GATE_SHAPE_SIGMOID:
#pragma unroll
        for (int c = 0; c < 8; c++) {
            value[c] = sigmoid[c];
            slope[c] = sigmoid[c] * (1 - sigmoid[c]);
        }
        break;
    case SRNN_GATE_SHAPE_SILU:
#pragma unroll
        for (int c = 0; c < 8; c++) {
            value[c] = z[c] * sigmoid[c];
            slope[c] = silu_slope[c];
        }
        break;
    case SRNN_GATE_SHAPE_SILU_SQUARE:
#pragma unroll
        for (int c = 0; c < 8; c++) {
            value[c] = z[c] * sigmoid[c] * z[c] * sigmoid[c];
            slope[c] = 2 * z[c] * sigmoid[c] * silu_slope[c];
        }
        break;
    case SRNN_GATE_SHAPE_IDENTITY:
#pragma unroll
        for (int c = 0; c < 8; c++) {
            value[c] = z[c];
            slope[c] = 1;
        }
        break;
    }
}

/* ---- sums over all tokens ---- */

/* Partial sums: (blocks, kinds, threads, each), of kernels whose threads have `each` numbers. */
struct chunk_partial {
    float *sums;
    int blocks, kinds, threads, each;
};

enum { CHUNK_SUM_KINDS = 3, CHUNK_SUMS = CHUNK_LANES_ALL * CHUNK_SUM_KINDS * 8 };

template <int EACH>
SR_DEVICE void chunk_partial_store(const chunk_partial &partial, int kind,
                                   const float (&sums)[EACH]) {
    float *const to =
        partial.sums +
        (((int64_t)blockIdx.x * partial.kinds + kind) * partial.threads + threadIdx.x) * EACH;
#pragma unroll
    for (int c = 0; c < EACH; c++)
        to[c] = sums[c];
}

/* Columns that the sums of one kind are added up to: of all numbers (h, c) of a slot, column n has
 * those with number / merged % columns = n. */
struct chunk_columns {
    int kind, numbers, merged, columns;
};

/* out (columns.columns); NULL: not wanted. */
srnn_status sr_chunks_add_partial(float *out, const chunk_partial &partial,
                                  const chunk_columns &columns, cudaStream_t stream);

#endif
