/* backward_dq.cu: attention backward on tensor cores, dQ: query rows stay, keys and values pass by
 * in tiles. */
#include "attention/cuda/mma/mma.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };

template <int WIDTH, sr_score_class KIND> struct shape {
    /* two while their registers suffice */
    static constexpr int row_tiles = WIDTH <= 32 && KIND != SR_CLASS_LONG ? 2 : 1;
    static constexpr int warp_rows = 16 * row_tiles;
    static constexpr int rows = WARPS * warp_rows;
    static constexpr int keys = WIDTH <= 128 ? 64 : 16;
    static constexpr int pieces = WIDTH / 8;
    static constexpr bool kept = WIDTH <= 128; /* queries and d_numerator in registers */
    static constexpr size_t shared_bytes = (size_t)(2 * rows + 4 * keys) * WIDTH * sizeof(sr_bf16);
};

/* 16 query rows of a warp, and their accumulators. */
template <int WIDTH, sr_score_class KIND> struct query_rows {
    using Shape = shape<WIDTH, KIND>;
    static constexpr int P = Shape::pieces;

    sr_operand<WIDTH, Shape::kept> q, d_numerator;
    float d_q[P][4];
    int t;                        /* first row */
    int first[2];                 /* first key of the lane's rows */
    float scale[2], d_row_sum[2]; /* from the backward preprocess */
    float dot[2];                 /* the lane's share of row_dot */

    SR_DEVICE int row(int half) const {
        return t + piece_row(half);
    }

    SR_DEVICE void open(const sr_attention_view<sr_bf16> &call, int b, int h, int t_) {
        t = t_;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int inside = min(row(half), call.T - 1);
            const int64_t at = call.row_index(call.H, b, h, inside);
            first[half] = call.first[(int64_t)b * call.T + inside];
            scale[half] = call.scratch.row_scale[at];
            d_row_sum[half] = call.scratch.d_row_sum[at];
            dot[half] = 0;
        }
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d_q[n][e] = 0;
    }

    /* Epilogue: the feature map's backward, then the rows of dQ through the warp's part of the
     * tile. */
    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int h, sr_bf16 *tile,
                          bool aligned) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x[2 * P];
            row_of(x, d_q, half);
            feature_gradient<sr_quad_row<WIDTH>>(x, call.raw_q.at(b, h, min(row(half), call.T - 1)),
                                                 call);
            set_row(d_q, x, half);
            const float all = quad_sum(dot[half]);
            if (call.choices.decays && threadIdx.x % 4 == 0 && row(half) < call.T)
                call.scratch.row_dot[call.row_index(call.H, b, h, row(half))] = all;
        }
        if (call.d_q.data)
            tile_store<WIDTH>(head_rows(call.d_q, b, h, call.D, aligned), d_q, tile, t, call.T);
    }
};

/* The pairs of 16 query rows with 16 keys. */
template <class Rows> struct query_pairs {
    Rows &rows;
    int key;
    bool masked, decays, decays_logits;
    sr_piece_decay decay_of;

    SR_DEVICE float scale(int e) const {
        return rows.scale[e / 2 % 2];
    }
    SR_DEVICE float d_row_sum(int e) const {
        return rows.d_row_sum[e / 2 % 2];
    }
    SR_DEVICE bool hidden(int e) const {
        const int j = key + piece_column(e), half = e / 2 % 2;
        return j > rows.row(half) || j < rows.first[half];
    }
    SR_DEVICE bool own(int e) const {
        return key + piece_column(e) == rows.row(e / 2 % 2);
    }
    SR_DEVICE float decay(int e) const {
        return decay_of.row_less_column(e);
    }
    SR_DEVICE void take(int e, float x) const {
        rows.dot[e / 2 % 2] += x;
    }
};

/* One tile of keys: d_q += dS K for all row tiles of the warp. Parameters, not a struct: they stay
 * in registers. */
template <int WIDTH, sr_score_class KIND, int MT>
SR_DEVICE void visit(query_rows<WIDTH, KIND> (&rows)[MT], const sr_bf16 *keys,
                     const sr_bf16 *values, int key, bool masked, const double *decay,
                     const sr_attention_view<sr_bf16> &call) {
    using Operand = sr_operand<WIDTH, shape<WIDTH, KIND>::kept>;
#pragma unroll 1
    for (int piece = 0; piece < shape<WIDTH, KIND>::keys; piece += 16) {
        uint32_t a[MT][4];
        float r[MT][SR_PIECE], d[MT][SR_PIECE];
        multiply_pieces<WIDTH>(
            r, [&](int m) -> const Operand & { return rows[m].q; }, keys, piece);
        multiply_pieces<WIDTH>(
            d, [&](int m) -> const Operand & { return rows[m].d_numerator; }, values, piece);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            query_pairs<query_rows<WIDTH, KIND>> pairs = {
                rows[m], key + piece, masked, decay != nullptr, call.choices.decays_logits, {}};
            if (decay)
                pairs.decay_of.open(decay, rows[m].t, key + piece, call.T, call.score.decay_unit);
            pairs_backward<KIND>(r[m], d[m], call.score, pairs);
            pack_piece(a[m], d[m]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            uint32_t b[4];
            load_b_rows<WIDTH>(b, keys, piece, n / 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_m16n8k16(rows[m].d_q[n], a[m], b);
                mma_m16n8k16(rows[m].d_q[n + 1], a[m], b + 2);
            }
        }
    }
}

