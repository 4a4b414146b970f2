/* linear.h (private): chunked linear attention on tensor cores: pairs inside a chunk, and a
 * recurrent state between chunks.
 *
 * A block walks the chunks of a head. The state of linear attention, S = sum_j k_j v_j^T, stays in
 * the registers of its warps as float sums; before each chunk it is rounded to bf16 in shared
 * memory, where all rows of the chunk multiply with it. A warp has 16 rows of the chunk and 16
 * columns of the values.
 *
 * There are four walks of one kind: rows X of a chunk get C = X M + sum over pieces of (X Y^T) Z,
 * where M, the state, is the sum of Y Z^T over the chunks walked before:
 *     outputs              X = q    Y = k    Z = v     forwards
 *     gradients of q       X = dN   Y = v    Z = k     forwards
 *     gradients of v       X = k    Y = q    Z = dN    from the end
 *     gradients of k       X = v    Y = dN   Z = q     from the end
 *
 * GEMMs and bytes are few, so other instructions decide the time: a thread copies the same columns
 * of each tile and computes features of what it copied itself, and factors of a whole row are
 * multiplied once. */
#ifndef SR_ATTENTION_CUDA_LINEAR_LINEAR_H
#define SR_ATTENTION_CUDA_LINEAR_LINEAR_H

#include "attention/cuda/mma/mma.h"

/* In bf16: linear scores with D and Dv up to 64. */
extern const sr_attention_kernel sr_cuda_attention_chunked;

/* Tokens of a chunk, and the most that D and Dv can be. */
enum { SR_CHUNK = 64, SR_CHUNK_ROWS = SR_CHUNK / 16, SR_CHUNK_NUMBERS = SR_CHUNK * SR_CHUNK };

SR_DEVICE int warp_number() {
    return of_warp((int)threadIdx.x / SR_WARP);
}

/* The first of a warp's 16 rows of a chunk. Rows have 1 to SR_CHUNK_ROWS pieces to visit: warps
 * rotate through the places, since warp n of all blocks is in the same quarter of a
 * multiprocessor. */
SR_DEVICE int chunk_own(int warp, int chunk) {
    return 16 * ((warp + chunk) % SR_CHUNK_ROWS);
}

/* Numbers of a state in the register layout of its warps. */
enum { SR_STATE_NUMBERS = 2 * SR_CHUNK_ROWS * SR_WARP * 20 };

/* Heads that are too few to fill a GPU, or the remainder of many after full waves, are cut into
 * segments that are walked in parallel, once the states before them are known. Heads are those of
 * keys and values, b * Hkv + kv; each has `group` blocks, or that many per segment. */
struct sr_chunk_segments {
    int heads, group, chunks; /* chunks of a head */
    int whole;                /* number of heads that are not cut */
    int count, each;          /* segments of the others; chunks of a segment */
    float *states;            /* (heads - whole, count, SR_STATE_NUMBERS) */
    /* states holds what the segment before each adds: a walk sums them as it reads them */
    bool apart;

    SR_BOTH int cut_blocks(int segments) const {
        return (heads - whole) * group * segments;
    }
    SR_BOTH int blocks() const {
        return whole * group + cut_blocks(count);
    }
    SR_DEVICE float *state(int head, int segment) const {
        return states + ((int64_t)(head - whole) * count + segment) * SR_STATE_NUMBERS;
    }
};

/* The walk of a block: chunks start .. end-1 of a head, where row = (b * Hkv + kv) * group + its
 * place in the group. */
struct sr_chunk_walk {
    int row, segment, start, end;
};

SR_DEVICE sr_chunk_walk chunk_walk(const sr_chunk_segments &segments, int block) {
    const int before = segments.whole * segments.group, cut = block - before;
    if (cut < 0)
        return {block, 0, 0, segments.chunks};
    const int row = of_warp(cut / segments.count), segment = cut - row * segments.count;
    const int start = segment * segments.each;
    return {before + row, segment, start, min(start + segments.each, segments.chunks)};
}

/* Whether the per-row numbers of the backward pass follow from <d_o, numerator>, which for a query
 * is the dot product of its features and their gradient: then numerators are not saved, and the dQ
 * kernel computes these numbers. */
static inline bool sr_chunked_plain(const sr_attention_view<sr_bf16> &call) {
    return call.choices.norm == SRNN_NORM_NONE;
}

