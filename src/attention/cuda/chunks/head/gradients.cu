/* gradients.cu: additive writes with a gate per head, in chunks: gradients, each chunk by
 * itself.
 *
 * With D_ij = scale e^(C_i - C_j), w_ij = D_ij <q_i, k_j>, G_ij = D_ij (<dN_i, v_j> + d_row_sum_i),
 * S the state before a chunk and R the gradient of that after it (scale included):
 *     dq_i = scale before_i S dN_i + sum_j G_ij k_j
 *     dk_j = until_j R v_j + sum_i G_ij q_i
 *     dv_j = until_j R' k_j + sum_i w_ij dN_i
 * where S dN_i also has the state's sum times d_row_sum_i, and R v_j the gradient of that sum. The
 * gate between tokens t - 1 and t gets the sum of w_ij dw_ij over i >= t > j: with both outside the
 * chunk across <S, R>; with j before it the sums from t on of what dq_i has from S, times q_i; with
 * i after it those before t of what dk_j has from R, times k_j; and inside, sums of rows less sums
 * of columns, without i = j. No sum runs over more than a chunk, so that errors do not add up along
 * the sequence. */
#include "attention/cuda/chunks/head/gradients.h"
#include "device/cuda/check.h"

template <int F, int V> struct gradients_shape {
    static constexpr int parts = F / SR_CHUNK, slices = V / SR_CHUNK;
    /* blocks for which registers are allotted */
    static constexpr int blocks = F + V <= 256 ? 2 : 1;
};

template <int F, int V> struct gradients_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK * V];
    sr_bf16 gradients[SR_CHUNK * V];                              /* of numerators */
    sr_bf16 ring[2][SR_CHUNK_SQUARE];                             /* tiles of R, then of S */
    sr_bf16 weights[SR_CHUNK_SQUARE], d_weights[SR_CHUNK_SQUARE]; /* w, G */
    gradients_place at;
    sr_chunk_tokens tokens;
    float d_row_sums[SR_CHUNK];
    float ones[1][F], later_ones[1][F]; /* sums of features in S, in R */
    gradients_sums sums;
};