/* One block per tile of ROWS queries of one head, in the tile scheduler's order; a warp owns 16 or
 * 32 rows. cp.async copies Q and d_numerator once, then K and V tiles of KEYS in two stages: after
 * the wait and __syncthreads for stage n, the copy of tile n + 1 starts. Each warp runs mma Q K'
 * and dN V' for 16 keys at a time, turns them into gradients of logits in registers (with row_scale
 * and d_row_sum of the backward preprocess), and accumulates dQ += dS K in registers. Rows are
 * stored once, through the warp's own part of the Q tile; with a decay, row_dot too. No block adds
 * to another's rows. */
template <int WIDTH, sr_score_class KIND>
__global__ void __launch_bounds__(THREADS, 2)
    query_tiles(const __grid_constant__ sr_attention_view<sr_bf16> call, const sr_tile_order order,
                const sr_mma_alignment aligned) {
    using Shape = shape<WIDTH, KIND>;
    constexpr int KEYS = Shape::keys, ROWS = Shape::rows, MT = Shape::row_tiles;
    SR_SHARED(sr_bf16, shared);
    sr_bf16 *const q_tile = shared, *const d_tile = q_tile + ROWS * WIDTH;
    sr_bf16 *const kv_tiles = d_tile + ROWS * WIDTH;
    const sr_tile_place place = tile_place(order, (int)blockIdx.x);
    const int b = place.head / call.H, h = place.head % call.H, warp = threadIdx.x / SR_WARP;
    const int kv_head = h / call.group;
    const int t0 = (order.tiles - 1 - place.rank) * ROWS, past = min(t0 + ROWS, call.T);
    const int32_t *const first = call.first + (int64_t)b * call.T;
    const int from = first[t0];
    const auto q = head_rows(call.q, b, h, call.D, aligned.q);
    const auto d = head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator);
    const auto k = head_rows(call.k, b, kv_head, call.D, aligned.k);
    const auto v = head_rows(call.v, b, kv_head, call.Dv, aligned.v);
    const double *const decay = call.choices.decays
                                    ? call.scratch.decay + call.row_index(call.Hkv, b, kv_head, 0)
                                    : nullptr;

    int key = from / KEYS * KEYS, stage = 0;
    tile_load<WIDTH, ROWS, THREADS>(q_tile, q, t0, t0, past);
    tile_load<WIDTH, ROWS, THREADS>(d_tile, d, t0, t0, past);
    tile_load<WIDTH, KEYS, THREADS>(kv_tiles, k, key, from, past);
    tile_load<WIDTH, KEYS, THREADS>(kv_tiles + KEYS * WIDTH, v, key, from, past);
    cp_async_commit();

    const int own = warp * Shape::warp_rows, t = t0 + own;
    const int last = min(t + Shape::warp_rows, call.T) - 1, first_of_last = first[max(last, 0)];
    query_rows<WIDTH, KIND> rows[MT];
#pragma unroll
    for (int m = 0; m < MT; m++)
        rows[m].open(call, b, h, t + 16 * m);
    for (bool opened = false; key < past; key += KEYS, stage ^= 1) {
        sr_bf16 *const tile = kv_tiles + stage * 2 * KEYS * WIDTH;
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (key + KEYS < past) {
            sr_bf16 *const next = kv_tiles + (stage ^ 1) * 2 * KEYS * WIDTH;
            tile_load<WIDTH, KEYS, THREADS>(next, k, key + KEYS, from, past);
            tile_load<WIDTH, KEYS, THREADS>(next + KEYS * WIDTH, v, key + KEYS, from, past);
            cp_async_commit();
        }
        if (!opened) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                rows[m].q.open(q_tile, own + 16 * m);
                rows[m].d_numerator.open(d_tile, own + 16 * m);
            }
            opened = true;
        }
        if (key <= last && t < call.T && key + KEYS > first[min(t, call.T - 1)])
            visit(rows, tile, tile + KEYS * WIDTH, key, key + KEYS - 1 > t || key < first_of_last,
                  decay, call);
    }
    if (t < call.T)
#pragma unroll
        for (int m = 0; m < MT; m++)
            rows[m].finish(call, b, h, q_tile + own * WIDTH, aligned.d_q);
}

template <int WIDTH, sr_score_class KIND>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    using Shape = shape<WIDTH, KIND>;
    const int tiles = (call.T + Shape::rows - 1) / Shape::rows;
    const sr_tile_order order =
        tile_order(call.B * call.H, tiles,
                   (int64_t)call.T * (call.D + call.Dv) * (int64_t)sizeof(sr_bf16), call.group);
    SR_CUDA(sr_launch(query_tiles<WIDTH, KIND>, dim3((unsigned)(order.heads * order.tiles)),
                      dim3(THREADS), Shape::shared_bytes, stream, call, order, aligned));
    return SRNN_OK;
}

srnn_status sr_mma_backward_queries(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, cudaStream_t stream) {
    return SR_MMA_START(start, call, aligned, stream);
}
