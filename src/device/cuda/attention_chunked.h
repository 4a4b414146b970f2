/* attention_chunked.h (private): attention chunk by chunk on tensor cores: pairs inside a chunk, and a state between chunks.
 *
 * A block walks the chunks of a head. The state of linear attention, S = sum_j k_j v_j^T, stays in
 * the registers of its warps as float sums; before each chunk it is rounded to bf16, times the score's coefficient,
 * in shared memory, where all rows of the chunk multiply with it. A warp has 16 rows of the chunk and 16 columns of
 * the values. Features are made of q and k where a tile arrives, so that they never lie in memory. */
#ifndef SR_CUDA_ATTENTION_CHUNKED_H
#define SR_CUDA_ATTENTION_CHUNKED_H

#include "device/cuda/attention_mma.h"

/* In bf16: linear scores with D and Dv up to 64. */
extern const sr_attention_kernel sr_cuda_attention_chunked;

/* Heads of D <= DW and Dv <= VW numbers; DW <= VW. */
template <int DW, int VW> struct sr_chunk {
    static constexpr int warps = VW / 16, threads = warps * SR_WARP;
    static constexpr int tokens = VW; /* of a chunk: 16 a warp */
    static constexpr int steps = tokens / 16;
    static constexpr int key_numbers = tokens * DW, value_numbers = tokens * VW;
};

/* Starts kernel<DW, VW> for the call's widths: SR_CHUNK_START(start, call, ...) calls start<DW, VW>(call, ...). */
#define SR_CHUNK_START(start, call, ...) \
    ((call).D <= 16 ? start<16, 64>(call, __VA_ARGS__) : start<64, 64>(call, __VA_ARGS__))

/* The cores. */
srnn_status sr_chunked_forward(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, cudaStream_t stream);
srnn_status sr_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                        const sr_mma_alignment &aligned, cudaStream_t stream);
srnn_status sr_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned, cudaStream_t stream);

/* ---- features of a tile, made where it lies ---- */

/* A row over the lanes that tile_load gives its pieces of 16 bytes. */
template <int WIDTH> struct sr_piece_row {
    static constexpr int count = 8, lanes = WIDTH / 8;
    static SR_DEVICE int column(int n) {
        return 8 * ((int)threadIdx.x % lanes) + n;
    }
    static SR_DEVICE float sum(float x) {
#pragma unroll
        for (int mask = lanes / 2; mask > 0; mask /= 2)
            x += shuffle_xor(x, mask);
        return x;
    }
    static SR_DEVICE float maximum(float x) {
#pragma unroll
        for (int mask = lanes / 2; mask > 0; mask /= 2)
            x = fmaxf(x, shuffle_xor(x, mask));
        return x;
    }
};

/* Rows of queries or keys as the caller gave them, and what makes features of them. */
struct sr_feature_rows {
    sr_head_rows<const sr_bf16> rows;
    srnn_feature feature;
    const float *inverse; /* (T, D) of unit_heads */
};

SR_DEVICE const float *inverse_rows(const sr_attention_view<sr_bf16> &call, const float *inverse,
                                    int b) {
    return inverse ? inverse + (int64_t)b * call.T * call.D : nullptr;
}

SR_DEVICE sr_feature_rows query_features(const sr_attention_view<sr_bf16> &call, int b, int h,
                                         bool aligned) {
    return {head_rows(call.q, b, h, call.D, aligned), call.choices.feature,
            inverse_rows(call, call.scratch.q_inverse, b)};
}

SR_DEVICE sr_feature_rows key_features(const sr_attention_view<sr_bf16> &call, int b, int kv,
                                       bool aligned) {
    return {head_rows(call.k, b, kv, call.D, aligned), call.choices.feature,
            inverse_rows(call, call.scratch.k_inverse, b)};
}

/* After the thread's own copies of tile_load have come, and before the barrier that shows them to others. */
template <int WIDTH, int ROWS, int THREADS>
SR_DEVICE void tile_features(sr_bf16 *tile, const sr_feature_rows &source, int t0, int past) {
    using Tile = sr_tile<WIDTH>;
    using Row = sr_piece_row<WIDTH>;
    if (source.feature == SRNN_FEATURE_IDENTITY)
        return;
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < ROWS * Tile::chunks; n += THREADS) {
        const int row = n / Tile::chunks, t = min(t0 + row, past - 1);
        sr_bf16 *const at = tile + Tile::offset(row, n % Tile::chunks);
        sr_vector<sr_bf16> vector = load_vector(at);
        float x[8];
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] = to_float(vector.number[c]);
        const int columns = source.rows.columns;
        row_feature<Row>(x, source.feature,
                         source.inverse ? source.inverse + (int64_t)t * columns : nullptr, columns);
