/* backward.cu: pooled attention backward: dQ and own pairs by rows of queries; gradients of slots
 * by slots. */
#include "attention/cuda/pooled/pooled.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP, ROWS = 16 * WARPS, KEYS = 64 };

/* What a pair of a piece has besides its scores: nothing but what hides it. */
struct seen_pairs {
    static constexpr bool masked = true, decays = false, decays_logits = false;

    SR_DEVICE bool own(int) const {
        return false;
    }
    SR_DEVICE float decay(int) const {
        return 0;
    }
    SR_DEVICE void take(int, float) const {
    }
};

/* ---- dQ ---- */

template <int WIDTH> constexpr size_t query_bytes() {
    return (size_t)(2 * ROWS + 4 * KEYS) * WIDTH * sizeof(sr_bf16);
}

/* 16 query rows of a warp, and their accumulators. */
template <int WIDTH> struct query_rows {
    static constexpr int P = WIDTH / 8;

    sr_operand<WIDTH, true> q, d_numerator;
    float d_q[P][4];
    int t; /* first row */
    sr_seen_range seen[2];
    float scale[2], d_row_sum[2];

    SR_DEVICE query_rows(const sr_pooled &p, int b, int h, int t_) : t(t_) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = min(t + piece_row(half), p.T - 1);
            const int64_t row = p.row(p.H, b, h, i);
            seen[half] = seen_range(p, b, i);
            scale[half] = p.maximum[row] * SR_LOG2_E;
            d_row_sum[half] = p.row_sums ? p.d_row_sum[row] : 0;
        }
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d_q[n][e] = 0;
    }
};

/* Pairs of 16 query rows with 16 keys from `key` of a tile on. */
template <class Rows, class Sees> struct query_pairs : seen_pairs {
    const Rows &rows;
    const Sees &sees;
    int key;

    SR_DEVICE query_pairs(const Rows &of, const Sees &which, int at)
        : rows(of), sees(which), key(at) {
    }
    SR_DEVICE float scale(int e) const {
        return rows.scale[e / 2 % 2];
    }
    SR_DEVICE float d_row_sum(int e) const {
        return rows.d_row_sum[e / 2 % 2];
    }
    SR_DEVICE bool hidden(int e) const {
        return !sees(e / 2 % 2, key + piece_column(e));
    }
};

/* Adds to d_q what the pairs with keys at .. at + 15 of a tile give; weights and gradients of <q,
 * k> of the pairs remain in w and d. Parameters, not a struct: they stay in registers. */
template <int WIDTH, class Sees>
SR_DEVICE void visit(query_rows<WIDTH> &rows, float (&w)[1][SR_PIECE], float (&d)[1][SR_PIECE],
                     const sr_bf16 *keys, const sr_bf16 *values, int at, const sr_score_rule &rule,
                     const Sees &sees) {
    using Operand = sr_operand<WIDTH, true>;
    multiply_pieces<WIDTH>(
        w, [&](int) -> const Operand & { return rows.q; }, keys, at);
    multiply_pieces<WIDTH>(
        d, [&](int) -> const Operand & { return rows.d_numerator; }, values, at);
    const query_pairs<query_rows<WIDTH>, Sees> pairs(rows, sees, at);
    pairs_backward<SR_CLASS_EXPONENTIAL>(w[0], d[0], rule, pairs);
    uint32_t a[4];
    pack_piece(a, d[0]);
    multiply_rows<WIDTH>(rows.d_q, a, keys, at);
}

