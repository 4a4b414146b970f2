/* outputs.cu: the delta rule in chunks, backward: the gradients of queries, keys, gates
 * and betas, every chunk for itself. With S the state before a span, R the gradient of that
 * after it, dN the gradient of numerators, and of pairs of its tokens
 *
 *     G_ij = scale e^(c_i - c_j) <dN_i, U_j>, j <= i;    H_ij = -e^(c_i - c_j) <dV_i, U_j>, j < i
 *     dQ = scale diag(e^c) dN S' + G K
 *     dK = -diag(e^c) dV S' + H K + H' K + sum G' Q + diag(e^(c_last - c)) U R'
 *     dbeta_i = <dV_i, U_i> / beta_i^2
 *
 * Of features of unit length these are gradients of the features times the rows' factors; the rows'
 * are without what that has along them.
 *
 * The gate between tokens t - 1 and t gets what the pairs with i >= t > j have: the products of
 * rows i >= t with their gradients where they are read at c_i, less those of rows j >= t where
 * they are read at -c_j, which cancel where both are after t; and of rows j < t what they have
 * from R; and e^c_last <S, R>. */
#include "attention/cuda/chunks/delta/walk.h"

template <int F, int V> struct outputs_shape {
    static constexpr int warps = 8, threads = warps * SR_WARP;
    static constexpr int sides = warps / SR_DELTA_STEPS; /* of the columns of results */
    static constexpr int pieces = F / sides / 8;         /* of a warp's results */
    static constexpr int blocks = F == 64 ? V == 64 ? 3 : 2 : 1;
};

/* Where a block is; this and the span are in shared memory, since registers are scarce. */
struct outputs_place {
    int b, head, chunk;

    /* The warp, its 16 rows and its side of the columns; read anew as lanes are. */
    SR_DEVICE int warp() const {
        return delta_thread() / SR_WARP;
    }
    SR_DEVICE int own() const {
        return 16 * (warp() % SR_DELTA_STEPS);
    }
    SR_DEVICE int side() const {
        return warp() / SR_DELTA_STEPS;
    }
};

/* What a span has besides rows; false: zero. */
struct outputs_span {
    delta_span span;
    bool state, later;
};

template <int F, int V> struct outputs_memory {
    alignas(128) sr_bf16 keys[SR_DELTA_CHUNK * F];
    sr_bf16 queries[SR_DELTA_CHUNK * F];
    sr_bf16 d_numerators[SR_DELTA_CHUNK * V], used[SR_DELTA_CHUNK * V],
        d_values[SR_DELTA_CHUNK * V];
    sr_bf16 state[V * F], later[V * F];                          /* S', R' */
    sr_bf16 of_queries[SR_DELTA_PAIRS], of_keys[SR_DELTA_PAIRS]; /* G, H */
    delta_factors factors;
    delta_query_factors of_query;
    float gate[SR_DELTA_CHUNK];
    /* of rows with their gradients, by the sides of columns: queries, then keys */
    float along[2][outputs_shape<F, V>::sides][SR_DELTA_CHUNK];
    /* what a token's row has at c, and from R; <S, R>; by the sides of columns, by warps */
    float at_sum[outputs_shape<F, V>::sides][SR_DELTA_CHUNK];
    float from_later[outputs_shape<F, V>::sides][SR_DELTA_CHUNK];
    float both[outputs_shape<F, V>::warps];
    outputs_place at;
    outputs_span what;
};

/* ---- a warp's parts ---- */

/* Blocks of G or H in the warp's rows, the other side has the rest: the products of a tile's rows
 * with those of U, decayed, times `factor` and the rows' own. take(block, j) sees them before they
 * are decayed. Parameters, not a struct: they stay in registers. */