#pragma unroll
        for (int c = 0; c < 8; c++)
            vector.number[c] = to_bf16(x[c]);
        if (t0 + row < past)
            store_vector(at, vector);
    }
}

/* ---- where documents end and how weights decay ---- */

/* What a head says about its tokens. */
struct sr_chunk_head {
    const int32_t *first; /* (T) of the batch row */
    const double *decay;  /* (T) of the kv head; NULL: none */
    int T;

    /* exp(C_to - C_from); one document has both. */
    SR_DEVICE float between(int from, int to) const {
        return decay ? exp2f((float)(decay[to] - decay[from]) * SR_LOG2_E) : 1;
    }

    /* What the state before t0 counts for token t at t0 or later: nothing where a document begins between. */
    SR_DEVICE float from_before(int t0, int t) const {
        const int inside = min(t, T - 1);
        return t0 == 0 || first[inside] >= t0 ? 0 : between(t0 - 1, inside);
    }

    /* What token t of a chunk counts in the state after `last`, its last token. */
    SR_DEVICE float until(int last, int t) const {
        return t > last || t < first[last] ? 0 : between(t, last);
    }

    /* Whether all tokens of a chunk count as 1 there. */
    SR_DEVICE bool plain_until(int t0, int last) const {
        return !decay && first[last] <= t0;
    }

    /* The same for a walk from the end: what queries from t1 on count for token t before; what query t, at t0 or later,
     * counts for tokens before t0. */
    SR_DEVICE float from_after(int t1, int t) const {
        return t1 >= T || t < first[t1] ? 0 : between(t, t1);
    }
    SR_DEVICE float back_to(int t0, int t) const {
        return t >= T || first[t] >= t0 ? 0 : between(t0, t);
    }
};

SR_DEVICE sr_chunk_head chunk_head(const sr_attention_view<sr_bf16> &call, int b, int kv) {
    return {call.first + (int64_t)b * call.T,
            call.choices.decays ? call.scratch.decay + call.row_index(call.Hkv, b, kv, 0) : nullptr,
            call.T};
}

/* x times factor; what is multiplied with nothing does not matter, even if it is not a number. */
SR_DEVICE float counted(float x, float factor) {
    return factor == 0 ? 0 : x * factor;
}

/* ---- the state ---- */

/* A: the transposed columns 16 c .. 16 c + 15 of the tile, as rows; it is summed over rows row .. row+15. */
template <int WIDTH>
SR_DEVICE void load_a_columns(uint32_t (&a)[4], const sr_bf16 *tile, int row, int c) {
    const int lane = threadIdx.x % SR_WARP;
    ldmatrix_x4_transposed(
        a, tile + row * WIDTH + sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, c, lane / 8 % 2));
}

/* What the tokens of a chunk count in the state after it, where that is not 1: 0 in a document that ended before the
 * chunk did, less with decay. Shared memory, (tokens) each; NULL: all are 1. */
struct sr_token_factors {
    const float *values, *ones; /* in S; in z */
};

/* A times the factors of tokens 16 step .., which are its columns. */
SR_DEVICE void scale_columns(uint32_t (&a)[4], const float *factor, int step) {
    const int at = 16 * step + 2 * (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float *const own = factor + at + n / 2 * 8;
        const float2 pair = unpack_bf16(a[n]);
        a[n] = pack_bf16(counted(pair.x, own[0]), counted(pair.y, own[1]));
    }
}

/* A warp's part of S^T: 16 columns of the values by all of the keys; and of z = sum_j k_j the 16 numbers of its own
 * number, where rows are summed. */