/* A block owns 64 query rows of a head, a warp 16 of them. cp.async copies queries and gradients
 * of numerators once, with the rows' own averages, then tiles of 64 slots, global -> shared, in
 * two stages: after the wait and the barrier for stage n, the copy of tile n + 1 starts. A warp
 * pairs its rows with the 16 averages of the same tokens, and the lane that has a row's pair with
 * itself stores weight and gradient of it; then with 16 slots at a time: mma Q K' and dN V',
 * gradients of <q, k> in registers, mma dS K. Rows are stored once, through the warp's part of the
 * query tile. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    pooled_query_tiles(const __grid_constant__ sr_pooled p) {
    SR_SHARED(sr_bf16, shared);
    sr_bf16 *const q_tile = shared, *const d_tile = q_tile + ROWS * WIDTH;
    sr_bf16 *const stages = d_tile + ROWS * WIDTH;
    const int tiles = (p.T + ROWS - 1) / ROWS, head = (int)blockIdx.x / tiles;
    const int b = head / p.H, h = head % p.H, kv = h / p.group;
    const int t0 = ((int)blockIdx.x % tiles) * ROWS, past = min(t0 + ROWS, p.T);
    const sr_pooled_slots slots = pooled_slots(p, b, t0, past, KEYS);
    const int own = (int)threadIdx.x / SR_WARP * 16;
    const auto load = [&](int n) {
        sr_bf16 *const k = stages + n % 2 * 2 * KEYS * WIDTH, *const v = k + KEYS * WIDTH;
        const bool seen = n > 0;
        const int from = seen ? slots.first + (n - 1) * KEYS : t0, end = seen ? slots.past : past;
        tile_load<WIDTH, KEYS, THREADS>(k, pooled_rows(seen ? p.seen_k : p.k, b, kv, p.D), from,
                                        from, end);
        tile_load<WIDTH, KEYS, THREADS>(v, pooled_rows(seen ? p.seen_v : p.v, b, kv, p.D), from,
                                        from, end);
        cp_async_commit();
    };
    tile_load<WIDTH, ROWS, THREADS>(q_tile, pooled_rows(p.q, b, p.query_head(h), p.D), t0, t0,
                                    past);
    tile_load<WIDTH, ROWS, THREADS>(d_tile, pooled_rows(p.d_numerator, b, h, p.D), t0, t0, past);
    load(0);
    query_rows<WIDTH> rows(p, b, h, t0 + own);
    for (int n = 0; n <= slots.tiles; n++) {
        const sr_bf16 *const k = stages + n % 2 * 2 * KEYS * WIDTH, *const v = k + KEYS * WIDTH;
        float w[1][SR_PIECE], d[1][SR_PIECE];
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (n < slots.tiles)
            load(n + 1);
        if (n == 0) {
            rows.q.open(q_tile, own);
            rows.d_numerator.open(d_tile, own);
            visit(rows, w, d, k, v, own, p.score,
                  [&](int half, int key) { return key - own == piece_row(half); });
#pragma unroll
            for (int e = 0; e < SR_PIECE; e++) {
                const int half = e / 2 % 2, i = rows.t + piece_row(half);
                if (piece_column(e) != piece_row(half) || i >= p.T)
                    continue;
                p.own_weight[p.row(p.H, b, h, i)] = w[0][e];
                p.own_slope[p.row(p.H, b, h, i)] = d[0][e] * p.score.slope_unit;
            }
            continue;
        }
        const int begin = slots.first + (n - 1) * KEYS, count = min((int)KEYS, slots.past - begin);
        const int32_t *const last = p.last + (int64_t)b * p.slots + begin;
#pragma unroll 1
        for (int at = 0; at < count; at += 16)
            visit(rows, w, d, k, v, at, p.score,
                  [&](int half, int key) { return key < count && rows.seen[half].has(last[key]); });
    }
    if (rows.t >= p.T)
        return;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.d_q[n][e] *= p.score.slope_unit;
    const sr_head_rows<sr_bf16> out = {p.d_q.row(b, h, 0), p.d_q.time, p.D, true};
    tile_store<WIDTH>(out, rows.d_q, q_tile + own * WIDTH, rows.t, p.T);
}

/* ---- gradients of slots ---- */

template <int WIDTH> struct slot_memory {
    alignas(16) sr_bf16 keys[KEYS * WIDTH];
    sr_bf16 values[KEYS * WIDTH];
    sr_bf16 queries[2][ROWS * WIDTH], d_numerators[2][ROWS * WIDTH];
    float scale[2][ROWS], d_row_sum[2][ROWS]; /* of the rows of a stage */
    sr_seen_range seen[2][ROWS];
};