template <int F, int V, class Take>
SR_DEVICE void pair_blocks(sr_bf16 *pairs, const sr_bf16 *rows, const outputs_memory<F, V> &shared,
                           const outputs_place &at, const float *units, float factor, bool below,
                           const Take &take) {
    constexpr int SIDES = outputs_shape<F, V>::sides;
    const int lane = delta_lane(), i = at.own() / 16;
#pragma unroll 1
    for (int j = at.side(); j <= i; j += SIDES) {
        float w[2][4] = {};
#pragma unroll 2
        for (int k = 0; k < V / 16; k++) {
            uint32_t a[4], b[4];
            a_rows<V>(a, rows, at.own(), k, lane);
            b_rows<V>(b, shared.used, 16 * j, k, lane);
            mma_m16n8k16(w[0], a, b);
            mma_m16n8k16(w[1], a, b + 2);
        }
        take(w, j);
        delta_decay(
            w, i, j, shared.factors.pairs.sum, shared.factors.pairs.key,
            [=](int row) { return factor * units[row]; }, lane);
        if (below && i == j)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (8 * n + delta_column(e % 2, lane) == delta_row(e / 2, lane))
                        w[n][e] = 0;
        delta_store_block(pairs + delta_pairs_at(i, j), w, lane);
    }
}

/* c = factor (row) times the warp's rows of a tile times a state. */
template <int F, int V, int PIECES>
SR_DEVICE void times_state(float (&c)[PIECES][4], const sr_bf16 *rows, const sr_bf16 *state,
                           const float *factor, float all, const outputs_place &at) {
    const int lane = delta_lane();
    delta_clear(c);
#pragma unroll 2
    for (int k = 0; k < V / 16; k++) {
        uint32_t a[4];
        a_rows<V>(a, rows, at.own(), k, lane);
        add_product<F>(c, a, state, 16 * k, at.side() * PIECES / 2, lane);
    }
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] *= all * factor[at.own() + delta_row(e / 2, lane)];
}

/* c += the warp's rows of pairs times a tile's rows. */
template <int F, int PIECES>
SR_DEVICE void add_pair_rows(float (&c)[PIECES][4], const sr_bf16 *pairs, const sr_bf16 *tile,
                             const outputs_place &at) {
    const int lane = delta_lane(), i = at.own() / 16;
#pragma unroll 1
    for (int j = 0; j <= i; j++) {
        uint32_t a[4];
        a_rows<16>(a, pairs + delta_pairs_at(i, j), 0, 0, lane);
        add_product<F>(c, a, tile, 16 * j, at.side() * PIECES / 2, lane);
    }
}

/* The same with the warp's columns of pairs. */
template <int F, int PIECES>
SR_DEVICE void add_pair_columns(float (&c)[PIECES][4], const sr_bf16 *pairs, const sr_bf16 *tile,
                                const outputs_place &at) {
    const int lane = delta_lane(), j = at.own() / 16;
#pragma unroll 1
    for (int i = j; i < SR_DELTA_STEPS; i++) {
        uint32_t a[4];
        a_columns<16>(a, pairs + delta_pairs_at(i, j), 0, 0, lane);
        add_product<F>(c, a, tile, 16 * i, at.side() * PIECES / 2, lane);
    }
}

/* The lane's share of the products of c with the warp's rows of a tile: of its two rows. */
template <int F, int PIECES>
SR_DEVICE void add_dots(float (&dot)[2], const float (&c)[PIECES][4], const sr_bf16 *tile,
                        float factor, const outputs_place &at) {
    const int lane = delta_lane();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.own() + delta_row(half, lane);
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const uint32_t word = *reinterpret_cast<const uint32_t *>(
                tile + sr_tile<F>::offset(row, at.side() * PIECES + n) + delta_column(0, lane));
            const float2 pair = unpack_bf16(word);
            dot[half] = fmaf(factor * c[n][2 * half], pair.x, dot[half]);
            dot[half] = fmaf(factor * c[n][2 * half + 1], pair.y, dot[half]);
        }
    }
}