template <int DW, int VW> struct sr_chunk_state {
    static constexpr int P = DW / 8;
    float s[P][4];
    float z[2][4]; /* each row is the same */

    SR_DEVICE void clear() {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int n = 0; n < P; n++)
                s[n][e] = 0;
            z[0][e] = z[1][e] = 0;
        }
    }

    SR_DEVICE void multiply(float factor) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int n = 0; n < P; n++)
                s[n][e] *= factor;
            z[0][e] *= factor;
            z[1][e] *= factor;
        }
    }

    /* To what it counts after a chunk, or before it where the walk is from the end. */
    SR_DEVICE void keep(const sr_chunk_head &head, float factor) {
        if (factor == 0)
            clear();
        else if (head.decay)
            multiply(factor);
    }

    /* Adds a chunk of keys and values. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, bool sums,
                       const sr_token_factors &factors) {
        const int warp = (int)threadIdx.x / SR_WARP;
#pragma unroll 1
        for (int step = 0; step < sr_chunk<DW, VW>::steps; step++) {
            const uint32_t one = 0x3f803f80u;
            uint32_t a[4], ones[4] = {one, one, one, one};
            load_a_columns<VW>(a, values, 16 * step, warp);
            if (factors.values)
                scale_columns(a, factors.values, step);
            if (factors.ones)
                scale_columns(ones, factors.ones, step);
#pragma unroll
            for (int c = 0; c < DW / 16; c++) {
                uint32_t b[4];
                load_b_rows<DW>(b, keys, 16 * step, c);
                mma_m16n8k16(s[2 * c], a, b);
                mma_m16n8k16(s[2 * c + 1], a, b + 2);
                if (sums && c == warp) {
                    mma_m16n8k16(z[0], ones, b);
                    mma_m16n8k16(z[1], ones, b + 2);
                }
            }
        }
    }

    /* Times `factor` and rounded: `tile` (VW, DW) = S^T, `column` (DW) = z. Complete after a barrier. */
    SR_DEVICE void publish(sr_bf16 *tile, sr_bf16 *column, float factor) const {
        const int lane = (int)threadIdx.x % SR_WARP, warp = (int)threadIdx.x / SR_WARP;
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = 16 * warp + lane / 4 + 8 * half;
                sr_bf16 *const to = tile + sr_tile<DW>::offset(row, n) + 2 * (lane % 4);
                *reinterpret_cast<uint32_t *>(to) =
                    pack_bf16(factor * s[n][2 * half], factor * s[n][2 * half + 1]);
            }
        if (warp < DW / 16 && lane < 4)
#pragma unroll
            for (int n = 0; n < 2; n++)
                *reinterpret_cast<uint32_t *>(column + 16 * warp + 8 * n + 2 * lane) =
                    pack_bf16(factor * z[n][0], factor * z[n][1]);
    }
};

/* ---- rows ---- */

/* Multiplies row `half` of a C of P products side by side. */
template <int P> SR_DEVICE void scale_row(float (&c)[P][4], int half, float factor) {
#pragma unroll
    for (int n = 0; n < P; n++) {
        c[n][2 * half] = counted(c[n][2 * half], factor);
        c[n][2 * half + 1] = counted(c[n][2 * half + 1], factor);
    }
}

/* Rows t .. t+15, those before `past`, = C (16 x 8 P). By a warp, through 16 rows of 32 numbers that no other uses. */
enum { SR_STORE_COLUMNS = 32 };
template <int P>
SR_DEVICE void chunk_store(sr_head_rows<sr_bf16> rows, const float (&c)[P][4], sr_bf16 *tile, int t,
                           int past) {
    constexpr int PIECES = P < SR_STORE_COLUMNS / 8 ? P : SR_STORE_COLUMNS / 8;
#pragma unroll
    for (int n = 0; n < P; n += PIECES) {
        float part[PIECES][4];
#pragma unroll
        for (int m = 0; m < 4 * PIECES; m++)
            part[m / 4][m % 4] = c[n + m / 4][m % 4];
        tile_store<8 * PIECES>(rows, part, tile, t, past);
        rows.rows += 8 * PIECES;
        rows.columns -= 8 * PIECES;
    }
}

/* Gradients of features, rows t .. t+15, to those of q or k, whose rows `raw` are. */
template <int WIDTH>
SR_DEVICE void features_back(float (&c)[WIDTH / 8][4], const sr_strided<const sr_bf16> &raw,
                             const sr_attention_view<sr_bf16> &call, int b, int h, int t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[WIDTH / 4];
        row_of(x, c, half);
        feature_gradient<sr_quad_row<WIDTH>>(x, raw.at(b, h, min(t + piece_row(half), call.T - 1)),
                                             call);
        set_row(c, x, half);
    }
}

/* dot[i] = <feature of row i, its gradient>, which is sum_j w'_ij dw'_ij where weights are linear in the feature; rows
 * t .. t+15. */
template <int WIDTH>
SR_DEVICE void linear_dots(float *dot, const float (&gradient)[WIDTH / 8][4],
                           const sr_feature_rows &source, int t, int T) {
    using Row = sr_quad_row<WIDTH>;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = t + piece_row(half), inside = min(i, T - 1), columns = source.rows.columns;
        float x[Row::count], g[Row::count];
        row_load<Row>(x, source.rows.rows + inside * source.rows.time, columns);
        row_feature<Row>(x, source.feature,
                         source.inverse ? source.inverse + (int64_t)inside * columns : nullptr,
                         columns);
        row_of(g, gradient, half);
        const float all = row_dot<Row>(x, g);
        if (threadIdx.x % 4 == 0 && i < T)
            dot[i] = all;
    }
}

#endif
