/* axes_chunks_backward.cu: linear scores with a decay per head, in chunks, backward.
 *
 * With w_ij = e^(C_i - C_j) <q_i, k_j>, S the state before a chunk and R the gradient of that after
 * it, and G_ij = e^(C_i - C_j) <dN_i, v_j>:
 *     dq_i = before_i S dN_i + sum_j G_ij k_j
 *     dk_j = until_j R v_j + sum_i G_ij q_i
 *     dv_j = until_j R' k_j + sum_i w_ij dN_i
 * The gate between tokens t - 1 and t gets the sum of w_ij dw_ij over i >= t > j: with both outside
 * the chunk across <S, R>; with j before it the sums from t on of what dq_i has from S, times q_i;
 * with i after it those up to t of what dk_j has from R, times k_j; and inside, sums of rows less
 * sums of columns of the same numbers. No sum runs over more than a chunk, so that errors do not
 * add up along the sequence. */
#include "attention/cuda/linear/axes_chunks.h"

template <int F, int V> struct backward_memory {
    static constexpr int sides = axes_chunk_shape<F, V>::sides;
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK * V];
    sr_bf16 gradients[SR_CHUNK * V];                                      /* of numerators */
    sr_bf16 state[V * F];                                                 /* R, then S */
    sr_bf16 weights[SR_CHUNK * SR_CHUNK], d_weights[SR_CHUNK * SR_CHUNK]; /* w, G */
    axes_chunk_tokens tokens;
    /* sums of w dw: over rows; over columns of 16 rows; what comes from S, and from R */
    float rows[sides][SR_CHUNK], columns[SR_CHUNK_ROWS][SR_CHUNK];
    float from_state[sides][SR_CHUNK], from_later[sides][SR_CHUNK];
    float both[axes_chunk_shape<F, V>::warps];
};

/* The products of rows own .. of a tile with C, which has its columns from 8 `begin` on: sum[row]
 * += for the lane's two rows. One warp. */
template <int WIDTH, int PIECES>
SR_DEVICE void add_row_dots(float *sum, const float (&c)[PIECES][4], const sr_bf16 *tile, int own,
                            int begin) {
    float dot[2] = {};
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const sr_bf16 *const at =
                tile + sr_tile<WIDTH>::offset(own + piece_row(e / 2), begin + n);
            dot[e / 2] = fmaf(c[n][e], to_float(at[piece_column(e % 2)]), dot[e / 2]);
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(dot[half]);
        if (threadIdx.x % 4 == 0)
            sum[own + piece_row(half)] += all;
    }
}

/* w and G of rows own .. of a chunk to shared memory, pieces of 16 keys up to their own, every
 * second piece where two warps share them; and their sums of w dw. One warp. */
template <int F, int V>
SR_DEVICE void weigh_pairs(backward_memory<F, V> *shared, int own, int side) {
    constexpr int SIDES = backward_memory<F, V>::sides;
    float of_rows[2] = {};
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {}, d[2][4] = {};
        multiply_by_rows<F>(w, shared->queries, own, shared->keys, at);
        multiply_by_rows<V>(d, shared->gradients, own, shared->values, at);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int column = at + 8 * n + piece_column(e);
                float of_column = 0;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float &weight = w[n][2 * half + e], &d_weight = d[n][2 * half + e];
                    const float decay = shared->tokens.between(own + piece_row(half), column);
                    weight = counted(weight, decay);
                    const float both = decay == 0 ? 0 : weight * d_weight;
                    d_weight = counted(d_weight, decay);
                    of_rows[half] += both;
                    of_column += both;
                }
#pragma unroll
                for (int mask = 4; mask < SR_WARP; mask *= 2)
                    of_column += shuffle_xor(of_column, mask);
                if (threadIdx.x % SR_WARP < 4)
                    shared->columns[own / 16][column] += of_column;
            }
        pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
        pieces_to_tile<SR_CHUNK>(shared->d_weights + own * SR_CHUNK, d, at / 8);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(of_rows[half]);
        if (threadIdx.x % 4 == 0)
            shared->rows[side][own + piece_row(half)] += all;
    }
}

