/* nodes.cu: the states at boundaries of the tree, and their gradients. */
#include "attention/cuda/chunks/levels/tree.h"
#include "device/cuda/check.h"

enum { NODES_THREADS = SR_PART_THREADS };

struct nodes_memory {
    alignas(16) sr_bf16 x[2][SR_CHUNK_SQUARE]; /* keys, or queries: 64 features */
    sr_bf16 y[2][SR_CHUNK_SQUARE];             /* values, or gradients: 64 columns */
    sr_chunk_tokens tokens[2];
    float factor[2][SR_CHUNK]; /* of queries */
};

/* Chunk m of the bits of `order` reversed: all launches begin with the boundaries of the longest
 * nodes, those of numbers with the most zeros at their end. */
SR_DEVICE int nodes_window(int order, int bits) {
    int window = 0;
    for (int n = 0; n < bits; n++)
        window |= (order >> n & 1) << (bits - 1 - n);
    return window;
}

/* The visits of a block: of its chunks in order (QUERIES: from the last), each once for each query
 * head of the group. */
template <bool QUERIES> struct nodes_input {
    const sr_chunk_call &call;
    nodes_memory *shared;
    const tree_row &row;
    int b, head, part, slice, level;
    sr_chunk_gates gates;
    sr_chunk_pair weights;

    SR_DEVICE nodes_input(const sr_chunk_call &of_call, nodes_memory *memory,
                          const tree_row &of_row)
        : call(of_call), shared(memory), row(of_row) {
    }

    /* Starts the copy of the chunk from t0 on, of the group's query head g. */
    SR_DEVICE void load(int t0, int g, int stage) {
        const int f0 = SR_CHUNK * part, v0 = SR_CHUNK * slice, h = head * call.group + g;
        const sr_chunk_span span = row.chunk(t0).span;
        if constexpr (QUERIES) {
            chunk_load<SR_CHUNK, NODES_THREADS>(
                shared->x[stage], chunk_rows(call.q, b, call.query_head(h), call.F, f0), span);
            chunk_load<SR_CHUNK, NODES_THREADS>(shared->y[stage],
                                                chunk_rows(call.d_numerator, b, h, call.V, v0),
                                                span);
        } else {
            chunk_load<SR_CHUNK, NODES_THREADS>(
                shared->x[stage], chunk_rows(call.k, b, call.key_head(head), call.F, f0), span);
            chunk_load<SR_CHUNK, NODES_THREADS>(shared->y[stage],
                                                chunk_rows(call.v, b, head, call.V, v0), span);
        }
        cp_async_commit();
        if ((int)threadIdx.x >= SR_WARP)
            return;
        gates.open(call.decays ? call.gate + call.row(call.Hkv, b, head, 0) : nullptr, span);
        if constexpr (QUERIES) {
            const float *const levels = call.level + call.row(call.H, b, h, 0) * call.levels;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int t = span.t0 + 2 * (int)threadIdx.x + n;
                weights.x[n] = t < span.past ? call.scale * levels[t * call.levels + level] : 0;
            }
        }
    }

    /* What the gates amount to, by warp 0; complete after a barrier. */
    SR_DEVICE void publish(int stage) {
        if ((int)threadIdx.x >= SR_WARP)
            return;
        gates.publish(shared->tokens[stage]);
        if constexpr (QUERIES) {
#pragma unroll
            for (int n = 0; n < 2; n++)
                weights.x[n] *= exp2_fast(gates.x[n]);
            weights.store(shared->factor[stage]);
        }
    }
};

/* A block owns 64 features by 64 values of the state at a boundary (QUERIES: of its gradient), and
 * visits the chunks of the node before it in order (after it, from the last, each with all query
 * heads in turn); the state stays in registers. cp.async copies the rows of the next visit, global
 * -> shared (two stages), during this one. For each visit: wait, barrier; S = S across + X' Y. Then
 * the state to its tile in bf16, registers -> shared -> global. */