/* The cores; each has workspace for states, and computes those it starts from. */
struct sr_chunk_workspace {
    int multiprocessors;
    float *states;
};
srnn_status sr_chunked_forward(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, const sr_chunk_workspace &workspace,
                               cudaStream_t stream);
srnn_status sr_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                        const sr_mma_alignment &aligned,
                                        const sr_chunk_workspace &workspace, cudaStream_t stream);
srnn_status sr_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned,
                                     const sr_chunk_workspace &workspace, cudaStream_t stream);

/* Blocks of four warps for which registers are allotted, where weights do not decay; before Hopper
 * shared memory has no room for more than two or three. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SR_CHUNK_BLOCKS 2
#else
#define SR_CHUNK_BLOCKS 4
#endif

/* Resident blocks of the cores per multiprocessor. */
enum { SR_FORWARD_BLOCKS = 4, SR_QUERY_BLOCKS = 3, SR_KEY_BLOCKS = 2 };

/* The segments where `blocks` blocks are resident; `states` is not set. */
sr_chunk_segments sr_chunked_segments(int heads, int group, int T, int blocks);

/* The number of states that such segments need workspace for. */
size_t sr_chunked_states(const srnn_problem *problem, int group, int blocks);

/* Fill segments.states: the states of keys and values before all segments but the first; of queries
 * and gradients of numerators after all but the last, for a walk from the end, where heads have no
 * group; and the scan, from what the segment before each adds (unless it stays `apart`) to the
 * states before segments, for a walk forwards or from the end. */
srnn_status sr_chunked_key_states(const sr_attention_view<sr_bf16> &call,
                                  const sr_mma_alignment &aligned,
                                  const sr_chunk_segments &segments, cudaStream_t stream);
srnn_status sr_chunked_query_states(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned,
                                    const sr_chunk_segments &segments, cudaStream_t stream);
srnn_status sr_chunked_scan(const sr_attention_view<sr_bf16> &call,
                            const sr_chunk_segments &segments, bool from_end, cudaStream_t stream);

/* ---- tiles in flight, and features computed in place ---- */

/* The feature map of the rows of q or k. */
struct sr_feature_map {
    srnn_feature feature;
    const float *inverse; /* (T, D) of unit_heads; else NULL */
};

SR_DEVICE sr_feature_map query_map(const sr_attention_view<sr_bf16> &call, int b) {
    const float *const inverse = call.scratch.q_inverse;
    return {call.choices.feature, inverse ? inverse + (int64_t)b * call.T * call.D : nullptr};
}

SR_DEVICE sr_feature_map key_map(const sr_attention_view<sr_bf16> &call, int b) {
    const float *const inverse = call.scratch.k_inverse;
    return {call.choices.feature, inverse ? inverse + (int64_t)b * call.T * call.D : nullptr};
}

