/* backward_dkv.cu: attention backward on tensor cores, dK and dV: those rows stay, queries and
 * gradients of numerators of all heads that share the keys pass by in tiles. Pieces of pairs are
 * transposed: their rows are keys, so that weights and gradients feed the next GEMMs from
 * registers. */
#include "attention/cuda/mma/mma.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP, KEYS = WARPS * 16 };

template <int WIDTH> struct shape {
    static constexpr int queries = WIDTH <= 128 ? 64 : 16;
    static constexpr int pieces = WIDTH / 8;
    static constexpr bool kept = WIDTH <= 64; /* keys and values in registers */
    /* d_k and d_v in one pass over the queries: registers for both */
    static constexpr bool together = WIDTH <= 128;
    static constexpr int stage_numbers = 2 * queries * WIDTH;
    static constexpr size_t shared_bytes =
        (size_t)(2 * KEYS * WIDTH + 2 * stage_numbers) * sizeof(sr_bf16) +
        (size_t)(4 * queries) * sizeof(float);
};

/* The head and the keys of a block. */
struct key_block {
    int b, head;   /* kv head */
    int key, past; /* the block's first key; past the last query that sees any of its keys */
};

/* Queries, gradients of numerators, and the row scales and gradients of row sums of their rows. */
template <int WIDTH> struct query_stage {
    sr_bf16 *queries, *d_numerators;
    float *scales, *d_row_sums;

    SR_DEVICE query_stage(sr_bf16 *stages, float *rows, int n) {
        constexpr int Q = shape<WIDTH>::queries;
        queries = stages + n * shape<WIDTH>::stage_numbers;
        d_numerators = queries + Q * WIDTH;
        scales = rows + n * 2 * Q;
        d_row_sums = scales + Q;
    }

    SR_DEVICE void load(const sr_attention_view<sr_bf16> &call, const key_block &block,
                        const sr_mma_alignment &aligned, int h, int t) const {
        constexpr int Q = shape<WIDTH>::queries;
        tile_load<WIDTH, Q, THREADS>(queries, head_rows(call.q, block.b, h, call.D, aligned.q), t,
                                     block.key, block.past);
        tile_load<WIDTH, Q, THREADS>(d_numerators,
                                     head_rows(call.d_numerator, block.b, h, call.Dv,
                                               aligned.d_numerator),
                                     t, block.key, block.past);
        const int n = (int)threadIdx.x;
        if (n < 2 * Q) {
            const float *const from = n < Q ? call.scratch.row_scale : call.scratch.d_row_sum;
            const int row = t + n % Q;
            const int64_t head = call.row_index(call.H, block.b, h, 0);
            cp_async_4(scales + n, from + head + min(row, call.T - 1), row < block.past ? 4 : 0);
        }
        cp_async_commit();
    }
};

/* 16 keys of a warp, and their accumulators. */
template <int WIDTH, sr_score_class KIND, bool KEY, bool VALUE> struct key_rows {
    static constexpr int P = shape<WIDTH>::pieces;

    sr_operand<WIDTH, shape<WIDTH>::kept> k, v;
    float d_k[KEY ? P : 1][4], d_v[VALUE ? P : 1][4];
    int key;      /* first row */
    float dot[2]; /* the lane's share of column_dot */

    SR_DEVICE int row(int half) const {
        return key + piece_row(half);
    }

    SR_DEVICE void open(int key_) {
        key = key_;
        dot[0] = dot[1] = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int n = 0; n < (KEY ? P : 1); n++)
                d_k[n][e] = 0;
#pragma unroll
            for (int n = 0; n < (VALUE ? P : 1); n++)
                d_v[n][e] = 0;
        }
    }
};