/* The rows' dots to shared memory. */
SR_DEVICE void store_dots(float *to, const float (&dot)[2], int own) {
    const int lane = delta_lane();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(dot[half]);
        if (lane % 4 == 0)
            to[own + delta_row(half, lane)] = all;
    }
}

/* A gradient without what it has along the rows of the tile whose features it belongs to; `dot`:
 * the warp's share of their products. Both sides of the rows. Seven parameters: arrays
 * of a block have no owner but the kernel. */
template <int F, int SIDES, int PIECES>
SR_DEVICE void take_along(float (&c)[PIECES][4], const float (&dot)[2],
                          float (&along)[SIDES][SR_DELTA_CHUNK], const sr_bf16 *tile,
                          const float *units, srnn_feature feature, const outputs_place &at) {
    const int lane = delta_lane();
    store_dots(along[at.side()], dot, at.own());
#pragma unroll
    for (int n = 0; n < SR_DELTA_STEPS; n++) /* constants: else a block would take all barriers */
        if (at.own() == 16 * n)
            named_barrier_sync(1 + n, SIDES * SR_WARP);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.own() + delta_row(half, lane);
        float sum = 0;
#pragma unroll
        for (int side = 0; side < SIDES; side++)
            sum += along[side][row];
        sum *= unit_along(feature, units[row]);
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const uint32_t word = *reinterpret_cast<const uint32_t *>(
                tile + sr_tile<F>::offset(row, at.side() * PIECES + n) + delta_column(0, lane));
            const float2 pair = unpack_bf16(word);
            c[n][2 * half] = fmaf(-sum, pair.x, c[n][2 * half]);
            c[n][2 * half + 1] = fmaf(-sum, pair.y, c[n][2 * half + 1]);
        }
    }
}

/* The warp's rows and columns of a gradient, those of the span. */
template <int F, int PIECES>
SR_DEVICE void store_rows(const sr_chunk_rows &rows, int h, const float (&c)[PIECES][4],
                          const delta_span &span, const outputs_place &at, int columns) {
    if (rows.data)
        delta_store_strip(rows.row(at.b, h, span.t0 + at.own()), rows.time, c, span.from - at.own(),
                          span.past - at.own(), 8 * at.side() * PIECES, columns);
}

/* ---- a span ---- */

/* Copies a transposed state (V, F) to a tile. */
template <int F, int V>
SR_DEVICE void load_state(sr_bf16 *tile, const sr_bf16 *from, const sr_chunk_call &call) {
    using Tile = sr_tile<F>;
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < V * Tile::chunks; n += outputs_shape<F, V>::threads) {
        const int row = n / Tile::chunks, chunk = n % Tile::chunks;
        const bool counts = row < call.V && 8 * chunk < call.F;
        cp_async_16(tile + Tile::offset(row, chunk),
                    counts ? from + (int64_t)row * call.F + 8 * chunk : from, counts ? 16 : 0);
    }
}

template <int F, int V>
SR_DEVICE void load_query(outputs_memory<F, V> &shared, const sr_chunk_call &call,
                          const outputs_place &at, const delta_span &span, int query) {
    constexpr int THREADS = outputs_shape<F, V>::threads;
    delta_load<F, THREADS>(shared.queries, call.q.row(at.b, call.query_head(query), 0), call.q.time,
                           span, 0, call.F, (int)threadIdx.x);
    delta_load<V, THREADS>(shared.d_numerators, call.d_numerator.row(at.b, query, 0),
                           call.d_numerator.time, span, 0, call.V, (int)threadIdx.x);
}