/* A row over the lanes that have its pieces of 16 bytes. */
struct sr_piece_row {
    static constexpr int count = 8, lanes = SR_CHUNK / 8;
    static SR_DEVICE int column(int n) {
        return 8 * (thread_again() % lanes) + n;
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

/* One head's rows, chunk by chunk; a thread of the block moves 8 columns of `pieces` rows of each.
 * Addresses are recomputed, not kept in registers, which are scarce. */
template <int THREADS> struct sr_chunk_tiles {
    using Tile = sr_tile<SR_CHUNK>;
    static constexpr int apart = THREADS / Tile::chunks, pieces = SR_CHUNK / apart;
    static_assert(apart % 8 == 0, "all pieces of a thread have the same place in their rows");

    sr_head_rows<const sr_bf16> head;

    /* The thread's first row; where its first piece lies in a tile; how many of its columns
     * exist. */
    static SR_DEVICE int row() {
        return thread_again() / Tile::chunks;
    }
    static SR_DEVICE sr_bf16 *place(sr_bf16 *tile) {
        return tile + Tile::offset(row(), thread_again() % Tile::chunks);
    }
    SR_DEVICE int count() const {
        return max(0, min(8, head.columns - sr_piece_row::column(0)));
    }

    /* Starts the cp.async copy of rows t0 .. t0+SR_CHUNK-1; those from `past` on and columns past
     * the end become zero. Complete after cp_async_wait and a barrier. */
    SR_DEVICE void load(sr_bf16 *tile, int t0, int past) const {
        if (!head.aligned || head.columns < SR_CHUNK || t0 + SR_CHUNK > past) {
            load_some(tile, t0, past);
            return;
        }
        const sr_bf16 *from = head.rows + (t0 + row()) * head.time + sr_piece_row::column(0);
        sr_bf16 *const to = place(tile);
#pragma unroll
        for (int n = 0; n < pieces; n++) {
            cp_async_16(to + n * apart * SR_CHUNK, from);
            from += apart * head.time;
        }
    }

    /* The same where part of it does not exist, or is not aligned to 16 bytes. */
    SR_DEVICE void load_some(sr_bf16 *tile, int t0, int past) const {
#pragma unroll 1
        for (int n = 0; n < pieces; n++) {
            const int t = t0 + row() + n * apart, exist = t < past ? count() : 0;
            const sr_bf16 *const from =
                head.rows + (exist > 0 ? t * head.time + sr_piece_row::column(0) : 0);
            sr_bf16 *const to = place(tile) + n * apart * SR_CHUNK;
            if (head.aligned) {
                cp_async_16(to, from, 2 * exist);
                continue;
            }
            sr_vector<sr_bf16> vector = {};
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (c < exist)
                    vector.number[c] = from[c];
            store_vector(to, vector);
        }
    }

    /* Zeroes tokens of other documents, which do not count in a state: their factor is 0, but 0
     * times NaN is NaN. By all threads, between barriers. */
    static SR_DEVICE void clear(sr_bf16 *tile, const float *factor) {
#pragma unroll 1
        for (int n = 0; n < pieces; n++)
            if (factor[row() + n * apart] == 0)
                store_vector(place(tile) + n * apart * SR_CHUNK, sr_vector<sr_bf16>{});
    }

    /* change(x): the 8 numbers of the piece at `at`. */
    template <class Change> static SR_DEVICE void change_piece(sr_bf16 *at, const Change &change) {
        sr_vector<uint32_t> pairs = load_vector(reinterpret_cast<uint32_t *>(at));
        float x[8];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float2 pair = unpack_bf16(pairs.number[c]);
            x[2 * c] = pair.x;
            x[2 * c + 1] = pair.y;
        }
        change(x);
#pragma unroll
        for (int c = 0; c < 4; c++)
            pairs.number[c] = pack_bf16(x[2 * c], x[2 * c + 1]);
        store_vector(reinterpret_cast<uint32_t *>(at), pairs);
    }

    /* Features of the thread's own pieces, which become zero past the last column, and finite from
     * row `past` on; piece n times scale(n). After the thread's own copies have landed, and before
     * the barrier that publishes them. */
    template <class Scale>
    SR_DEVICE void features(sr_bf16 *tile, const sr_feature_map &map, int t0, int past,
                            const Scale &scale) const {
        sr_bf16 *const own = place(tile);
        if (map.feature == SRNN_FEATURE_ELU1) {
            const int exist = count();
#pragma unroll
            for (int n = 0; n < pieces; n++)
                change_piece(own + n * apart * SR_CHUNK, [&](float(&x)[8]) {
#pragma unroll
                    for (int c = 0; c < 8; c++)
                        x[c] = elu1(x[c]) * scale(n);
                    if (exist < 8)
#pragma unroll
                        for (int c = 0; c < 8; c++)
                            x[c] = c < exist ? x[c] : 0;
                });
            return;
        }
#pragma unroll 1
        for (int n = 0; n < pieces; n++)
            change_piece(own + n * apart * SR_CHUNK, [&](float(&x)[8]) {
                const int t = min(t0 + row() + n * apart, past - 1);
                row_feature<sr_piece_row>(x, map.feature,
                                          map.inverse ? map.inverse + (int64_t)t * head.columns
                                                      : nullptr,
                                          head.columns);
                row_multiply<sr_piece_row>(x, scale(n));
            });
    }
    SR_DEVICE void features(sr_bf16 *tile, const sr_feature_map &map, int t0, int past) const {
        if (map.feature != SRNN_FEATURE_IDENTITY)
            features(tile, map, t0, past, [](int) { return 1.0f; });
    }
};

/* ---- documents and decay ---- */

/* Document starts and decays of a head's tokens. */
template <bool DECAYS> struct sr_chunk_head {
    const int32_t *first; /* (T) of the batch row */
    /* (T) of the KV head; read only where weights decay; NULL: they do not */
    const double *decay;
    int T;

    /* exp(C_to - C_from), within one document. */
    SR_DEVICE float between(int from, int to) const {
        if constexpr (DECAYS)
            return decay ? exp2f((float)(decay[to] - decay[from]) * SR_LOG2_E) : 1;
        return 1;
    }

    /* The weight of the state before t0 for token t at t0 or later: 0 where a document begins in
     * between. */
    SR_DEVICE float from_before(int t0, int t) const {
        const int inside = min(t, T - 1);
        return t0 == 0 || first[inside] >= t0 ? 0 : between(t0 - 1, inside);
    }

    /* The weight of token t of a chunk in the state after `last`, its last token. */
    SR_DEVICE float until(int last, int t) const {
        return t > last || t < first[last] ? 0 : between(t, last);
    }

    /* The weight of the state before t0 in the state after `last`; the document of `last` begins at
     * `begins`. */
    SR_DEVICE float across(int t0, int last, int begins) const {
        return begins < t0 ? between(t0 - 1, last) : 0;
    }

    /* The same for a walk from the end: the weight of queries from t1 on for token t before them;
     * of query t, at t0 or later, for tokens before t0. */
    SR_DEVICE float from_after(int t1, int t) const {
        return t1 >= T || t < first[t1] ? 0 : between(t, t1);
    }
    SR_DEVICE float back_to(int t0, int t) const {
        return t >= T || first[t] >= t0 ? 0 : between(t0, t);
    }

    /* The weight before t0 of the state of queries from t1 on, whose document begins at
     * `begins`. */
    SR_DEVICE float back_across(int t0, int t1, int begins) const {
        return begins < t0 ? between(t0, t1) : 0;
    }
};

template <bool DECAYS>
SR_DEVICE sr_chunk_head<DECAYS> chunk_head(const sr_attention_view<sr_bf16> &call, int b, int kv) {
    const double *const decay = DECAYS ? call.scratch.decay : nullptr;
    return {call.first + (int64_t)b * call.T,
            decay ? decay + call.row_index(call.Hkv, b, kv, 0) : nullptr, call.T};
}

/* The weight of a state before segment n of a walk in the state after it. */
template <bool DECAYS>
SR_DEVICE float factor_across(const sr_chunk_head<DECAYS> &head, const sr_chunk_segments &segments,
                              int segment, bool from_end) {
    const int t0 = segment * segments.each * SR_CHUNK, t1 = t0 + segments.each * SR_CHUNK;
    if (!from_end)
        return t1 <= head.T ? head.across(t0, t1 - 1, head.first[t1 - 1]) : 0;
    return t1 < head.T ? head.back_across(t0, t1, head.first[t1]) : 0;
}

/* Weights of a 16 x 16 piece times exp(sign (C_row - C_column)). */
template <bool DECAYS>
SR_DEVICE void decay_pairs(float (&w)[SR_PIECE], const sr_chunk_head<DECAYS> &head, int row,
                           int column, float sign) {
    if constexpr (DECAYS) {
        if (!head.decay)
            return;
        sr_piece_decay decay;
        decay.open(head.decay, row, column, head.T, sign * SR_LOG2_E);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            w[e] *= exp2_fast(decay.row_less_column(e));
    }
}

/* Weight 0 for keys that query t + row of a 16 x 16 piece does not see: later ones, and those of
 * other documents where some begin in the chunk. Pieces from key `key` on, up to the queries'
 * own. */
template <bool DECAYS>
SR_DEVICE void hide_keys(float (&w)[SR_PIECE], const sr_chunk_head<DECAYS> &head, int t, int key,
                         bool documents) {
    if (key == t)
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            w[e] = piece_column(e) > piece_row(e / 2 % 2) ? 0 : w[e];
    if (!documents)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int first = head.first[min(t + piece_row(half), head.T - 1)];
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            if (e / 2 % 2 == half)
                w[e] = key + piece_column(e) < first ? 0 : w[e];
    }
}