/* The pairs of 16 keys (rows) with 16 queries. */
template <class Rows> struct key_pairs {
    Rows &rows;
    const float *scales, *d_row_sums; /* of the 16 queries */
    const int32_t *first;             /* of the batch row */
    int query, past;
    bool masked, decays, decays_logits;
    sr_piece_decay decay_of;

    SR_DEVICE float scale(int e) const {
        return scales[piece_column(e)];
    }
    SR_DEVICE float d_row_sum(int e) const {
        return d_row_sums[piece_column(e)];
    }
    SR_DEVICE bool hidden(int e) const {
        const int i = query + piece_column(e), j = rows.row(e / 2 % 2);
        return i >= past || j > i || j < first[i];
    }
    SR_DEVICE bool own(int e) const {
        return query + piece_column(e) == rows.row(e / 2 % 2);
    }
    SR_DEVICE float decay(int e) const {
        return -decay_of.row_less_column(e);
    }
    SR_DEVICE void take(int e, float x) const {
        rows.dot[e / 2 % 2] += x;
    }
};

/* One tile of queries: d_v += W' dN and d_k += dS' Q, skipping pieces that see no key of the
 * warp. */
template <int WIDTH, sr_score_class KIND, bool KEY, bool VALUE>
SR_DEVICE void visit(key_rows<WIDTH, KIND, KEY, VALUE> &rows, const query_stage<WIDTH> &stage,
                     const sr_attention_view<sr_bf16> &call, const key_block &block, int query) {
    const int32_t *const first = call.first + (int64_t)block.b * call.T;
    const int last = min(query + shape<WIDTH>::queries, block.past) - 1;
    const bool cut = first[last] > rows.key; /* a document begins in between */
    const double *const decay =
        call.choices.decays ? call.scratch.decay + call.row_index(call.Hkv, block.b, block.head, 0)
                            : nullptr;
    using Operand = sr_operand<WIDTH, shape<WIDTH>::kept>;
#pragma unroll 1
    for (int piece = 0; piece < shape<WIDTH>::queries; piece += 16) {
        const int at = query + piece;
        if (at + 15 < rows.key || at >= block.past)
            continue;
        float r[1][SR_PIECE], d[1][SR_PIECE] = {};
        multiply_pieces<WIDTH>(
            r, [&](int) -> const Operand & { return rows.k; }, stage.queries, piece);
        if constexpr (KEY)
            multiply_pieces<WIDTH>(
                d, [&](int) -> const Operand & { return rows.v; }, stage.d_numerators, piece);
        key_pairs<key_rows<WIDTH, KIND, KEY, VALUE>> pairs = {rows,
                                                              stage.scales + piece,
                                                              stage.d_row_sums + piece,
                                                              first,
                                                              at,
                                                              block.past,
                                                              cut || at < rows.key + 15 ||
                                                                  at + 15 >= block.past,
                                                              decay != nullptr,
                                                              call.choices.decays_logits,
                                                              {}};
        if (decay)
            pairs.decay_of.open(decay, rows.key, at, call.T, call.score.decay_unit);
        pairs_backward<KIND>(r[0], d[0], call.score, pairs);
        uint32_t a[4];
        if constexpr (VALUE) {
            pack_piece(a, r[0]);
            multiply_rows<WIDTH>(rows.d_v, a, stage.d_numerators, piece);
        }
        if constexpr (KEY) {
            pack_piece(a, d[0]);
            multiply_rows<WIDTH>(rows.d_k, a, stage.queries, piece);
        }
    }
}