/* C += rows own .. of the pairs up to column own + 15, times those rows of a tile. */
template <int WIDTH, int PIECES>
SR_DEVICE void multiply_rows_of(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                const sr_bf16 *tile, int begin) {
#pragma unroll 1
    for (int at = 0; at <= own; at += 16) {
        uint32_t a[4];
        load_a<SR_CHUNK>(a, pairs, own, at / 16);
        multiply_rows<WIDTH>(c, a, tile, at, begin / 2);
    }
}

/* C += the transposed columns own .. of the pairs from row `own` on, times those rows of a tile. */
template <int WIDTH, int PIECES>
SR_DEVICE void multiply_columns_of(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                   const sr_bf16 *tile, int begin) {
#pragma unroll 1
    for (int at = own; at < SR_CHUNK; at += 16) {
        uint32_t a[4];
        load_a_columns<SR_CHUNK>(a, pairs, at, own / 16);
        multiply_rows<WIDTH>(c, a, tile, at, begin / 2);
    }
}

/* Gradients of the gates of a chunk from its sums, over tokens of one document; a thread owns a
 * token. The gate between t - 1 and t is that of t, or if learned that of t - 1. */
template <int F, int V>
SR_DEVICE void store_gates(const sr_axes_call &call, const backward_memory<F, V> *shared, int head,
                           int t0) {
    constexpr int SIDES = backward_memory<F, V>::sides;
    const int own = (int)threadIdx.x;
    const bool learned = call.a.decay == SRNN_DECAY_LEARNED;
    const int to = t0 + own - (learned ? 1 : 0);
    if (own >= SR_CHUNK || t0 + own >= call.T || call.decays == 0)
        return;
    double sum = 0;
    for (int n = 0; shared->tokens.across != 0 && n < axes_chunk_shape<F, V>::warps; n++)
        sum += (double)shared->both[n] * (double)shared->tokens.across;
    for (int n = shared->tokens.first[own]; n < SR_CHUNK && shared->tokens.first[n] <= own; n++) {
        for (int part = 0; part < SIDES; part++)
            sum += n < own ? (double)shared->from_later[part][n]
                           : (double)shared->from_state[part][n] + (double)shared->rows[part][n];
        for (int part = 0; n >= own && part < SR_CHUNK_ROWS; part++)
            sum -= (double)shared->columns[part][n];
    }
    double *const d_gate = call.scratch.d_gate + (int64_t)head * call.T;
    const bool fresh = call.start(head / call.Hkv, t0 + own) == t0 + own;
    if (to >= 0)
        d_gate[to] = fresh ? 0 : sum;
    if (learned && t0 + own == call.T - 1)
        d_gate[t0 + own] = 0;
}

/* A block owns a head of keys and values and walks its chunks from the last, R in registers. For
 * each: keys and values; what dk and dv have from R, in bf16 in shared memory, where S follows; for
 * each query head its queries and gradients, weights and their gradients, dq, and what dk, dv and R
 * have from them. A warp has 16 rows of a chunk and a side of the columns of dq, dk and dv. */