/* Starts all copies of a span: rows, then states. */
template <int F, int V>
SR_DEVICE void load_span(outputs_memory<F, V> &shared, const sr_chunk_call &call,
                         const delta_places &places, const outputs_place &at,
                         const outputs_span &what) {
    constexpr int THREADS = outputs_shape<F, V>::threads;
    const int thread = (int)threadIdx.x, kv = at.b * call.Hkv + at.head;
    const int64_t row = (int64_t)kv * call.T;
    if (at.warp() == 0) {
        if (call.decays > 0)
            delta_load_numbers(shared.gate, call.gate + row, what.span);
        delta_load_numbers(shared.factors.beta, call.beta + row, what.span);
    }
    delta_load<V, THREADS>(shared.used, places.used + row * call.V, call.V, what.span, 0, call.V,
                           thread);
    delta_load<V, THREADS>(shared.d_values, call.d_v.row(at.b, at.head, 0), call.d_v.time,
                           what.span, 0, call.V, thread);
    delta_load<F, THREADS>(shared.keys, call.k.row(at.b, call.key_head(at.head), 0), call.k.time,
                           what.span, 0, call.F, thread);
    load_query(shared, call, at, what.span, at.head * call.group);
    cp_async_commit();
    const int64_t chunk = (int64_t)kv * delta_chunks(call.T) + at.chunk, numbers = call.V * call.F;
    if (what.state)
        load_state<F, V>(shared.state, places.states + chunk * numbers, call);
    if (what.later)
        load_state<F, V>(shared.later, places.d_states + chunk * numbers, call);
    cp_async_commit();
}

/* H, and the gradients of betas: the products of the diagonal. */
template <int F, int V>
SR_DEVICE void key_pairs(outputs_memory<F, V> &shared, const sr_chunk_call &call,
                         const outputs_place &at, const delta_span &span) {
    float *const d_beta = call.d_beta + call.row(call.Hkv, at.b, at.head, span.t0);
    pair_blocks(shared.of_keys, shared.d_values, shared, at, shared.factors.unit, -1, true,
                [&](const float(&w)[2][4], int j) {
                    const int lane = delta_lane();
                    if (16 * j != at.own())
                        return;
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const int row = at.own() + delta_row(e / 2, lane);
                            if (at.own() + 8 * n + delta_column(e % 2, lane) != row ||
                                row < span.from || row >= span.past)
                                continue;
                            const float beta = shared.factors.beta[row];
                            d_beta[row] = w[n][e] / beta / beta;
                        }
                });
}

/* <S, R>: the warp's share. */
template <int F, int V> SR_DEVICE void dot_states(outputs_memory<F, V> &shared, int warp) {
    float sum = 0;
    for (int n = 2 * (int)threadIdx.x; n < V * F; n += 2 * outputs_shape<F, V>::threads) {
        const float2 x = unpack_bf16(*reinterpret_cast<const uint32_t *>(shared.state + n));
        const float2 y = unpack_bf16(*reinterpret_cast<const uint32_t *>(shared.later + n));
        sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % SR_WARP == 0)
        shared.both[warp] = sum;
}

/* Gradients of the gates of a span. One warp: a lane has two tokens. */
template <int F, int V>
SR_DEVICE void store_gates(const outputs_memory<F, V> &shared, const sr_chunk_call &call,
                           const outputs_place &at, const outputs_span &what) {
    const int lane = delta_lane();
    float own[2] = {}, later[2] = {}, both = 0;
    for (int side = 0; side < outputs_shape<F, V>::sides; side++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            own[e] += shared.at_sum[side][2 * lane + e];
            later[e] += what.later ? shared.from_later[side][2 * lane + e] : 0;
        }
    for (int n = 0; what.state && what.later && n < outputs_shape<F, V>::warps; n++)
        both += shared.both[n];
    /* from the lane's tokens on; those before the lane's */
    float from_here = own[0] + own[1], upto_here = later[0] + later[1];
#pragma unroll
    for (int distance = 1; distance < SR_WARP; distance *= 2) {
        const float above = shuffle_down(from_here, distance);
        const float below = shuffle_up(upto_here, distance);
        from_here += lane + distance < SR_WARP ? above : 0;
        upto_here += lane >= distance ? below : 0;
    }
    const float before = upto_here - (later[0] + later[1]), rest = both * shared.factors.across;
    const float gradient[2] = {from_here + before + rest,
                               from_here - own[0] + before + later[0] + rest};
    float *const d_gate = call.d_gate + call.row(call.Hkv, at.b, at.head, what.span.t0);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int row = 2 * lane + e;
        if (row >= what.span.from && row < what.span.past)
            d_gate[row] = row == what.span.from && what.span.fresh ? 0 : gradient[e];
    }
}