/* The tiles of R of a chunk, then once for each query head those of S, through the ring. */
template <int F, int V> struct tile_stream {
    const sr_chunk_call &call;
    const head_states &before, &later;
    gradients_memory<F, V> *shared;
    int n; /* the next */

    SR_DEVICE int count() const {
        return head_slices(call.F) * head_slices(call.V);
    }
    /* Tile `which` of those of the chunk in global memory. */
    SR_DEVICE const sr_bf16 *place(const head_states &states, int which) const {
        return states.tiles +
               (shared->at.number(call, shared->at.head) * count() + which) * SR_CHUNK_SQUARE;
    }

    SR_DEVICE void start(int which) const {
        const int of_later = shared->at.reads_later ? count() : 0;
        const int of_before = shared->at.reads_state ? count() * call.group : 0;
        if (which >= of_later + of_before)
            return;
        const sr_bf16 *const from =
            which < of_later ? place(later, which) : place(before, (which - of_later) % count());
        sr_bf16 *const to = shared->ring[which % 2];
        const int own = 8 * thread_again();
#pragma unroll
        for (int n16 = 0; n16 < SR_CHUNK_SQUARE; n16 += 8 * THREADS)
            cp_async_16(to + n16 + own, from + n16 + own);
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

/* C += factor[row] x, columns of x from `column` on. */
SR_DEVICE void add_outer(float (&c)[PIECES][4], const float (&factor)[2], const float *x,
                         int column) {
    const int lane = lane_again();
#pragma unroll
    for (int e = 0; e < 4 * PIECES; e++)
        c[e / 4][e % 4] = fmaf(factor[e % 4 / 2], x[column + sum_column(e, lane)], c[e / 4][e % 4]);
}

/* w and G of rows own .. of a chunk to shared memory, pieces of 16 keys up to their own, every
 * second piece for each of the two warps that share them; and their sums of w dw, where `gates`. */
template <int F, int V>
SR_DEVICE void weigh_pairs(gradients_memory<F, V> *shared, float scale, bool gates) {
    const int lane = lane_again(), own = shared->at.own(), side = shared->at.side();
    float of_rows[2] = {};
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {}, d[2][4] = {};
        multiply_by_rows<F, F, F>(w, shared->queries, own, 0, shared->keys, at);
        multiply_by_rows<V, V, V>(d, shared->gradients, own, 0, shared->values, at);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int j = at + sum_column(4 * (m / 2) + m % 2, lane);
            float of_column = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &weight = w[m / 2][2 * half + m % 2], &d_weight = d[m / 2][2 * half + m % 2];
                const int i = own + sum_row(2 * half, lane);
                const float decay = j > i ? 0 : scale * (gates ? shared->tokens.between(i, j) : 1);
                d_weight += shared->d_row_sums[i];
                weight = j > i ? 0 : weight * decay;
                const float both = j == i ? 0 : weight * d_weight;
                d_weight *= decay;
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
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(of_rows[half]);
        if (gates && lane % 4 == 0)
            shared->sums.rows[side][own + sum_row(2 * half, lane)] += all;
    }
}

/* What dk and dv have from R. */
template <int F, int V>
SR_DEVICE void read_later(float (&d_k)[F / SR_CHUNK][PIECES][4],
                          float (&d_v)[V / SR_CHUNK][PIECES][4], const sr_chunk_call &call,
                          gradients_memory<F, V> *shared, tile_stream<F, V> &tiles) {
    using Shape = gradients_shape<F, V>;
    const gradients_place &at = shared->at;
    const int own = at.own(), side = at.side();
#pragma unroll
    for (int part = 0; part < Shape::parts; part++) {
#pragma unroll
        for (int slice = 0; slice < Shape::slices; slice++) {
            if (SR_CHUNK * part >= call.F || SR_CHUNK * slice >= call.V)
                continue;
            const sr_bf16 *const later = tiles.take();
            multiply_by_columns<V, SR_CHUNK>(d_k[part], shared->values, own,
                                             SR_CHUNK_STRIPS * slice, later, PIECES * side);
            multiply_by_rows<F, SR_CHUNK, SR_CHUNK>(d_v[slice], shared->keys, own,
                                                    SR_CHUNK_STRIPS * part, later,
                                                    8 * PIECES * at.side());
        }
        if (call.sums_rows)
            add_outer(d_k[part], {1, 1}, shared->later_ones[0], at.column(part));
        if (call.decays == 0)
            continue;
        scale_pieces(d_k[part], shared->tokens.until + own);
        add_row_dots<F>(shared->sums.from_later[at.side()], d_k[part], shared->keys, own,
                        at.column(part));
    }
    if (call.decays > 0)
#pragma unroll
        for (int slice = 0; slice < Shape::slices; slice++)
            scale_pieces(d_v[slice], shared->tokens.until + own);
}

/* dq of query head h, from S and from the chunk's own keys. `both` += the thread's share of
 * <S, R>, where that is wanted and R is there. */
template <int F, int V>
SR_DEVICE void query_gradients(float &both, const sr_chunk_call &call,
                               gradients_memory<F, V> *shared, tile_stream<F, V> &tiles, int h,
                               bool wants_both) {
    using Shape = gradients_shape<F, V>;
    const gradients_place &at = shared->at;
    const int own = at.own();
#pragma unroll 1
    for (int part = 0; part < Shape::parts && SR_CHUNK * part < call.F; part++) {
        float c[PIECES][4];
        clear_pieces(c);
        if (at.reads_state) {
#pragma unroll 1
            for (int slice = 0; slice < Shape::slices && SR_CHUNK * slice < call.V; slice++) {
                const sr_bf16 *const state = tiles.take();
                multiply_by_columns<V, SR_CHUNK>(c, shared->gradients, own, SR_CHUNK_STRIPS * slice,
                                                 state, PIECES * at.side());
                if (wants_both && call.decays > 0 && at.reads_later)
                    both += tile_dot<SR_CHUNK_SQUARE>(
                        state, tiles.place(tiles.later, part * head_slices(call.V) + slice));
            }
            if (call.sums_rows)
                add_outer(c,
                          {shared->d_row_sums[own + sum_row(0)],
                           shared->d_row_sums[own + sum_row(2)]},
                          shared->ones[0], at.column(part));
            scale_pieces(c, shared->tokens.before + own, call.scale);
            if (call.decays > 0)
                add_row_dots<F>(shared->sums.from_state[at.side()], c, shared->queries, own,
                                at.column(part));
        }
        const int lane = lane_again();
#pragma unroll 1
        for (int k = 0; k <= own; k += 16) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, shared->d_weights, own, k / 16, lane);
            multiply_rows<F>(c, a, shared->keys, k, at.column(part) / 16, lane);
        }
        if (call.d_q.data)
            store_columns(call.d_q, at, h, c, at.column(part), call.F);
    }
}