/* 16 slots of a warp, and their accumulators. */
template <int WIDTH> struct slot_rows {
    static constexpr int P = WIDTH / 8;
    static constexpr bool kept = WIDTH <= 64;

    sr_operand<WIDTH, kept> k, v;
    float d_k[P][4], d_v[P][4];
    int slot;    /* the first */
    int last[2]; /* of the lane's rows */
};

/* Pairs of 16 slots with 16 queries from `at` of a stage on. */
struct slot_pairs : seen_pairs {
    const float *scales, *d_row_sums;
    uint32_t hides; /* a bit for each pair of the lane: eight ranges would take registers */

    SR_DEVICE slot_pairs(const float *s, const float *d, const sr_seen_range *seen,
                         const int (&last)[2])
        : scales(s), d_row_sums(d), hides(0) {
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            hides |= (uint32_t)!seen[piece_column(e)].has(last[e / 2 % 2]) << e;
    }
    SR_DEVICE float scale(int e) const {
        return scales[piece_column(e)];
    }
    SR_DEVICE float d_row_sum(int e) const {
        return d_row_sums[piece_column(e)];
    }
    SR_DEVICE bool hidden(int e) const {
        return hides >> e & 1;
    }
};

/* The gradients of 16 slots, rows of floats. */
template <int WIDTH>
SR_DEVICE void store_slots(float *to, const float (&c)[WIDTH / 8][4], const sr_pooled &p, int slot,
                           float factor) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = slot + piece_row(half);
        float *const numbers = to + (int64_t)row * p.D + piece_column(0);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            if (row < p.slots && 8 * n < p.D)
                *reinterpret_cast<float2 *>(numbers + 8 * n) = {c[n][2 * half] * factor,
                                                                c[n][2 * half + 1] * factor};
    }
}