/* The same for the queries of a piece from `query` on, some of which do not see key t + row. */
template <bool DECAYS>
SR_DEVICE void hide_queries(float (&w)[SR_PIECE], const sr_chunk_head<DECAYS> &head, int t,
                            int query, bool documents) {
    if (query == t)
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            w[e] = piece_row(e / 2 % 2) > piece_column(e) ? 0 : w[e];
    if (!documents)
        return;
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++) {
        const int first = head.first[min(query + piece_column(e), head.T - 1)];
        w[e] = t + piece_row(e / 2 % 2) < first ? 0 : w[e];
    }
}

/* x times factor, and 0 for factor 0 even if x is NaN or infinite. */
SR_DEVICE float counted(float x, float factor) {
    return factor == 0 ? 0 : x * factor;
}

/* Row `half` of the lane's two of C times factor, which may be 0. */
template <int P> SR_DEVICE void scale_row(float (&c)[P][4], int half, float factor) {
#pragma unroll
    for (int n = 0; n < P; n++) {
        c[n][2 * half] = counted(c[n][2 * half], factor);
        c[n][2 * half + 1] = counted(c[n][2 * half + 1], factor);
    }
}

/* Stores C to P pieces of 16 rows of a tile, from column 8 `begin` on. One warp; complete after a
 * barrier or __syncwarp. */