template <bool QUERIES>
__global__ void __launch_bounds__(NODES_THREADS, 4)
    tree_nodes(const __grid_constant__ sr_chunk_call call, const __grid_constant__ tree_shape shape,
               int bits, sr_bf16 *tiles) {
    SR_SHARED(nodes_memory, shared);
    const int parts = shape.parts * shape.slices, heads = call.B * call.Hkv;
    const int number = (int)blockIdx.x / parts % heads, piece = (int)blockIdx.x % parts;
    const int window = nodes_window((int)blockIdx.x / parts / heads, bits);
    const tree_row row = tree_row_of(call, number / call.Hkv);
    const int boundary = window < shape.windows ? row.boundary(window) : -1;
    if (boundary < 0)
        return;
    const int chunk = (boundary - row.first[boundary]) / SR_CHUNK, z = __ffs(chunk) - 1;
    nodes_input<QUERIES> input(call, shared, row);
    input.b = number / call.Hkv;
    input.head = of_warp(number % call.Hkv);
    input.part = of_warp(piece / shape.slices);
    input.slice = of_warp(piece % shape.slices);
    input.level = TREE_INSIDE + z;
    const int length = SR_CHUNK << z, group = QUERIES ? call.group : 1;
    const int past = QUERIES ? row.end_of(boundary, boundary + length) : boundary;
    const int begin = QUERIES ? boundary : boundary - length;
    const int chunks = (past - begin + SR_CHUNK - 1) / SR_CHUNK;
    int at = QUERIES ? begin + SR_CHUNK * (chunks - 1) : begin, g = 0;
    sr_state_part state;
    input.load(at, 0, 0);
    input.publish(0);
    state.clear();
    for (int visit = 0; visit < chunks * group; visit++) {
        const int stage = visit & 1;
        const bool more = visit + 1 < chunks * group;
        cp_async_wait<0>();
        __syncthreads(); /* tiles and gates are ready; no warp reads the previous ones */
        if (call.decays && g == 0)
            state.multiply(shared->tokens[stage].across);
        g = g + 1 == group ? 0 : g + 1;
        at += g > 0 ? 0 : QUERIES ? -SR_CHUNK : SR_CHUNK;
        if (more)
            input.load(at, g, stage ^ 1);
        const float *const until = call.decays ? shared->tokens[stage].until : nullptr;
        state.template add<SR_CHUNK>(shared->x[stage], shared->y[stage],
                                     QUERIES ? shared->factor[stage] : until);
        if (more)
            input.publish(stage ^ 1);
    }
    __syncthreads(); /* no warp reads the last rows */
    state.template publish<SR_CHUNK>(shared->x[0]);
    __syncwarp();
    const int own = 16 * SR_CHUNK * state.strip(), lane = (int)threadIdx.x % SR_WARP;
    sr_bf16 *const to =
        tiles + shape.tile(call, input.b, input.head, window, input.part, input.slice) + own;
#pragma unroll
    for (int n = 8 * lane; n < 16 * SR_CHUNK; n += 8 * SR_WARP)
        store_vector(to + n, load_vector(shared->x[0] + own + n));
}

template <bool QUERIES>
static srnn_status start_nodes(const sr_chunk_call &call, sr_bf16 *tiles, cudaStream_t stream) {
    const tree_shape shape = tree_shape_of(call);
    int bits = 0;
    while (1 << bits < shape.windows)
        bits++;
    const int64_t blocks = ((int64_t)call.B * call.Hkv * shape.parts * shape.slices) << bits;
    SR_CUDA(sr_launch(tree_nodes<QUERIES>, dim3((unsigned)blocks), dim3(NODES_THREADS),
                      sizeof(nodes_memory), stream, call, shape, bits, tiles));
    return SRNN_OK;
}

srnn_status tree_key_nodes(const sr_chunk_call &call, const tree_arrays &tree,
                           cudaStream_t stream) {
    return start_nodes<false>(call, tree.states, stream);
}

srnn_status tree_query_nodes(const sr_chunk_call &call, const tree_arrays &tree,
                             cudaStream_t stream) {
    return start_nodes<true>(call, tree.later, stream);
}