/* Factors of a span once its rows are there. All warps; complete for all. */
template <int F, int V>
SR_DEVICE void fill_factors(outputs_memory<F, V> &shared, const sr_chunk_call &call,
                            const outputs_place &at, bool keys) {
    if (at.side() == 1)
        delta_squares<F>(shared.of_query.unit, shared.queries, at.own(), call.feature);
    else if (keys)
        delta_squares<F>(shared.factors.unit, shared.keys, at.own(), call.feature);
    __syncthreads();
    if (at.warp() == 0) {
        if (keys)
            shared.factors.fill(call.decays > 0 ? shared.gate : nullptr, call.feature);
        shared.of_query.fill(*reinterpret_cast<const float2 *>(shared.factors.pairs.sum +
                                                               2 * delta_lane()),
                             call.scale, call.feature);
    }
    __syncthreads();
}

/* All gradients of a span. */
template <int F, int V>
SR_DEVICE void span_outputs(outputs_memory<F, V> &shared, const sr_chunk_call &call,
                            const delta_places &places) {
    constexpr int P = outputs_shape<F, V>::pieces;
    const outputs_place &at = shared.at;
    const outputs_span &what = shared.what;
    const delta_span &span = what.span;
    const bool gates = call.decays > 0, units = unit_feature(call.feature);
    load_span(shared, call, places, at, what);
    cp_async_wait<1>();
    __syncthreads(); /* rows are there */
    fill_factors(shared, call, at, true);
    key_pairs(shared, call, at, span);
    cp_async_wait<0>();
    __syncthreads(); /* H and states are there */
    if (gates && what.state && what.later)
        dot_states(shared, at.warp());
    float d_k[P][4], dot[2] = {};
    delta_clear(d_k);
    if (what.state)
        times_state<F, V>(d_k, shared.d_values, shared.state, shared.factors.before, -1, at);
    add_pair_rows<F>(d_k, shared.of_keys, shared.keys, at);
    if (gates) /* once as they are; once more what the next parts take off */
        add_dots<F>(dot, d_k, shared.keys, 2, at);
    add_pair_columns<F>(d_k, shared.of_keys, shared.keys, at);
#pragma unroll 1
    for (int g = 0; g < call.group; g++) {
        const int query = at.head * call.group + g;
        if (g > 0) {
            __syncthreads(); /* no warp reads the head before */
            load_query(shared, call, at, span, query);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads();
            fill_factors(shared, call, at, false);
        }
        pair_blocks(shared.of_queries, shared.d_numerators, shared, at, shared.of_query.unit,
                    call.scale, false, [](const float(&)[2][4], int) {});
        __syncthreads(); /* G is there */
        float d_q[P][4];
        delta_clear(d_q);
        if (what.state)
            times_state<F, V>(d_q, shared.d_numerators, shared.state, shared.of_query.before, 1,
                              at);
        add_pair_rows<F>(d_q, shared.of_queries, shared.keys, at);
        if (gates || units) {
            float own[2] = {};
            add_dots<F>(own, d_q, shared.queries, 1, at);
            dot[0] += own[0];
            dot[1] += own[1];
            if (units)
                take_along<F>(d_q, own, shared.along[0], shared.queries, shared.of_query.unit,
                              call.feature, at);
        }
        store_rows<F>(call.d_q, query, d_q, span, at, call.F);
        add_pair_columns<F>(d_k, shared.of_queries, shared.queries, at);
    }
    float along[2] = {}; /* the lane's share of the keys' products with their gradients */
    if (gates || units)
        add_dots<F>(along, d_k, shared.keys, 1, at);
    if (gates) {
        dot[0] -= along[0];
        dot[1] -= along[1];
        store_dots(shared.at_sum[at.side()], dot, at.own());
    }
    if (what.later) {
        float from_later[P][4];
        times_state<F, V>(from_later, shared.used, shared.later, shared.factors.until, 1, at);
        if (gates || units) {
            float dots[2] = {};
            add_dots<F>(dots, from_later, shared.keys, 1, at);
            along[0] += dots[0];
            along[1] += dots[1];
            if (gates)
                store_dots(shared.from_later[at.side()], dots, at.own());
        }
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d_k[n][e] += from_later[n][e];
    }
    if (units)
        take_along<F>(d_k, along, shared.along[1], shared.keys, shared.factors.unit, call.feature,
                      at);
    store_rows<F>(call.d_k, at.head, d_k, span, at, call.F);
    __syncthreads(); /* dots are there, and no warp reads a tile */
    if (gates && at.warp() == 0)
        store_gates(shared, call, at, what);
}