template <int WIDTH, int P>
SR_DEVICE void pieces_to_tile(sr_bf16 *rows, const float (&c)[P][4], int begin = 0) {
    const int lane = thread_again() % SR_WARP;
#pragma unroll
    for (int n = 0; n < P; n += 2) {
        uint32_t a[4];
        pack_a(a, c[n], c[n + 1]);
        stmatrix_x4(rows + sr_tile<WIDTH>::offset(lane % 16, begin + n + lane / 16), a);
    }
}

/* ---- the recurrent state ---- */

/* A: the transposed columns 16 c .. 16 c + 15 of the tile, as rows; the sum is over rows row ..
 * row+15. */
template <int WIDTH>
SR_DEVICE void load_a_columns(uint32_t (&a)[4], const sr_bf16 *tile, int row, int c) {
    const int lane = threadIdx.x % SR_WARP;
    ldmatrix_x4_transposed(a,
                           tile + row * WIDTH +
                               sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, c, lane / 8 % 2));
}

/* The weights of the tokens of a chunk in the state after it. Shared memory, (tokens) each; NULL:
 * all are 1. */
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

/* A warp's part of S^T: 16 columns of the values by all columns of the keys, or half of them where
 * eight warps share it; and for row sums, 16 numbers of z = sum_j k_j. */