/* What dk and dv have from the chunk's own queries. */
template <int F, int V>
SR_DEVICE void visit_queries(float (&d_k)[F / SR_CHUNK][PIECES][4],
                             float (&d_v)[V / SR_CHUNK][PIECES][4],
                             const gradients_memory<F, V> *shared) {
    const gradients_place &at = shared->at;
    const int lane = lane_again(), own = at.own();
#pragma unroll 1
    for (int row = own; row < SR_CHUNK; row += 16) {
        uint32_t a[4];
        load_a_columns<SR_CHUNK>(a, shared->d_weights, row, own / 16, lane);
#pragma unroll
        for (int part = 0; part < F / SR_CHUNK; part++)
            multiply_rows<F>(d_k[part], a, shared->queries, row, at.column(part) / 16, lane);
        load_a_columns<SR_CHUNK>(a, shared->weights, row, own / 16, lane);
#pragma unroll
        for (int slice = 0; slice < V / SR_CHUNK; slice++)
            multiply_rows<V>(d_v[slice], a, shared->gradients, row, at.column(slice) / 16, lane);
    }
}

/* Copies the sums of features of a state to shared memory, or zeroes them. */
template <int F>
SR_DEVICE void load_ones(float (&to)[1][F], const head_states &states, int64_t place, int F_exist,
                         bool exists) {
    const int count = SR_CHUNK * head_slices(F_exist);
    for (int f = (int)threadIdx.x; f < F; f += THREADS) {
        float sum = 0;
        if (exists && f < count)
            for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
                sum += states.ones[(place * SR_CHUNK_STRIPS + strip) * count + f];
        to[0][f] = sum;
    }
}

template <int F, int V>
SR_DEVICE void load_queries(const sr_chunk_call &call, gradients_memory<F, V> *shared, int h) {
    const gradients_place &at = shared->at;
    chunk_load<F, THREADS>(shared->queries, chunk_rows(call.q, at.b, call.query_head(h), call.F),
                           at.span);
    chunk_load<V, THREADS>(shared->gradients, chunk_rows(call.d_numerator, at.b, h, call.V),
                           at.span);
    if ((int)threadIdx.x / SR_WARP == 1) {
        sr_chunk_pair d_row_sums;
        d_row_sums.load(call.sums_rows ? call.d_row_sum + call.row(call.H, at.b, h, 0) : nullptr,
                        at.span);
        d_row_sums.store(shared->d_row_sums);
    }
}

/* What the products of a span read, on their way to shared memory. */
template <int F, int V>
SR_DEVICE void load_span(const sr_chunk_call &call, gradients_memory<F, V> *shared,
                         const tile_stream<F, V> &tiles) {
    const gradients_place &at = shared->at;
    chunk_load<F, THREADS>(shared->keys, chunk_rows(call.k, at.b, call.key_head(at.head), call.F),
                           at.span);
    chunk_load<V, THREADS>(shared->values, chunk_rows(call.v, at.b, at.head, call.V), at.span);
    load_queries(call, shared, at.head * call.group);
    cp_async_commit();
    tiles.start(0);
    if (threadIdx.x < SR_WARP) {
        sr_chunk_gates gates;
        gates.open(call.decays ? call.gate + call.row(call.Hkv, at.b, at.head, 0) : nullptr,
                   at.span);
        gates.publish(shared->tokens);
    }
    if (call.sums_rows) {
        load_ones<F>(shared->ones, tiles.before, at.number(call, at.head), call.F, at.reads_state);
        load_ones<F>(shared->later_ones, tiles.later, at.number(call, at.head), call.F,
                     at.reads_later);
    }
    shared->sums.clear();
}