/* A block owns a chunk of a head of keys and values, and computes its spans one after the other.
 * A warp has 16 rows of the chunk and a side of the columns of results: H, then G of each query
 * head, go through shared memory in bf16. */
template <int F, int V>
__global__ void __launch_bounds__(outputs_shape<F, V>::threads, outputs_shape<F, V>::blocks)
    delta_outputs(const __grid_constant__ sr_chunk_call call,
                  const __grid_constant__ delta_places places) {
    using Memory = outputs_memory<F, V>;
    SR_SHARED(Memory, shared);
    if (threadIdx.x == 0) {
        const int chunks = delta_chunks(call.T), index = (int)blockIdx.x, head = index / chunks;
        shared->at = {head / call.Hkv, head % call.Hkv, index % chunks};
        shared->what.span = {index % chunks * SR_DELTA_CHUNK, 0, 0, false, false};
    }
    __syncthreads();
    const outputs_place &at = shared->at;
    const delta_span &span = shared->what.span;
    do {
        const int t = span.t0 + span.past;
        __syncthreads(); /* no warp reads the span before */
        if (at.warp() == 0) {
            const delta_span next = delta_span_from(call.first + (int64_t)at.b * call.T, t, call.T,
                                                    call.initial != nullptr);
            const bool more = next.t0 + next.past < call.T || call.d_final;
            if (delta_lane() == 0)
                shared->what = {next, next.opens_chunk() && !next.fresh,
                                next.closes_chunk(call.T) && !next.ends && more};
        }
        __syncthreads(); /* the span is known */
        span_outputs(*shared, call, places);
    } while (span.t0 + span.past < min((at.chunk + 1) * SR_DELTA_CHUNK, call.T));
}

/* ---- launches ---- */

template <int F, int V>
static srnn_status start(const sr_chunk_call &call, const delta_places &places,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(delta_outputs<F, V>,
                      dim3((unsigned)(call.B * call.Hkv * delta_chunks(call.T))),
                      dim3(outputs_shape<F, V>::threads), sizeof(outputs_memory<F, V>), stream,
                      call, places));
    return SRNN_OK;
}

srnn_status sr_delta_outputs(const sr_chunk_call &call, const delta_places &places,
                             cudaStream_t stream) {
    if (call.F <= 64)
        return call.V <= 64 ? start<64, 64>(call, places, stream)
                            : start<64, 128>(call, places, stream);
    return call.V <= 64 ? start<128, 64>(call, places, stream)
                        : start<128, 128>(call, places, stream);
}

size_t sr_delta_outputs_bytes(int F, int V) {
    if (F <= 64)
        return V <= 64 ? sizeof(outputs_memory<64, 64>) : sizeof(outputs_memory<64, 128>);
    return V <= 64 ? sizeof(outputs_memory<128, 64>) : sizeof(outputs_memory<128, 128>);
}
