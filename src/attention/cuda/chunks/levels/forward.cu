/* forward.cu: additive writes with levels, each chunk by itself: numerators. */
#include "attention/cuda/chunks/levels/tree.h"
#include "device/cuda/check.h"

/* A warp has 16 rows of a chunk and a side of the 64 value columns. */
template <int F> struct tree_forward_shape {
    static constexpr int sides = F / SR_CHUNK, warps = SR_CHUNK_STRIPS * sides;
    static constexpr int threads = warps * SR_WARP, pieces = SR_CHUNK / 8 / sides;
    /* blocks for which registers are allotted */
    static constexpr int blocks = F == 64 ? 4 : 2;
};

template <int F> struct tree_forward_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK_SQUARE];
    sr_bf16 ring[2][SR_CHUNK_SQUARE];                    /* tiles of states */
    sr_bf16 weights[F > SR_CHUNK ? SR_CHUNK_SQUARE : 8]; /* where several warps share rows */
    sr_chunk_tokens tokens;
    float levels[SR_CHUNK][TREE_LEVELS];
    tree_chunk chunk;
    tree_reads reads;
};

/* The tiles of the states that a chunk reads, part after part, through the ring. */
template <int F> struct tree_forward_tiles {
    const sr_chunk_call &call;
    const tree_shape &shape;
    const sr_bf16 *states;
    tree_forward_memory<F> *shared;
    int b, head, slice;
    int n; /* the next */

    SR_DEVICE void start(int which) const {
        const int node = which / shape.parts, part = which % shape.parts;
        if (node >= shared->reads.count)
            return;
        const sr_bf16 *const from =
            states + shape.tile(call, b, head, shared->reads.node[node].window, part, slice);
        sr_bf16 *const to = shared->ring[which % 2];
        const int own = 8 * thread_again(), step = 8 * tree_forward_shape<F>::threads;
#pragma unroll
        for (int at = 0; at < SR_CHUNK_SQUARE; at += step)
            cp_async_16(to + at + own, from + at + own);
        cp_async_commit();
    }
    /* By all threads: the next tile, complete; the previous one is no longer read. */
    SR_DEVICE const sr_bf16 *take() {
        cp_async_wait<0>();
        __syncthreads();
        start(n + 1);
        return shared->ring[n++ % 2];
    }
};

/* The weights of a warp's 16 rows and 16 keys, from their dot products. */
template <int F>
SR_DEVICE void tree_weigh(float (&w)[2][4], const tree_forward_memory<F> *shared, int own, int at,
                          bool decays) {
    const int lane = lane_again();
    const int level = at == own ? 0 : tree_level(own, at);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const int i = own + sum_row(e, lane), j = at + sum_column(e, lane);
        const float of_level = shared->levels[i][at == own ? tree_level(i, j) : level];
        const float weight = w[e / 4][e % 4] * (decays ? shared->tokens.between(i, j) : 1);
        w[e / 4][e % 4] = j > i ? 0 : weight * of_level;
    }
}

/* C += the weights of rows own .. times V, for the warp's columns, pieces of 16 keys up to their
 * own. Where several warps share rows, each weighs one piece in SIDES, and shared memory has the
 * weights of all. */
template <int F, int PIECES>
SR_DEVICE void tree_visit_pairs(float (&c)[PIECES][4], tree_forward_memory<F> *shared, int own,
                                int side, bool decays) {
    constexpr int SIDES = tree_forward_shape<F>::sides;
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {};
        multiply_by_rows<F, F, F>(w, shared->queries, own, 0, shared->keys, at);
        tree_weigh<F>(w, shared, own, at, decays);
        if constexpr (SIDES == 1) {
            uint32_t a[4];
            pack_a(a, w[0], w[1]);
            multiply_rows<SR_CHUNK>(c, a, shared->values, at, 0, lane_again());
        } else {
            pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
        }
    }
    if constexpr (SIDES > 1) {
        named_barrier_sync(1 + own / 16, SIDES * SR_WARP); /* the rows' weights are complete */
        const int lane = lane_again();
#pragma unroll 1
        for (int at = 0; at <= own; at += 16) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, shared->weights, own, at / 16, lane);
            multiply_rows<SR_CHUNK>(c, a, shared->values, at, side * PIECES / 2, lane);
        }
    }
}

/* A block owns 64 value columns of a query head, and the chunks of documents that begin in a
 * window: one, unless documents begin there. cp.async copies the rows of q, k and v, and the tiles
 * of S, global -> shared, tile after tile through a ring of two. Warp 0 makes the weights of gates,
 * and warp 1 finds the states. The masked, weighted (Q K') V piece by piece; for each state that
 * the chunk reads Q S, times the level's weights and decays; rows stored from registers. */