/* Epilogue of dK: slope unit, the feature map's backward, rows stored through `tile`. */
template <int WIDTH, sr_score_class KIND, bool KEY, bool VALUE>
SR_DEVICE void finish_keys(key_rows<WIDTH, KIND, KEY, VALUE> &rows,
                           const sr_attention_view<sr_bf16> &call, const key_block &block,
                           sr_bf16 *tile, bool aligned) {
    using Row = sr_quad_row<WIDTH>;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[Row::count];
        row_of(x, rows.d_k, half);
        row_multiply<Row>(x, call.score.slope_unit);
        if (call.choices.feature != SRNN_FEATURE_IDENTITY) {
            float raw[Row::count];
            row_load<Row>(raw, call.raw_k.at(block.b, block.head, min(rows.row(half), call.T - 1)),
                          call.D);
            row_feature_backward<Row>(x, raw, call.choices.feature);
        }
        set_row(rows.d_k, x, half);
        const float all = quad_sum(rows.dot[half]);
        if (call.choices.decays && threadIdx.x % 4 == 0 && rows.row(half) < call.T)
            call.scratch.column_dot[call.row_index(call.Hkv, block.b, block.head, rows.row(half))] =
                all;
    }
    if (call.d_k.data)
        tile_store<WIDTH>(head_rows(call.d_k, block.b, block.head, call.D, aligned), rows.d_k, tile,
                          rows.key, call.T);
}

/* The gradient of values times their factor to those of the values and of the factor. */
template <class Row>
SR_DEVICE void factor_backward(float (&x)[Row::count], const sr_attention_view<sr_bf16> &call,
                               const key_block &block, int j) {
    const int inside = min(j, call.T - 1);
    const int64_t at = call.row_index(call.Hkv, block.b, block.head, inside);
    const float factor = call.scratch.value_factor[at];
    float value[Row::count]; /* the products with the factor are rounded */
    row_load<Row>(value, call.raw_v.at(block.b, block.head, inside), call.Dv);
    const float dot = factor * row_dot<Row>(value, x);
    row_multiply<Row>(x, factor);
    if (threadIdx.x % 4 != 0 || j >= call.T)
        return;
    call.scratch.value_dot[at] = dot;
    if (call.choices.value_gate && call.d_value_gate.data) {
        const float gate = sigmoid(to_float(*call.value_gate.at(block.b, block.head, j)));
        store_number(call.d_value_gate.at(block.b, block.head, j), dot * (1 - gate));
    }
}

/* Epilogue of dV: the value factor, rows stored through `tile`. */
template <int WIDTH, sr_score_class KIND, bool KEY, bool VALUE>
SR_DEVICE void finish_values(key_rows<WIDTH, KIND, KEY, VALUE> &rows,
                             const sr_attention_view<sr_bf16> &call, const key_block &block,
                             sr_bf16 *tile, bool aligned) {
    using Row = sr_quad_row<WIDTH>;
    if (call.scratch.value_factor)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x[Row::count];
            row_of(x, rows.d_v, half);
            factor_backward<Row>(x, call, block, rows.row(half));
            set_row(rows.d_v, x, half);
        }
    if (call.d_v.data)
        tile_store<WIDTH>(head_rows(call.d_v, block.b, block.head, call.Dv, aligned), rows.d_v,
                          tile, rows.key, call.T);
}

/* One pass over the queries of all heads of the group, in two cp.async stages. */
template <int WIDTH, sr_score_class KIND, bool KEY, bool VALUE>
SR_DEVICE void pass(const sr_attention_view<sr_bf16> &call, const key_block &block,
                    const sr_mma_alignment &aligned, sr_bf16 *k_tile, float *row_numbers) {
    constexpr int QUERIES = shape<WIDTH>::queries;
    sr_bf16 *const v_tile = k_tile + KEYS * WIDTH, *const stages = v_tile + KEYS * WIDTH;
    const int own = (int)threadIdx.x / SR_WARP * 16;
    const int tiles = (block.past - block.key + QUERIES - 1) / QUERIES;
    const int count = tiles * call.group, head = block.head * call.group;
    key_rows<WIDTH, KIND, KEY, VALUE> rows;
    rows.open(block.key + own);
    query_stage<WIDTH>(stages, row_numbers, 0).load(call, block, aligned, head, block.key);
    for (int n = 0; n < count; n++) {
        const query_stage<WIDTH> stage(stages, row_numbers, n % 2);
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (n + 1 < count)
            query_stage<WIDTH>(stages, row_numbers, (n + 1) % 2)
                .load(call, block, aligned, head + (n + 1) / tiles,
                      block.key + (n + 1) % tiles * QUERIES);
        if (n == 0) {
            rows.k.open(k_tile, own);
            rows.v.open(v_tile, own);
        }
        if (rows.key < call.T)
            visit(rows, stage, call, block, block.key + n % tiles * QUERIES);
    }
    __syncthreads(); /* before the tiles are reused */
    if (rows.key >= call.T)
        return;
    /* The stages are free: 16 rows of them for each warp. Keys and values stay for the next
     * pass. */
    sr_bf16 *const tile = stages + own * WIDTH;
    if constexpr (KEY)
        finish_keys(rows, call, block, tile, aligned.d_k);
    if constexpr (VALUE)
        finish_values(rows, call, block, tile, aligned.d_v);
}