template <int WARPS> struct sr_chunk_state {
    static constexpr int P = SR_CHUNK / 8 * SR_CHUNK_ROWS / WARPS;
    float s[P][4];
    float z[4]; /* rows 0 .. 7 are alike: its first 8 numbers; rows 8 .. 15: the others */

    /* the columns of values / 16, which are also those of z; the first of keys / 16 */
    int value_at, key_at;

    SR_DEVICE explicit sr_chunk_state(int warp)
        : value_at(warp % SR_CHUNK_ROWS), key_at(warp / SR_CHUNK_ROWS * (P / 2)) {
        each([](float &x, int) { x = 0; });
    }

    /* use(number of the state, its place among SR_STATE_NUMBERS). */
    template <class Use> SR_DEVICE void each(const Use &use) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int n = 0; n < P; n++)
                use(s[n][e], (4 * n + e) * WARPS * SR_WARP + (int)threadIdx.x);
            use(z[e], (4 * P + e) * WARPS * SR_WARP + (int)threadIdx.x);
        }
    }
    SR_DEVICE void multiply(float factor) {
        each([&](float &x, int) { x = counted(x, factor); });
    }
    SR_DEVICE void put(float *numbers) {
        each([&](float &x, int at) { numbers[at] = x; });
    }
    SR_DEVICE void get(const float *numbers) {
        each([&](float &x, int at) { x = numbers[at]; });
    }

    /* S^T += V^T K of a chunk. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, bool sums,
                       const sr_token_factors &factors) {
#pragma unroll 1
        for (int step = 0; step < SR_CHUNK_ROWS; step++) {
            uint32_t a[4], b[P / 2][4];
            load_a_columns<SR_CHUNK>(a, values, 16 * step, value_at);
#pragma unroll
            for (int n = 0; n < P / 2; n++)
                load_b_rows<SR_CHUNK>(b[n], keys, 16 * step, key_at + n);
            if (factors.values)
                scale_columns(a, factors.values, step);
#pragma unroll
            for (int n = 0; n < P; n++)
                mma_m16n8k16(s[n], a, b[n / 2] + n % 2 * 2);
            if (sums)
                add_ones(keys, factors.ones, step);
        }
    }

    /* z += the tokens of a step, times their factors. */
    SR_DEVICE void add_ones(const sr_bf16 *keys, const float *factor, int step) {
        const uint32_t one = 0x3f803f80u;
        uint32_t b[4], upper[4] = {one, 0, one, 0};
        load_b_rows<SR_CHUNK>(b, keys, 16 * step, value_at);
        if (factor)
            scale_columns(upper, factor, step);
        const uint32_t lower[4] = {0, upper[0], 0, upper[2]};
        mma_m16n8k16(z, upper, b);
        mma_m16n8k16(z, lower, b + 2);
    }

    /* Publishes the state in bf16: `tile` (values, keys) = S^T, `column` (keys) = z. Complete after
     * a barrier. */
    SR_DEVICE void publish(sr_bf16 *tile, sr_bf16 *column) const {
        const int lane = thread_again() % SR_WARP, warp = thread_again() / SR_WARP;
        const int row = 16 * (warp % SR_CHUNK_ROWS);
        pieces_to_tile<SR_CHUNK>(tile + row * SR_CHUNK, s, warp / SR_CHUNK_ROWS * P);
        if (warp < SR_CHUNK_ROWS && lane < 4)
#pragma unroll
            for (int n = 0; n < 2; n++)
                *reinterpret_cast<uint32_t *>(column + row + 8 * n + 2 * lane) =
                    pack_bf16(z[2 * n], z[2 * n + 1]);
    }
};

/* ---- rows ---- */

/* Copies 16 rows of a tile to rows t .. t+15 in global memory, those before `past`; one warp. */
template <int WIDTH>
SR_DEVICE void rows_out(const sr_head_rows<sr_bf16> &head, const sr_bf16 *rows, int t, int past) {
    constexpr int CHUNKS = WIDTH / 8, APART = SR_WARP / CHUNKS;
    const int lane = thread_again() % SR_WARP, row = lane / CHUNKS, chunk = lane % CHUNKS;
    const int count = head.columns - 8 * chunk;
    sr_bf16 *to = head.rows + (t + row) * head.time + 8 * chunk;
    if (head.aligned && count >= 8) {
#pragma unroll
        for (int n = 0; n < 16 / APART; n++) {
            if (t + row + n * APART < past)
                store_vector(to,
                             load_vector(rows + sr_tile<WIDTH>::offset(row + n * APART, chunk)));
            to += APART * head.time;
        }
        return;
    }
#pragma unroll 1
    for (int n = 0; n < 16 / APART && t + row + n * APART < past; n++) {
        const sr_vector<sr_bf16> vector =
            load_vector(rows + sr_tile<WIDTH>::offset(row + n * APART, chunk));
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count)
                to[i] = vector.number[i];
        to += APART * head.time;
    }
}

/* Stores C to rows t .. t+15, those before `past`, COLUMNS columns at a time. One warp, through 16
 * rows of COLUMNS that no other warp uses. */
template <int COLUMNS>
SR_DEVICE void store_rows(sr_head_rows<sr_bf16> to, const float (&c)[SR_CHUNK / 8][4], int t,
                          sr_bf16 *rows, int past) {
#pragma unroll
    for (int begin = 0; begin < SR_CHUNK; begin += COLUMNS) {
        float part[COLUMNS / 8][4];
#pragma unroll
        for (int m = 0; m < COLUMNS / 2; m++)
            part[m / 4][m % 4] = c[begin / 8 + m / 4][m % 4];
        __syncwarp();
        pieces_to_tile<COLUMNS>(rows, part);
        __syncwarp();
        rows_out<COLUMNS>(to, rows, t, past);
        to.rows += COLUMNS;
        to.columns -= COLUMNS;
    }
}

/* Where 16 rows of a warp begin. */
struct sr_rows_place {
    int b, h, t;
};

