/* single.cu: additive writes with a gate per head, in chunks: gradients of heads with queries, keys
 * and up to 64 values of their own, each chunk by itself: gradients.cu has the equations. */
#include "attention/cuda/chunks/head/slice.h"
#include "device/cuda/check.h"

template <int F> struct single_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK_SQUARE];
    sr_bf16 gradients[SR_CHUNK_SQUARE];                           /* of numerators */
    sr_bf16 state[SR_CHUNK * F], later[SR_CHUNK * F];             /* tiles of S, of R */
    sr_bf16 weights[SR_CHUNK_SQUARE], d_weights[SR_CHUNK_SQUARE]; /* w, G */
    gradients_place at;
    sr_chunk_tokens tokens;
    gradients_sums sums;
    float values_dot[SIDES][SR_CHUNK]; /* <v, dv> by halves of a row */
};

/* w and G of the warp's blocks to shared memory, and sums of w dw, where `gates`. */
template <int F> SR_DEVICE void weigh_pairs(single_memory<F> *shared, float scale, bool gates) {
    const int lane = lane_again(), own = shared->at.own(), side = shared->at.side();
    const sr_chunk_tokens &tokens = shared->tokens;
    float of_rows[2] = {};
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {}, d[2][4] = {};
        multiply_by_rows<F, F, F>(w, shared->queries, own, 0, shared->keys, at);
        multiply_by_rows<SR_CHUNK, SR_CHUNK, SR_CHUNK>(d, shared->gradients, own, 0, shared->values,
                                                       at);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int j = at + sum_column(4 * (m / 2) + m % 2, lane);
            float of_column = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &weight = w[m / 2][2 * half + m % 2], &d_weight = d[m / 2][2 * half + m % 2];
                const int i = own + sum_row(2 * half, lane);
                const float decay = j > i ? 0 : scale * tokens.between(i, j);
                weight = j > i ? 0 : weight * decay;
                const float both = j == i ? 0 : weight * d_weight;
                d_weight = j > i ? 0 : d_weight * decay;
                of_rows[half] += both;
                of_column += both;
            }
            if (!gates)
                continue;
#pragma unroll
            for (int mask = 4; mask < SR_WARP; mask *= 2)
                of_column += shuffle_xor(of_column, mask);
            if (lane < 4)
                shared->sums.columns[own / 16][j] += of_column;
        }
        pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
        pieces_to_tile<SR_CHUNK>(shared->d_weights + own * SR_CHUNK, d, at / 8);
    }
    if (!gates)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(of_rows[half]);
        if (lane % 4 == 0)
            shared->sums.rows[side][own + sum_row(2 * half, lane)] += all;
    }
}

/* c = rows times the part's tile of S or R, times the tokens' factors; and the products with rows
 * of `of`, where `dots` is there. Nine parameters: tiles and factors of one product, all in shared
 * memory or registers, of which each call has others. */
template <int F>
SR_DEVICE void read_state(float (&c)[PIECES][4], const gradients_place &at, const sr_bf16 *rows,
                          const sr_bf16 *tile, const float *factor, float also, float *dots,
                          const sr_bf16 *of, int part) {
    const int own = at.own();
    multiply_by_columns<SR_CHUNK, SR_CHUNK>(c, rows, own, 0, tile + part * SR_CHUNK_SQUARE,
                                            PIECES * at.side());
    scale_pieces(c, factor + own, also);
    if (dots)
        add_row_dots<F>(dots, c, of, own, at.column(part));
}

/* dq and dk, stored 64 columns at a time. */
template <int F> SR_DEVICE void row_gradients(const sr_chunk_call &call, single_memory<F> *shared) {
    const gradients_place &at = shared->at;
    const int own = at.own(), side = at.side(), lane = lane_again();
    gradients_sums &sums = shared->sums;
    const bool gates = call.decays > 0;
#pragma unroll 1
    for (int part = 0; part < F / SR_CHUNK; part++) {
        float c[PIECES][4];
        clear_pieces(c);
        if (at.reads_state)
            read_state<F>(c, at, shared->gradients, shared->state, shared->tokens.before,
                          call.scale, gates ? sums.from_state[side] : nullptr, shared->queries,
                          part);
#pragma unroll 1
        for (int k = 0; k <= own; k += 16) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, shared->d_weights, own, k / 16, lane);
            multiply_rows<F>(c, a, shared->keys, k, at.column(part) / 16, lane);
        }
        if (call.d_q.data)
            store_columns(call.d_q, at, at.head, c, at.column(part), call.F);
        clear_pieces(c);
        if (at.reads_later)
            read_state<F>(c, at, shared->values, shared->later, shared->tokens.until, 1,
                          gates ? sums.from_later[side] : nullptr, shared->keys, part);
