/* tree.h (private): the core of additive writes with levels and a gate per head, or none: its tree
 * of states, and its steps.
 *
 * Chunk n of a document has its tokens 64 n .. 64 n + 63. A pair of tokens of one chunk has a level
 * below 7; the level of a pair in chunks n > m is 7 + z, z being the highest bit in which n and m
 * differ. So a query reads the keys before its chunk as one state for each bit z that is set in n:
 * that of the 2^z chunks before the chunk where the bits below z are 0. The place between these
 * chunks and the 2^z chunks that read them is a boundary; each boundary has one state S of what
 * lies before it, and one gradient R of that state from what lies after it:
 *
 *     S = sum_j e^(C - C_j) k_j v_j'        R = scale sum_i e^(C_i - C) level_i[7 + z] q_i dN_i'
 *
 * with C that of the last token before the boundary. Chunk n reads S at the bits of n that are 1,
 * and R at those that are 0: log2(T / 64) tiles for each chunk.
 *
 * nodes.cu adds up S and R, each by itself; forward.cu and gradients.cu have every chunk by itself;
 * gates.cu has the sums of gates up to boundaries, and what gradients of gates have from other
 * chunks. Nothing is sequential but the chunks of a node, of which there are at most T / 128. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_LEVELS_TREE_H
#define SR_ATTENTION_CUDA_CHUNKS_LEVELS_TREE_H

#include "attention/cuda/chunks/core.h"
#include "attention/cuda/chunks/tiles.h"
#include "base/memory.h"

enum {
    TREE_INSIDE = 7,                       /* levels of pairs within a chunk */
    TREE_LEVELS = 20,                      /* at most, with these */
    TREE_NODES = TREE_LEVELS - TREE_INSIDE /* states that a chunk reads, at most */
};

/* Columns of a tile for this many features or values. */
static inline int tree_width(int numbers) {
    return numbers <= 64 ? 64 : 128;
}

SR_BOTH int tree_slices(int numbers) {
    return (numbers + SR_CHUNK - 1) / SR_CHUNK;
}

/* ---- chunks of documents ---- */

/* A chunk of a document, and its number in it. */
struct tree_chunk {
    sr_chunk_span span; /* t0 == from */
    int n;
};

/* The tree of a batch row. A window is 64 tokens of the row, from a multiple of 64 on. At most one
 * boundary lies in a window, and chunks begin there or where documents do. */
struct tree_row {
    const int32_t *first; /* (T) */
    int T;

    /* The first token of the window that begins a chunk of the document that the window begins in,
     * were the document long enough. */
    SR_DEVICE int aligned(int window) const {
        const int begin = SR_CHUNK * window, start = first[begin];
        return start + (begin - start + SR_CHUNK - 1) / SR_CHUNK * SR_CHUNK;
    }
    SR_DEVICE bool inside(int t, int start) const {
        return t < T && first[t] == start;
    }

    /* The boundary in a window, or -1. */
    SR_DEVICE int boundary(int window) const {
        const int at = aligned(window), start = first[SR_CHUNK * window];
        return at > start && inside(at, start) ? at : -1;
    }

    /* The end of the document of `from`, or `most` where that is before it. */
    SR_DEVICE int end_of(int from, int most) const {
        const int start = first[from];
        int last = from, past = min(most, T);
        if (first[past - 1] == start)
            return past;
#pragma unroll 1
        while (past - last > 1) {
            const int middle = (last + past) / 2;
            if (first[middle] == start)
                last = middle;
            else
                past = middle;
        }
        return past;
    }

    /* The first chunk that begins in a window or later. Those after it begin where one ends. */
    SR_DEVICE int chunk_from(int window) const {
        const int at = aligned(window), begin = SR_CHUNK * window;
        return at == begin ? begin : end_of(begin, at);
    }
    SR_DEVICE tree_chunk chunk(int t0) const {
        const int start = first[t0];
        return {{t0, t0, end_of(t0, t0 + SR_CHUNK), t0 > start}, (t0 - start) / SR_CHUNK};
    }
};

SR_DEVICE tree_row tree_row_of(const sr_chunk_call &call, int b) {
    return {call.first + (int64_t)b * call.T, call.T};
}

/* ---- arrays ---- */

/* Of all boundaries, by their windows. */
struct tree_arrays {
    double *sums;    /* (B, Hkv, windows): gates of the document up to the token before */
    sr_bf16 *states; /* (B, Hkv, windows, parts, slices, SR_CHUNK_SQUARE): S^T as tiles lie */
    sr_bf16 *later;  /* the same of R; backward */
    /* Backward, of the chunk after a boundary and of that before it: what gates of other chunks of
     * its node get from it, for each bit. (B, Hkv, windows, TREE_NODES) */
    float *of_queries, *of_keys;
};