/* Epilogue of query rows: from numerators C and the lane's share of the row sums, what is saved for
 * the backward pass and the outputs. One warp, through 16 rows of COLUMNS that no other warp
 * uses. */
template <int COLUMNS>
SR_DEVICE void store_outputs(const sr_attention_view<sr_bf16> &call,
                             const sr_mma_alignment &aligned, const sr_rows_place &place,
                             float (&c)[SR_CHUNK / 8][4], const float (&sum)[2], sr_bf16 *tile) {
    const int b = place.b, h = place.h, t = place.t;
    const int64_t at = call.row_index(call.H, b, h, 0);
    if (call.numerator)
        store_rows<COLUMNS>({call.numerator + at * call.Dv, call.Dv, call.Dv, aligned.numerator}, c,
                            t, tile, call.T);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = t + piece_row(half);
        const float all = call.choices.sums_rows ? quad_sum(sum[half]) : 0;
        const sr_row_facts facts = row_facts(call, b, h, min(i, call.T - 1), all, 0);
        if (call.row_sum && threadIdx.x % 4 == 0 && i < call.T) {
            call.row_sum[at + i] = facts.row_sum;
            call.maximum[at + i] = 0;
        }
        float o[SR_CHUNK / 4];
        row_of(o, c, half);
        row_output<sr_quad_row<SR_CHUNK>>(o, call, facts);
        set_row(c, o, half);
    }
    store_rows<COLUMNS>(head_rows(call.o, b, h, call.Dv, aligned.o), c, t, tile, call.T);
}

/* C += factor[row] z. */
SR_DEVICE void add_column(float (&c)[SR_CHUNK / 8][4], const sr_bf16 *column,
                          const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 8; n++) {
        const sr_bf16 *const z = column + 8 * n + 2 * (threadIdx.x % 4);
        const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(z));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            c[n][2 * half] = fmaf(factor[half], pair.x, c[n][2 * half]);
            c[n][2 * half + 1] = fmaf(factor[half], pair.y, c[n][2 * half + 1]);
        }
    }
}

/* 16 rows of a warp: X and the accumulators C. */
struct sr_linear_rows {
    static constexpr int P = SR_CHUNK / 8;
    sr_operand<SR_CHUNK, false> x;
    float c[P][4];
    int t; /* first row */

    SR_DEVICE int row(int half) const {
        return t + piece_row(half);
    }

    SR_DEVICE void open(const sr_bf16 *tile, int own, int t0) {
        x.open(tile, own);
        t = t0 + own;
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[n][e] = 0;
    }

    /* C += X S, for rows with as many columns as keys. */
    SR_DEVICE void read_values(const sr_bf16 *state) {
#pragma unroll
        for (int k = 0; k < SR_CHUNK / 16; k++) {
            uint32_t a[4];
            x.get(a, k);
#pragma unroll
            for (int n = 0; n < P; n += 2) {
                uint32_t b[4];
                load_b<SR_CHUNK>(b, state, 8 * n, k);
                mma_m16n8k16(c[n], a, b);
                mma_m16n8k16(c[n + 1], a, b + 2);
            }
        }
    }

    /* C += X S^T, for rows with as many columns as values. */
    SR_DEVICE void read_keys(const sr_bf16 *state) {
#pragma unroll
        for (int k = 0; k < SR_CHUNK / 16; k++) {
            uint32_t a[4];
            x.get(a, k);
            multiply_rows<SR_CHUNK>(c, a, state, 16 * k);
        }
    }

    /* Row `half` times factor; scale() is for factors that may be 0. */
    SR_DEVICE void multiply(int half, float factor) {
#pragma unroll
        for (int n = 0; n < P; n++) {
            c[n][2 * half] *= factor;
            c[n][2 * half + 1] *= factor;
        }
    }
    SR_DEVICE void scale(int half, float factor) {
        scale_row(c, half, factor);
    }

    /* Pairs with rows at .. at+15 of Y and Z; weigh(w) turns the 16 x 16 dot products of X and Y
     * into weights; AHEAD of their four steps are loaded at a time. */
    template <int AHEAD = 4, class Weigh>
    SR_DEVICE void visit(const sr_bf16 *y, const sr_bf16 *z, int at, const Weigh &weigh) {
        float w[SR_PIECE] = {};
        uint32_t a[4], b[4];
#pragma unroll AHEAD
        for (int k = 0; k < SR_CHUNK / 16; k++) {
            load_b<SR_CHUNK>(b, y, at, k);
            x.get(a, k);
            mma_m16n8k16(w, a, b);
            mma_m16n8k16(w + 4, a, b + 2);
        }
        weigh(w);
        pack_piece(a, w);
        multiply_rows<SR_CHUNK>(c, a, z, at);
    }