template <int F>
__global__ void __launch_bounds__(tree_forward_shape<F>::threads, tree_forward_shape<F>::blocks)
    tree_forward_chunks(const __grid_constant__ sr_chunk_call call,
                        const __grid_constant__ tree_shape shape,
                        const __grid_constant__ tree_arrays tree) {
    using Shape = tree_forward_shape<F>;
    using Memory = tree_forward_memory<F>;
    constexpr int P = Shape::pieces, THREADS = Shape::threads;
    SR_SHARED(Memory, shared);
    const int slice = (int)blockIdx.x % shape.slices;
    const int window = (int)blockIdx.x / shape.slices % shape.windows;
    const int row_head = (int)blockIdx.x / shape.slices / shape.windows;
    const int b = row_head / call.H, h = row_head % call.H, kv = h / call.group;
    const int warp = chunk_warp(), side = warp / SR_CHUNK_STRIPS;
    const int own = 16 * ((warp + window) % SR_CHUNK_STRIPS);
    const bool decays = call.decays > 0;
    const tree_row row = tree_row_of(call, b);
    const int past = min(SR_CHUNK * (window + 1), call.T);
    int t0 = row.chunk_from(window);
    while (t0 < past) {
        if (threadIdx.x == 0)
            shared->chunk = row.chunk(t0);
        __syncthreads(); /* the chunk is known; no warp reads the one before */
        const sr_chunk_span span = shared->chunk.span;
        chunk_load<F, THREADS>(shared->queries, chunk_rows(call.q, b, call.query_head(h), call.F),
                               span);
        chunk_load<F, THREADS>(shared->keys, chunk_rows(call.k, b, call.key_head(kv), call.F),
                               span);
        chunk_load<SR_CHUNK, THREADS>(shared->values,
                                      chunk_rows(call.v, b, kv, call.V, SR_CHUNK * slice), span);
        cp_async_commit();
        if (warp == 0) {
            sr_chunk_gates gates;
            gates.open(decays ? call.gate + call.row(call.Hkv, b, kv, 0) : nullptr, span);
            gates.publish(shared->tokens);
        } else if (warp == 1) {
            tree_find<false>(&shared->reads, call, tree, row, shared->chunk,
                             shape.number(call, b, kv, 0));
        }
        tree_load_levels<THREADS>(&shared->levels[0][0], call, b, h, span);
        cp_async_wait<0>();
        __syncthreads(); /* rows, weights and the list of states are ready */
        tree_forward_tiles<F> tiles = {call, shape, tree.states, shared, b, kv, slice, 0};
        tiles.start(0);
        float c[P][4];
        clear_pieces(c);
        tree_visit_pairs<F>(c, shared, own, side, decays);
#pragma unroll 1
        for (int n = 0; n < shared->reads.count; n++) {
            const tree_node &node = shared->reads.node[n];
            float x[P][4];
            clear_pieces(x);
#pragma unroll 1
            for (int part = 0; part < shape.parts; part++)
                multiply_by_rows<F, SR_CHUNK, SR_CHUNK>(x, shared->queries, own,
                                                        SR_CHUNK_STRIPS * part, tiles.take(),
                                                        8 * P * side);
            const int lane = lane_again();
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = own + sum_row(2 * half, lane);
                factor[half] = node.factor * shared->tokens.before[i] *
                               shared->levels[i][TREE_INSIDE + node.z];
            }
#pragma unroll
            for (int e = 0; e < 4 * P; e++)
                c[e / 4][e % 4] = fmaf(x[e / 4][e % 4], factor[e % 4 / 2], c[e / 4][e % 4]);
        }
#pragma unroll
        for (int e = 0; e < 4 * P; e++)
            c[e / 4][e % 4] *= call.scale;
        const int column = SR_CHUNK * slice + 8 * P * side;
        store_pieces<P>({call.numerator.row(b, h, 0) + column, call.numerator.time, call.V - column,
                         true},
                        c, own, span);
        t0 = span.past;
    }
}

template <int F>
static srnn_status start_chunks(const sr_chunk_call &call, const tree_arrays &tree,
                                cudaStream_t stream) {
    const tree_shape shape = tree_shape_of(call);
    SR_CUDA(sr_launch(tree_forward_chunks<F>,
                      dim3((unsigned)(call.B * call.H * shape.windows * shape.slices)),
                      dim3(tree_forward_shape<F>::threads), sizeof(tree_forward_memory<F>), stream,
                      call, shape, tree));
    return SRNN_OK;
}

srnn_status tree_forward(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream) {
    return tree_width(call.F) == 64 ? start_chunks<64>(call, tree, stream)
                                    : start_chunks<128>(call, tree, stream);
}

size_t tree_forward_bytes(int F) {
    return tree_width(F) == 64 ? sizeof(tree_forward_memory<64>) : sizeof(tree_forward_memory<128>);
}