template <int F, int V>
__global__ void __launch_bounds__(axes_chunk_shape<F, V>::threads)
    backward_chunks(const __grid_constant__ sr_axes_call call, const sr_bf16 *states) {
    using Shape = axes_chunk_shape<F, V>;
    using Memory = backward_memory<F, V>;
    constexpr int PF = F / Shape::sides / 8, PV = V / Shape::sides / 8;
    SR_SHARED(Memory, shared);
    const int head = (int)blockIdx.x, warp = warp_number(), chunks = axes_chunk_count(call.T);
    const int own = 16 * (warp % SR_CHUNK_ROWS), side = warp / SR_CHUNK_ROWS;
    axes_chunk_state<F, V> later; /* R */
    clear_pieces(later.s);
    for (int chunk = chunks - 1; chunk >= 0; chunk--) {
        const int t0 = chunk * SR_CHUNK;
        __syncthreads(); /* no warp reads the previous tiles */
        chunk_load<F, Shape::threads>(shared->keys, chunk_keys(call, head), t0, call.T);
        chunk_load<V, Shape::threads>(shared->values, chunk_values(call, head), t0, call.T);
        shared->tokens.fill(call, head, t0);
        later.publish(shared->state);
        for (int n = (int)threadIdx.x; n < SR_CHUNK; n += Shape::threads) {
            for (int part = 0; part < SR_CHUNK_ROWS; part++)
                shared->columns[part][n] = 0;
            for (int part = 0; part < Shape::sides; part++)
                shared->rows[part][n] = shared->from_state[part][n] = shared->from_later[part][n] =
                    0;
        }
        __syncthreads(); /* tiles and R are ready, and sums zero */
        float d_k[PF][4], d_v[PV][4];
        clear_pieces(d_k);
        clear_pieces(d_v);
        multiply_by_columns<V, F>(d_k, shared->values, own, shared->state, side * PF);
        multiply_by_rows<F>(d_v, shared->keys, own, shared->state, 8 * side * PV);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor = shared->tokens.until[own + piece_row(half)];
            scale_row(d_k, half, factor);
            scale_row(d_v, half, factor);
        }
        add_row_dots<F>(shared->from_later[side], d_k, shared->keys, own, side * PF);
        __syncthreads(); /* no warp reads R */
        const sr_bf16 *const from = states + ((int64_t)head * chunks + chunk) * V * F;
        for (int n = 8 * (int)threadIdx.x; n < V * F; n += 8 * Shape::threads)
            store_vector(shared->state + n, load_vector(from + n));
        for (int g = 0; g < call.group; g++) {
            const int64_t query = (int64_t)head * call.group + g;
            chunk_load<F, Shape::threads>(shared->queries, chunk_queries(call, query), t0, call.T);
            chunk_load<V, Shape::threads>(shared->gradients, chunk_gradients(call, query), t0,
                                          call.T);
            __syncthreads(); /* tiles and S are ready */
            if (g == 0) {
                const float both = warp_sum(later.dot(shared->state));
                if (threadIdx.x % SR_WARP == 0)
                    shared->both[warp] = both;
                later.multiply(shared->tokens.across);
            }
            weigh_pairs(shared, own, side);
            float d_q[PF][4];
            clear_pieces(d_q);
            multiply_by_columns<V, F>(d_q, shared->gradients, own, shared->state, side * PF);
            scale_row(d_q, 0, shared->tokens.before[own + piece_row(0)]);
            scale_row(d_q, 1, shared->tokens.before[own + piece_row(1)]);
            add_row_dots<F>(shared->from_state[side], d_q, shared->queries, own, side * PF);
            __syncthreads(); /* weights are ready */
            multiply_rows_of<F>(d_q, shared->d_weights, own, shared->keys, side * PF);
            store_pieces(call.scratch.d_q + query * call.T * call.F, call.F, d_q, t0 + own,
                         side * PF, call.T);
            multiply_columns_of<F>(d_k, shared->d_weights, own, shared->queries, side * PF);
            multiply_columns_of<V>(d_v, shared->weights, own, shared->gradients, side * PV);
            __syncthreads(); /* no warp reads queries and gradients as they came */
            chunk_clear<F, Shape::threads>(shared->queries, shared->tokens.before);
            chunk_clear<V, Shape::threads>(shared->gradients, shared->tokens.before);
            __syncthreads(); /* tokens that do not count are zero */
            later.add(shared->queries, shared->gradients, shared->tokens.before);
            __syncthreads(); /* no warp reads queries and gradients */
        }
        store_pieces(call.scratch.d_k + (int64_t)head * call.T * call.F, call.F, d_k, t0 + own,
                     side * PF, call.T);
        store_pieces(call.scratch.d_v + (int64_t)head * call.T * call.Dv, call.Dv, d_v, t0 + own,
                     side * PV, call.T);
        store_gates(call, shared, head, t0);
    }
}

template <int F, int V>
static srnn_status start_backward(const sr_axes_call &call, const sr_bf16 *states,
                                  cudaStream_t stream) {
    SR_CUDA(sr_launch(backward_chunks<F, V>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(axes_chunk_shape<F, V>::threads), sizeof(backward_memory<F, V>), stream,
                      call, states));
    return SRNN_OK;
}

srnn_status sr_axes_chunks_backward(const sr_axes_call &call, const sr_bf16 *states,
                                    cudaStream_t stream) {
    return SR_AXES_CHUNKS_START(start_backward, call, states, stream);
}

size_t sr_axes_chunks_shared_bytes(int features, int values) {
    if (features <= 64)
        return values <= 64 ? sizeof(backward_memory<64, 64>) : sizeof(backward_memory<64, 128>);
    return values <= 64 ? sizeof(backward_memory<128, 64>) : sizeof(backward_memory<128, 128>);
}