/* Its numbers in kernels. */
struct tree_shape {
    int windows, parts, slices;

    SR_DEVICE int64_t number(const sr_chunk_call &call, int b, int head, int window) const {
        return ((int64_t)b * call.Hkv + head) * windows + window;
    }
    SR_DEVICE int64_t tile(const sr_chunk_call &call, int b, int head, int window, int part,
                           int slice) const {
        return ((number(call, b, head, window) * parts + part) * slices + slice) * SR_CHUNK_SQUARE;
    }
};

static inline tree_shape tree_shape_of(const sr_chunk_call &call) {
    return {chunk_count(call.T), tree_slices(call.F), tree_slices(call.V)};
}

/* Placed in `layout`, for backward or for forward. */
tree_arrays tree_arrays_of(const sr_chunk_shape &shape, bool backward, sr_layout *layout);

/* ---- what a chunk reads ---- */

/* A state that a chunk reads. */
struct tree_node {
    int z, window; /* the bit; where the boundary is */
    float factor;  /* between the state's place and the chunk's: before it, or after it for R */
};

/* In the order of bits. */
struct tree_reads {
    int count;
    tree_node node[TREE_NODES];
};

/* The states S (LATER: R) of a chunk, by the lanes of one warp. Complete after a barrier. */
template <bool LATER>
SR_DEVICE void tree_find(tree_reads *reads, const sr_chunk_call &call, const tree_arrays &tree,
                         const tree_row &row, const tree_chunk &chunk, int64_t number) {
    const int lane = (int)threadIdx.x % SR_WARP, z = lane < TREE_NODES ? lane : 0;
    const int inside = chunk.n & ((1 << z) - 1), t0 = chunk.span.t0;
    const bool set = chunk.n >> z & 1;
    const int boundary = t0 + SR_CHUNK * (LATER ? (1 << z) - inside : -inside);
    const bool there = lane < TREE_NODES && set != LATER &&
                       (!LATER || row.inside(boundary, t0 - SR_CHUNK * chunk.n));
    const uint32_t all = warp_ballot(there);
    if (lane == 0)
        reads->count = __popc(all);
    if (!there)
        return;
    float factor = 1;
    const int own = LATER ? t0 + SR_CHUNK : t0; /* R stands before a boundary, S too */
    if (call.decays && own != boundary) {
        const double *const sums = tree.sums + number;
        const double between = LATER ? sums[boundary / SR_CHUNK] - sums[own / SR_CHUNK]
                                     : sums[own / SR_CHUNK] - sums[boundary / SR_CHUNK];
        factor = exp2_fast((float)between * SR_LOG2_E);
    }
    reads->node[__popc(all & ((1u << lane) - 1))] = {z, boundary / SR_CHUNK, factor};
}

/* ---- level weights ---- */

/* The level of tokens i >= j of a chunk. */
SR_DEVICE int tree_level(int i, int j) {
    return 32 - __clz(i ^ j);
}

/* Those of the span's rows of query head h, (SR_CHUNK, TREE_LEVELS), 0 for others. By all THREADS
 * threads; complete after a barrier. */
template <int THREADS>
SR_DEVICE void tree_load_levels(float *to, const sr_chunk_call &call, int b, int h,
                                const sr_chunk_span &span) {
    const float *const from = call.level + call.row(call.H, b, h, span.t0) * call.levels;
    for (int n = (int)threadIdx.x; n < SR_CHUNK * TREE_LEVELS; n += THREADS) {
        const int row = n / TREE_LEVELS, level = n % TREE_LEVELS;
        const bool exists = level < call.levels && row < span.past - span.t0;
        to[n] = exists ? from[row * call.levels + level] : 0;
    }
}

/* ---- steps ---- */

/* The sums of gates. */
srnn_status tree_gates(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream);
/* S; and R. */
srnn_status tree_key_nodes(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream);
srnn_status tree_query_nodes(const sr_chunk_call &call, const tree_arrays &tree,
                             cudaStream_t stream);
srnn_status tree_forward(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream);
srnn_status tree_gradients(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream);
/* d_gate += what it has from other chunks than the token's own. */
srnn_status tree_gates_backward(const sr_chunk_call &call, const tree_arrays &tree,
                                cudaStream_t stream);

/* Shared memory of a block. */
size_t tree_forward_bytes(int F);
size_t tree_gradients_bytes(int F, int V);

#endif