#pragma unroll 1
        for (int row = own; row < SR_CHUNK; row += 16) {
            uint32_t a[4];
            load_a_columns<SR_CHUNK>(a, shared->d_weights, row, own / 16, lane);
            multiply_rows<F>(c, a, shared->queries, row, at.column(part) / 16, lane);
        }
        if (call.d_k.data)
            store_columns(call.d_k, at, at.head, c, at.column(part), call.F);
    }
    if (!gates || !at.reads_state || !at.reads_later)
        return;
    const float both = warp_sum(tile_dot<SR_CHUNK * F>(shared->state, shared->later));
    if (threadIdx.x % SR_WARP == 0)
        sums.both[threadIdx.x / SR_WARP] = both;
}

/* One span: see head_single_chunk. */
template <int F>
SR_DEVICE void span_gradients(const sr_chunk_call &call, single_memory<F> *shared,
                              const head_states &before, const head_states &later) {
    const gradients_place &at = shared->at;
    const int h = at.head;
    chunk_load<F, THREADS>(shared->queries, chunk_rows(call.q, at.b, call.query_head(h), call.F),
                           at.span);
    chunk_load<F, THREADS>(shared->keys, chunk_rows(call.k, at.b, call.key_head(h), call.F),
                           at.span);
    load_head<F>(call, shared, h, before, later);
    if (threadIdx.x < SR_WARP) {
        sr_chunk_gates gates;
        head_open_gates(gates, call, at.b, h, at.span);
        head_publish_gates(gates, shared->tokens, call, at.b, h, at.span);
    }
    shared->sums.clear();
    if (threadIdx.x < SR_CHUNK)
        shared->values_dot[0][threadIdx.x] = shared->values_dot[1][threadIdx.x] = 0;
    cp_async_wait<0>();
    __syncthreads(); /* tiles, gates and zeroes are ready */
    weigh_pairs(shared, call.scale, call.decays > 0);
    __syncthreads(); /* weights are ready */
    value_gradients<F>(call, shared, h);
    row_gradients(call, shared);
    if (call.decays == 0 && !call.value_dot)
        return;
    __syncthreads(); /* sums are complete */
    store_sums(call, shared, h);
}

/* A block owns a chunk of a head, and visits its spans, the last first: one, unless documents
 * begin inside. cp.async copies the rows of q, k, v and dN and the tiles of S and R, global ->
 * shared, all at once; barrier; weights w and their gradients G in bf16 to shared memory; barrier;
 * dv, dq and dk, each in registers and stored; barrier; sums for gates, stored. A warp has 16 rows
 * and half the columns; other blocks of the multiprocessor compute while tiles are copied. */
template <int F>
__global__ void __launch_bounds__(THREADS, F == 64 ? 3 : 2)
    head_single_chunk(const __grid_constant__ sr_chunk_call call,
                      const __grid_constant__ head_states before,
                      const __grid_constant__ head_states later) {
    using Memory = single_memory<F>;
    SR_SHARED(Memory, shared);
    const int chunks = chunk_count(call.T), row = (int)blockIdx.x / chunks;
    const int t0 = ((int)blockIdx.x - row * chunks) * SR_CHUNK, end = min(t0 + SR_CHUNK, call.T);
    for (int past = end; past > t0; past = shared->at.span.from) {
        __syncthreads(); /* no warp reads the previous span */
        if (threadIdx.x == 0) {
            shared->at.b = row / call.Hkv;
            shared->at.head = row % call.Hkv;
            place_span(shared->at, call, past, end);
        }
        __syncthreads(); /* the span is known */
        span_gradients<F>(call, shared, before, later);
    }
}

template <int F>
static srnn_status start(const sr_chunk_call &call, const head_states &before,
                         const head_states &later, cudaStream_t stream) {
    SR_CUDA(sr_launch(head_single_chunk<F>,
                      dim3((unsigned)(call.B * call.Hkv * chunk_count(call.T))), dim3(THREADS),
                      sizeof(single_memory<F>), stream, call, before, later));
    return SRNN_OK;
}

srnn_status head_single_gradients(const sr_chunk_call &call, const head_states &before,
                                  const head_states &later, cudaStream_t stream) {
    return head_width(call.F) == 64 ? start<64>(call, before, later, stream)
                                    : start<128>(call, before, later, stream);
}

size_t head_single_bytes(int F) {
    return head_width(F) == 64 ? sizeof(single_memory<64>) : sizeof(single_memory<128>);
}