/* One span: see head_gradients_chunk. */
template <int F, int V>
SR_DEVICE void span_gradients(const sr_chunk_call &call, gradients_memory<F, V> *shared,
                              const head_states &before, const head_states &later) {
    using Shape = gradients_shape<F, V>;
    const gradients_place &at = shared->at;
    tile_stream<F, V> tiles = {call, before, later, shared, 0};
    load_span(call, shared, tiles);
    float d_k[Shape::parts][PIECES][4], d_v[Shape::slices][PIECES][4], both = 0;
#pragma unroll
    for (int part = 0; part < Shape::parts; part++)
        clear_pieces(d_k[part]);
#pragma unroll
    for (int slice = 0; slice < Shape::slices; slice++)
        clear_pieces(d_v[slice]);
    cp_async_wait<0>();
    __syncthreads(); /* tiles, gates and zeroes are ready */
    if (at.reads_later)
        read_later<F, V>(d_k, d_v, call, shared, tiles);
    for (int g = 0; g < call.group; g++) {
        if (g > 0) {
            __syncthreads(); /* no warp reads the queries before and their weights */
            load_queries(call, shared, at.head * call.group + g);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads(); /* queries are ready */
        }
        weigh_pairs(shared, call.scale, call.decays > 0);
        __syncthreads(); /* weights are ready */
        query_gradients<F, V>(both, call, shared, tiles, at.head * call.group + g, g == 0);
        visit_queries<F, V>(d_k, d_v, shared);
    }
#pragma unroll
    for (int part = 0; part < Shape::parts; part++)
        if (call.d_k.data)
            store_columns(call.d_k, at, at.head, d_k[part], at.column(part), call.F);
#pragma unroll
    for (int slice = 0; slice < Shape::slices; slice++)
        if (call.d_v.data)
            store_columns(call.d_v, at, at.head, d_v[slice], at.column(slice), call.V);
    if (call.decays == 0 || !call.d_gate)
        return;
    if (at.reads_state && at.reads_later && call.sums_rows)
        for (int f = (int)threadIdx.x; f < F; f += THREADS)
            both = fmaf(shared->ones[0][f], shared->later_ones[0][f], both);
    both = warp_sum(both);
    if (threadIdx.x % SR_WARP == 0)
        shared->sums.both[threadIdx.x / SR_WARP] = both;
    __syncthreads(); /* sums are ready */
    if (threadIdx.x < SR_WARP)
        store_gates(call, shared->sums, at, at.head, shared->tokens.across);
}

/* A block owns a chunk of a head of keys and values, and visits its spans, the last first: one,
 * unless documents begin inside. cp.async copies the rows of q, k, v and dN, and the tiles of R and
 * S, global -> shared, tile after tile through a ring of two. What dk and dv have from R; for each
 * query head the weights w and their gradients G in bf16 in shared memory, barrier, dq from S and
 * G, stored, and what dk and dv have from G and w; then dk and dv, and gradients of gates from sums
 * in shared memory. A warp has 16 rows and half the columns of dq, dk and dv, in registers. */
template <int F, int V>
__global__ void __launch_bounds__(THREADS, gradients_shape<F, V>::blocks)
    head_gradients_chunk(const __grid_constant__ sr_chunk_call call,
                         const __grid_constant__ head_states before,
                         const __grid_constant__ head_states later) {
    using Memory = gradients_memory<F, V>;
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
        span_gradients<F, V>(call, shared, before, later);
    }
}

template <int F, int V>
static srnn_status start(const sr_chunk_call &call, const head_states &before,
                         const head_states &later, cudaStream_t stream) {
    SR_CUDA(sr_launch(head_gradients_chunk<F, V>,
                      dim3((unsigned)(call.B * call.Hkv * chunk_count(call.T))), dim3(THREADS),
                      sizeof(gradients_memory<F, V>), stream, call, before, later));
    return SRNN_OK;
}

template <int F>
static srnn_status start_values(const sr_chunk_call &call, const head_states &before,
                                const head_states &later, cudaStream_t stream) {
    switch (head_width(call.V)) {
    case 64:
        return start<F, 64>(call, before, later, stream);
    case 128:
        return start<F, 128>(call, before, later, stream);
    }
    return start<F, 256>(call, before, later, stream);
}

srnn_status head_gradients(const sr_chunk_call &call, const head_states &before,
                           const head_states &later, cudaStream_t stream) {
    switch (head_width(call.F)) {
    case 64:
        return start_values<64>(call, before, later, stream);
    case 128:
        return start_values<128>(call, before, later, stream);
    }
    return start_values<256>(call, before, later, stream);
}

template <int F> static size_t bytes_of(int V) {
    const int width = head_width(V);
    return width == 64    ? sizeof(gradients_memory<F, 64>)
           : width == 128 ? sizeof(gradients_memory<F, 128>)
                          : sizeof(gradients_memory<F, 256>);
}

size_t head_gradients_bytes(int F, int V) {
    const int width = head_width(F);
    return width == 64 ? bytes_of<64>(V) : width == 128 ? bytes_of<128>(V) : bytes_of<256>(V);
}
