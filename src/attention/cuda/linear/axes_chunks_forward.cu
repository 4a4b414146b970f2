/* axes_chunks_forward.cu: linear scores with a decay per head, in chunks: numerators and row sums;
 * and the states before chunks, for the backward pass. */
#include "attention/cuda/linear/axes_chunks.h"

template <int F, int V> struct forward_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK * V];
    sr_bf16 state[V * F];
    axes_chunk_tokens tokens;
};

/* The chunk's keys and values join the state; by all threads, between barriers. */
template <int F, int V>
SR_DEVICE void join_state(axes_chunk_state<F, V> &state, forward_memory<F, V> *shared) {
    constexpr int THREADS = axes_chunk_shape<F, V>::threads;
    chunk_clear<F, THREADS>(shared->keys, shared->tokens.until);
    chunk_clear<V, THREADS>(shared->values, shared->tokens.until);
    __syncthreads(); /* tokens that do not count are zero */
    state.multiply(shared->tokens.across);
    state.add(shared->keys, shared->values, shared->tokens.until);
}

/* Numerators of columns 8 `begin` .. and row sums, of rows t .. of a query head. */
template <int PIECES>
SR_DEVICE void store_numerators(const sr_axes_call &call, int64_t query,
                                const float (&c)[PIECES][4], int t, int begin) {
    store_pieces(call.scratch.numerator + query * call.T * call.Dv, call.Dv, c, t, begin, call.T);
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = t + piece_row(e / 2), column = 8 * (begin + n) + piece_column(e % 2);
            if (call.sums_rows && i < call.T && column == call.Dv)
                call.scratch.row_sum[query * call.T + i] = c[n][e];
        }
}

/* A block owns a head of keys and values and walks its chunks in order, the state in registers. For
 * each chunk: keys, values and the state before it in shared memory as bf16; for each query head a
 * tile of queries, of which a warp has 16 rows and a side of the values' columns: rows = Q S times
 * their decay, plus (Q K') V piece by piece, the weights decayed and masked in registers; then the
 * state takes in the chunk. */
template <int F, int V>
__global__ void __launch_bounds__(axes_chunk_shape<F, V>::threads)
    forward_chunks(const __grid_constant__ sr_axes_call call) {
    using Shape = axes_chunk_shape<F, V>;
    using Memory = forward_memory<F, V>;
    constexpr int P = V / Shape::sides / 8;
    SR_SHARED(Memory, shared);
    const int head = (int)blockIdx.x, warp = warp_number();
    const int own = 16 * (warp % SR_CHUNK_ROWS), begin = warp / SR_CHUNK_ROWS * P;
    axes_chunk_state<F, V> state;
    clear_pieces(state.s);
    for (int t0 = 0; t0 < call.T; t0 += SR_CHUNK) {
        __syncthreads(); /* no warp reads the previous tiles */
        chunk_load<F, Shape::threads>(shared->keys, chunk_keys(call, head), t0, call.T);
        chunk_load<V, Shape::threads>(shared->values, chunk_values(call, head), t0, call.T);
        shared->tokens.fill(call, head, t0);
        state.publish(shared->state);
        for (int g = 0; g < call.group; g++) {
            const int64_t query = (int64_t)head * call.group + g;
            if (g > 0)
                __syncthreads(); /* no warp reads the queries before */
            chunk_load<F, Shape::threads>(shared->queries, chunk_queries(call, query), t0, call.T);
            __syncthreads(); /* all tiles are ready */
            float c[P][4];
            clear_pieces(c);
            multiply_by_rows<F>(c, shared->queries, own, shared->state, 8 * begin);
            scale_row(c, 0, shared->tokens.before[own + piece_row(0)]);
            scale_row(c, 1, shared->tokens.before[own + piece_row(1)]);
#pragma unroll 1
            for (int at = 0; at <= own; at += 16) {
                float w[SR_PIECE];
                uint32_t a[4];
                multiply_pairs<F>(w, shared->queries, own, shared->keys, at);
#pragma unroll
                for (int e = 0; e < SR_PIECE; e++)
                    w[e] = counted(w[e], shared->tokens.between(own + piece_row(e / 2 % 2),
                                                                at + piece_column(e)));
                pack_piece(a, w);
                multiply_rows<V>(c, a, shared->values, at, begin / 2);
            }
            store_numerators(call, query, c, t0 + own, begin);
        }
        if (t0 + SR_CHUNK >= call.T)
            break;
        __syncthreads(); /* no warp reads keys and values as they came */
        join_state(state, shared);
    }
}

/* The same walk for the states before chunks alone. */
template <int F, int V>
__global__ void __launch_bounds__(axes_chunk_shape<F, V>::threads)
    chunk_states(const __grid_constant__ sr_axes_call call, sr_bf16 *states) {
    using Shape = axes_chunk_shape<F, V>;
    using Memory = forward_memory<F, V>;
    SR_SHARED(Memory, shared);
    const int head = (int)blockIdx.x, chunks = axes_chunk_count(call.T);
    axes_chunk_state<F, V> state;
    clear_pieces(state.s);
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int t0 = chunk * SR_CHUNK;
        __syncthreads(); /* no warp reads the previous tiles */
        chunk_load<F, Shape::threads>(shared->keys, chunk_keys(call, head), t0, call.T);
        chunk_load<V, Shape::threads>(shared->values, chunk_values(call, head), t0, call.T);
        shared->tokens.fill(call, head, t0);
        state.publish(shared->state);
        __syncthreads(); /* tiles and state are ready */
        sr_bf16 *const to = states + ((int64_t)head * chunks + chunk) * V * F;
        for (int n = 8 * (int)threadIdx.x; n < V * F; n += 8 * Shape::threads)
            store_vector(to + n, load_vector(shared->state + n));
        join_state(state, shared);
    }
}

template <int F, int V>
static srnn_status start_forward(const sr_axes_call &call, cudaStream_t stream) {
    SR_CUDA(sr_launch(forward_chunks<F, V>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(axes_chunk_shape<F, V>::threads), sizeof(forward_memory<F, V>), stream,
                      call));
    return SRNN_OK;
}

template <int F, int V>
static srnn_status start_states(const sr_axes_call &call, sr_bf16 *states, cudaStream_t stream) {
    SR_CUDA(sr_launch(chunk_states<F, V>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(axes_chunk_shape<F, V>::threads), sizeof(forward_memory<F, V>), stream,
                      call, states));
    return SRNN_OK;
}

srnn_status sr_axes_chunks_forward(const sr_axes_call &call, cudaStream_t stream) {
    const size_t rows = (size_t)call.B * (size_t)call.H * (size_t)call.T;
    SR_CUDA(cudaMemsetAsync(call.scratch.row_sum, 0, rows * sizeof(float), stream));
    SR_CUDA(cudaMemsetAsync(call.scratch.maximum, 0, rows * sizeof(float), stream));
    return SR_AXES_CHUNKS_START(start_forward, call, stream);
}

srnn_status sr_axes_chunks_states(const sr_axes_call &call, sr_bf16 *states, cudaStream_t stream) {
    return SR_AXES_CHUNKS_START(start_states, call, states, stream);
}