/* One block per 64 keys of a KV head; a warp owns 16 of them. cp.async copies K and V once, then
 * tiles of Q, d_numerator and their row scalars, head by head of the group, from the first key's
 * position to the last query that sees any of the keys, in two stages: after the wait and
 * __syncthreads for stage n, the copy of tile n + 1 starts. Each warp runs mma K Q' and V dN' for
 * 16 queries at a time, and accumulates dV += W' dN and dK += dS' Q in registers, in this fixed
 * order. Heads wider than 128 take one pass for dK and one for dV. Rows are stored once at the end,
 * through the freed stages. */
template <int WIDTH, sr_score_class KIND>
__global__ void __launch_bounds__(THREADS, 2)
    key_tiles(const __grid_constant__ sr_attention_view<sr_bf16> call, const sr_tile_order order,
              const sr_mma_alignment aligned) {
    SR_SHARED(sr_bf16, shared);
    float *const row_numbers =
        reinterpret_cast<float *>(shared + 2 * KEYS * WIDTH + 2 * shape<WIDTH>::stage_numbers);
    const sr_tile_place place = tile_place(order, (int)blockIdx.x);
    key_block block = {place.head / call.Hkv, place.head % call.Hkv, place.rank * KEYS, 0};
    block.past = end_of_queries(call.first + (int64_t)block.b * call.T,
                                min(block.key + KEYS, call.T) - 1, call.T);
    tile_load<WIDTH, KEYS, THREADS>(shared,
                                    head_rows(call.k, block.b, block.head, call.D, aligned.k),
                                    block.key, block.key, call.T);
    tile_load<WIDTH, KEYS, THREADS>(shared + KEYS * WIDTH,
                                    head_rows(call.v, block.b, block.head, call.Dv, aligned.v),
                                    block.key, block.key, call.T);
    if constexpr (shape<WIDTH>::together) {
        pass<WIDTH, KIND, true, true>(call, block, aligned, shared, row_numbers);
    } else {
        pass<WIDTH, KIND, true, false>(call, block, aligned, shared, row_numbers);
        __syncthreads();
        pass<WIDTH, KIND, false, true>(call, block, aligned, shared, row_numbers);
    }
}

template <int WIDTH, sr_score_class KIND>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    const sr_tile_order order =
        tile_order(call.B * call.Hkv, (call.T + KEYS - 1) / KEYS,
                   (int64_t)call.T * (call.D + call.Dv) * call.group * (int64_t)sizeof(sr_bf16), 1);
    SR_CUDA(sr_launch(key_tiles<WIDTH, KIND>, dim3((unsigned)(order.heads * order.tiles)),
                      dim3(THREADS), shape<WIDTH>::shared_bytes, stream, call, order, aligned));
    return SRNN_OK;
}

srnn_status sr_mma_backward_keys(const sr_attention_view<sr_bf16> &call,
                                 const sr_mma_alignment &aligned, cudaStream_t stream) {
    return SR_MMA_START(start, call, aligned, stream);
}