/* A block owns 64 slots of a head of averages, a warp 16 of them. cp.async copies their keys and
 * values once, then tiles of 64 queries and gradients of numerators of all heads of the group,
 * global -> shared, in two stages, while threads store the rows' scalars and what they see beside
 * them; after the wait and the barrier for stage n, the copy of tile n + 1 starts. Tiles are those
 * from the first slot to the last row whose document begins before the slots end. A warp runs mma
 * K Q' and V dN' for 16 queries at a time, and adds up mma W' dN and dS' Q in registers, in this
 * order; it stores the sums of its slots once. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    pooled_slot_tiles(const __grid_constant__ sr_pooled p) {
    using memory = slot_memory<WIDTH>;
    using Operand = sr_operand<WIDTH, slot_rows<WIDTH>::kept>;
    SR_SHARED(memory, shared);
    const int blocks = (p.slots + KEYS - 1) / KEYS, head = (int)blockIdx.x / blocks;
    const int b = head / p.Hkv, kv = head % p.Hkv, slot0 = (int)blockIdx.x % blocks * KEYS;
    const int32_t *const first = p.first + (int64_t)b * p.T;
    const int begin = slot0 * p.length;
    const int end = (int)min((int64_t)(slot0 + KEYS) * p.length, (int64_t)p.T);
    const int past = end_of_queries(first, end - 1, p.T);
    const int tiles = (past - begin + ROWS - 1) / ROWS, count = tiles * p.group;
    const int own = (int)threadIdx.x / SR_WARP * 16, row = (int)threadIdx.x;
    const auto load = [&](int n) {
        const int h = kv * p.group + n / tiles, t = begin + n % tiles * ROWS, stage = n % 2;
        tile_load<WIDTH, ROWS, THREADS>(shared->queries[stage],
                                        pooled_rows(p.q, b, p.query_head(h), p.D), t, t, past);
        tile_load<WIDTH, ROWS, THREADS>(shared->d_numerators[stage],
                                        pooled_rows(p.d_numerator, b, h, p.D), t, t, past);
        cp_async_commit();
        if (row >= ROWS)
            return;
        const bool there = t + row < past;
        const int64_t at = p.row(p.H, b, h, min(t + row, p.T - 1));
        shared->scale[stage][row] = p.maximum[at] * SR_LOG2_E;
        shared->d_row_sum[stage][row] = p.row_sums ? p.d_row_sum[at] : 0;
        shared->seen[stage][row] = there ? seen_range(p, b, t + row) : sr_seen_range{0, 0};
    };
    tile_load<WIDTH, KEYS, THREADS>(shared->keys, pooled_rows(p.seen_k, b, kv, p.D), slot0, slot0,
                                    p.slots);
    tile_load<WIDTH, KEYS, THREADS>(shared->values, pooled_rows(p.seen_v, b, kv, p.D), slot0, slot0,
                                    p.slots);
    slot_rows<WIDTH> rows;
    rows.slot = slot0 + own;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int slot = rows.slot + piece_row(half);
        rows.last[half] = slot < p.slots ? p.last[(int64_t)b * p.slots + slot] : -1;
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.d_k[n][e] = rows.d_v[n][e] = 0;
    load(0);
    for (int n = 0; n < count; n++) {
        const int stage = n % 2, t = begin + n % tiles * ROWS;
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (n + 1 < count)
            load(n + 1);
        if (n == 0) {
            rows.k.open(shared->keys, own);
            rows.v.open(shared->values, own);
        }
        if (rows.slot >= p.slots || t + ROWS <= rows.slot * p.length)
            continue;
#pragma unroll 1
        for (int at = 0; at < ROWS; at += 16) {
            float w[1][SR_PIECE], d[1][SR_PIECE];
            uint32_t a[4];
            const slot_pairs pairs(shared->scale[stage] + at, shared->d_row_sum[stage] + at,
                                   shared->seen[stage] + at, rows.last);
            multiply_pieces<WIDTH>(
                w, [&](int) -> const Operand & { return rows.k; }, shared->queries[stage], at);
            multiply_pieces<WIDTH>(
                d, [&](int) -> const Operand & { return rows.v; }, shared->d_numerators[stage], at);
            pairs_backward<SR_CLASS_EXPONENTIAL>(w[0], d[0], p.score, pairs);
            pack_piece(a, w[0]);
            multiply_rows<WIDTH>(rows.d_v, a, shared->d_numerators[stage], at);
            pack_piece(a, d[0]);
            multiply_rows<WIDTH>(rows.d_k, a, shared->queries[stage], at);
        }
    }
    const int64_t to = (int64_t)head * p.slots * p.D;
    store_slots<WIDTH>(p.d_seen_k + to, rows.d_k, p, rows.slot, p.score.slope_unit);
    store_slots<WIDTH>(p.d_seen_v + to, rows.d_v, p, rows.slot, 1);
}

/* ---- calls ---- */

template <int WIDTH> static srnn_status start_queries(const sr_pooled &p, cudaStream_t stream) {
    const int64_t blocks = (int64_t)p.B * p.H * ((p.T + ROWS - 1) / ROWS);
    SR_CUDA(sr_launch(pooled_query_tiles<WIDTH>, dim3((unsigned)blocks), dim3(THREADS),
                      query_bytes<WIDTH>(), stream, p));
    return SRNN_OK;
}

template <int WIDTH> static srnn_status start_slots(const sr_pooled &p, cudaStream_t stream) {
    const int64_t blocks = (int64_t)p.B * p.Hkv * ((p.slots + KEYS - 1) / KEYS);
    SR_CUDA(sr_launch(pooled_slot_tiles<WIDTH>, dim3((unsigned)blocks), dim3(THREADS),
                      sizeof(slot_memory<WIDTH>), stream, p));
    return SRNN_OK;
}

srnn_status sr_pooled_backward_queries(const sr_pooled &pooled, cudaStream_t stream) {
    return SR_POOLED_START(start_queries, pooled, stream);
}

srnn_status sr_pooled_backward_slots(const sr_pooled &pooled, cudaStream_t stream) {
    return SR_POOLED_START(start_slots, pooled, stream);
}