    template <int COLUMNS>
    SR_DEVICE void store(const sr_head_rows<sr_bf16> &to, sr_bf16 *rows, int past) const {
        store_rows<COLUMNS>(to, c, t, rows, past);
    }
};

/* Starts the cp.async copy of row scalars t0 .. t0+SR_CHUNK-1; those from `past` on become zero.
 * Complete after cp_async_wait and a barrier. */
SR_DEVICE void load_row_numbers(float *to, const float *from, int t0, int past) {
    const int n = (int)threadIdx.x;
    if (n < SR_CHUNK)
        cp_async_4(to + n, from + min(t0 + n, past - 1), t0 + n < past ? 4 : 0);
}

/* ---- gradients of features ---- */

/* Whether features_back reads the features. */
SR_DEVICE bool features_need_rows(srnn_feature feature) {
    return feature == SRNN_FEATURE_RELU || feature == SRNN_FEATURE_ELU1;
}

/* use(n, e, f) for the features of 16 rows of a tile, where C has c[n][e]. */
template <class Use> SR_DEVICE void each_feature(const sr_bf16 *rows, const Use &use) {
#pragma unroll
    for (int k = 0; k < SR_CHUNK / 16; k++) {
        uint32_t a[4];
        load_a<SR_CHUNK>(a, rows, 0, k);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float2 pair = unpack_bf16(a[m]);
            use(2 * k + m / 2, m % 2 * 2, pair.x);
            use(2 * k + m / 2, m % 2 * 2 + 1, pair.y);
        }
    }
}

/* Gradients of features to those of q or k. `rows`: the features in shared memory; `raw`: their 16
 * rows of q or k. */
SR_DEVICE void features_back(float (&c)[SR_CHUNK / 8][4], const sr_bf16 *rows,
                             const sr_head_rows<const sr_bf16> &raw, srnn_feature feature,
                             int past) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH: /* the kernels here do not support these */
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return;
    case SRNN_FEATURE_RELU:
        each_feature(rows, [&](int n, int e, float f) { c[n][e] = f > 0 ? c[n][e] : 0; });
        return;
    case SRNN_FEATURE_ELU1: /* x + 1 above 1, where the slope is 1, and exp(x) below */
        each_feature(rows, [&](int n, int e, float f) { c[n][e] *= f < 1 ? f : 1; });
        return;
    case SRNN_FEATURE_UNIT:
#pragma unroll
        for (int half = 0; half < 2; half++) {
            using Row = sr_quad_row<SR_CHUNK>;
            float g[Row::count], x[Row::count];
            row_of(g, c, half);
            row_load<Row>(x, raw.rows + min(piece_row(half), past - 1) * raw.time, raw.columns);
            row_feature_backward<Row>(g, x, feature);
            set_row(c, g, half);
        }
        return;
    }
}

/* <feature of a row, its gradient> for the lane's two of 16 rows. */
SR_DEVICE void feature_dots(float (&dot)[2], const float (&gradient)[SR_CHUNK / 8][4],
                            const sr_bf16 *rows) {
    dot[0] = dot[1] = 0;
    each_feature(rows,
                 [&](int n, int e, float f) { dot[e / 2] = fmaf(f, gradient[n][e], dot[e / 2]); });
    dot[0] = quad_sum(dot[0]);
    dot[1] = quad_sum(dot[1]);
}

/* dot[i] = <feature of row i, its gradient>, which is sum_j w'_ij dw'_ij where weights are linear
 * in the feature; the first `past` of 16 rows. */
SR_DEVICE void linear_dots(float *dot, const float (&gradient)[SR_CHUNK / 8][4],
                           const sr_bf16 *rows, int past) {
    float own[2];
    feature_dots(own, gradient, rows);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (threadIdx.x % 4 == 0 && piece_row(half) < past)
            dot[piece_row(half)] = own[half];
}

#endif
