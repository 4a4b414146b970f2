/* axes_chunks.h (private): linear scores with a decay per head, in chunks on tensor cores, between
 * the prologue and epilogue of axes/.
 *
 * A block walks the chunks of a head of keys and values. Widths F of features and V of values are
 * 64 or 128; narrower rows have zeros behind them. Where row sums are wanted, values have two more
 * columns that are 1: the numerators of these are the row sums, and their gradients are those of
 * the row sums, the second holding what the first lost when it was rounded to bf16.
 *
 * The state S, and R, its gradient, are kept transposed in registers, (V, F), as float sums; tiles
 * of bf16 in shared memory are made of them for products. Decays inside a chunk are e^(C_i - C_j),
 * from differences. */
#ifndef SR_ATTENTION_CUDA_LINEAR_AXES_CHUNKS_H
#define SR_ATTENTION_CUDA_LINEAR_AXES_CHUNKS_H

#include "attention/cuda/axes/call.h"
#include "attention/cuda/linear/linear.h"

/* In bf16: every row axis, a decay per head, D and Dv up to 128. */
extern const sr_attention_kernel sr_cuda_attention_axes_chunks;

/* The cores. states: (B Hkv, chunks, V, F), those before each chunk, by the first for the
 * second. */
srnn_status sr_axes_chunks_forward(const sr_axes_call &call, cudaStream_t stream);
srnn_status sr_axes_chunks_states(const sr_axes_call &call, sr_bf16 *states, cudaStream_t stream);
srnn_status sr_axes_chunks_backward(const sr_axes_call &call, const sr_bf16 *states,
                                    cudaStream_t stream);

/* Shared memory of a block of the backward pass, the core that needs the most. */
size_t sr_axes_chunks_shared_bytes(int features, int values);

/* Columns behind the values of a variant that needs row sums. */
enum { SR_SUM_COLUMNS = 2 };

/* The width of a tile for rows of so many numbers. */
static inline int sr_axes_chunk_width(int numbers) {
    return numbers <= 64 ? 64 : 128;
}

SR_BOTH int axes_chunk_count(int T) {
    return (T + SR_CHUNK - 1) / SR_CHUNK;
}

/* SR_AXES_CHUNKS_START(start, call, ...) calls start<F, V>(call, ...) for the call's widths. */
#define SR_AXES_CHUNKS_VALUES(start, F, call, ...)                                               \
    ((call).Dv + ((call).sums_rows ? SR_SUM_COLUMNS : 0) <= 64 ? start<F, 64>(call, __VA_ARGS__) \
                                                               : start<F, 128>(call, __VA_ARGS__))
#define SR_AXES_CHUNKS_START(start, call, ...)                            \
    ((call).F <= 64 ? SR_AXES_CHUNKS_VALUES(start, 64, call, __VA_ARGS__) \
                    : SR_AXES_CHUNKS_VALUES(start, 128, call, __VA_ARGS__))

/* Warps of a block: a warp has 16 rows of a chunk and a side of the columns of its results; and 16
 * columns of the values of the state by all those of the features, or a part. */
template <int F, int V> struct axes_chunk_shape {
    static constexpr int warps = F == 64 && V == 64 ? 4 : 8, threads = warps * SR_WARP;
    static constexpr int sides = warps / SR_CHUNK_ROWS;
    static constexpr int strips = V / 16, parts = warps / strips;
    static constexpr int state_pieces = F / parts / 8;
};

/* ---- tiles ---- */

/* Rows of a head as the prologue left them. */
struct axes_chunk_rows {
    const float *rows; /* (T, columns) */
    int columns;
    bool ones;                /* 1 in the columns behind */
    const double *of_row_sum; /* (T): in the columns behind; NULL: nothing is */

    SR_DEVICE float number(int t, int c) const {
        if (c < columns)
            return rows[(int64_t)t * columns + c];
        if (c >= columns + SR_SUM_COLUMNS)
            return 0;
        if (!of_row_sum)
            return ones ? 1 : 0;
        const float all = (float)of_row_sum[t], first = to_float(to_bf16(all));
        return c == columns ? first : all - first;
    }

    /* Numbers c .. c+7 of row t. */
    SR_DEVICE void numbers(float (&x)[8], int t, int c) const {
        if (columns % 4 == 0 && c + 8 <= columns) {
            const float *const from = rows + (int64_t)t * columns + c;
            const sr_vector<float> left = load_vector(from), right = load_vector(from + 4);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                x[n] = left.number[n];
                x[n + 4] = right.number[n];
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
            x[n] = number(t, c + n);
    }
};

/* Rows t0 .. t0+SR_CHUNK-1 to a tile; those from `past` on become zero. By all threads; complete
 * after a barrier. */
template <int WIDTH, int THREADS>
SR_DEVICE void chunk_load(sr_bf16 *tile, const axes_chunk_rows &from, int t0, int past) {
    using Tile = sr_tile<WIDTH>;
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < SR_CHUNK * Tile::chunks; n += THREADS) {
        const int row = n / Tile::chunks, begin = n % Tile::chunks * 8, t = t0 + row;
        sr_vector<uint32_t> pairs;
        float x[8] = {};
        if (t < past)
            from.numbers(x, t, begin);
#pragma unroll
        for (int c = 0; c < 4; c++)
            pairs.number[c] = pack_bf16(x[2 * c], x[2 * c + 1]);
        store_vector(reinterpret_cast<uint32_t *>(tile + Tile::offset(row, begin / 8)), pairs);
    }
}

/* ---- decays and documents of a chunk's tokens, in shared memory ---- */

struct axes_chunk_tokens {
    float2 decay[SR_CHUNK]; /* C less that of the first token, and what rounding it lost */
    float before[SR_CHUNK]; /* weight of the state before the chunk for a token */
    float until[SR_CHUNK];  /* weight of a token in the state after the chunk */
    int first[SR_CHUNK];    /* the first token of the chunk that it sees */
    float across;           /* weight of the state before the chunk in that after it */

    /* By all threads; complete after a barrier. */
    SR_DEVICE void fill(const sr_axes_call &call, int head, int t0) {
        const int n = (int)threadIdx.x;
        if (n >= SR_CHUNK)
            return;
        const int b = head / call.Hkv, last = min(t0 + SR_CHUNK, call.T) - 1, t = min(t0 + n, last);
        const int begins = call.start(b, t), last_begins = call.start(b, last);
        const double *const c =
            call.decays > 0 ? call.scratch.decay + (int64_t)head * call.T : nullptr;
        const auto between = [&](int from, int to) {
            return c ? exp2f((float)(c[to] - c[from]) * SR_LOG2_E) : 1.0f;
        };
        first[n] = max(begins - t0, 0);
        const double since = c ? c[t] - c[t0] : 0;
        decay[n] = {(float)since, (float)(since - (double)(float)since)};
        before[n] = t0 + n > last || begins >= t0 ? 0 : between(t0 - 1, t);
        until[n] = t0 + n > last || t < last_begins ? 0 : between(t, last);
        if (n == 0)
            across = last_begins < t0 ? between(t0 - 1, last) : 0;
    }

    /* The weight of token j for token i, both of the chunk. A gate that forgets everything leaves
     * float too few bits for the gates after it: differences have those of two floats. */
    SR_DEVICE float between(int i, int j) const {
        const float since = (decay[i].x - decay[j].x) + (decay[i].y - decay[j].y);
        return j > i || j < first[i] ? 0 : exp2_fast(since * SR_LOG2_E);
    }
};

/* ---- products of a warp ---- */

/* C (16 x 8 PIECES) += rows row .. row+15 of tile a, times the transposed rows begin .. of tile b,
 * or times tile b from column 8 `begin` on. */
template <int WIDTH, int PIECES>
SR_DEVICE void multiply_by_rows(float (&c)[PIECES][4], const sr_bf16 *a, int row, const sr_bf16 *b,
                                int begin) {
#pragma unroll 2
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t left[4], right[4];
        load_a<WIDTH>(left, a, row, k);
#pragma unroll
        for (int n = 0; n < PIECES; n += 2) {
            load_b<WIDTH>(right, b, begin + 8 * n, k);
            mma_m16n8k16(c[n], left, right);
            mma_m16n8k16(c[n + 1], left, right + 2);
        }
    }
}

template <int WIDTH, int WIDTH_B, int PIECES>
SR_DEVICE void multiply_by_columns(float (&c)[PIECES][4], const sr_bf16 *a, int row,
                                   const sr_bf16 *b, int begin) {
#pragma unroll 2
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t left[4];
        load_a<WIDTH>(left, a, row, k);
        multiply_rows<WIDTH_B>(c, left, b, 16 * k, begin / 2);
    }
}

/* The 16 x 16 products of rows i .. of tile a and rows j .. of tile b. */
template <int WIDTH>
SR_DEVICE void multiply_pairs(float (&w)[SR_PIECE], const sr_bf16 *a, int i, const sr_bf16 *b,
                              int j) {
    float c[2][4] = {};
    multiply_by_rows<WIDTH>(c, a, i, b, j);
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++)
        w[e] = c[e / 4][e % 4];
}

template <int PIECES> SR_DEVICE void clear_pieces(float (&c)[PIECES][4]) {
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = 0;
}

/* Rows of C to float rows `row` .. in global memory, from column 8 `begin` on. */
template <int PIECES>
SR_DEVICE void store_pieces(float *rows, int columns, const float (&c)[PIECES][4], int t, int begin,
                            int past) {
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = t + piece_row(e / 2), column = 8 * (begin + n) + piece_column(e % 2);
            if (i < past && column < columns)
                rows[(int64_t)i * columns + column] = c[n][e];
        }
}

/* ---- a state in registers ---- */

template <int F, int V> struct axes_chunk_state {
    using Shape = axes_chunk_shape<F, V>;
    static constexpr int P = Shape::state_pieces;
    float s[P][4];

    static SR_DEVICE int strip() {
        return thread_again() / SR_WARP % Shape::strips;
    }
    static SR_DEVICE int begin() { /* the first piece of features */
        return thread_again() / SR_WARP / Shape::strips * P;
    }

    /* S^T = across S^T + values^T keys, tokens times their factors, of a chunk. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, const float *factor) {
#pragma unroll 1
        for (int step = 0; step < SR_CHUNK_ROWS; step++) {
            uint32_t a[4];
            load_a_columns<V>(a, values, 16 * step, strip());
            scale_columns(a, factor, step);
            multiply_rows<F>(s, a, keys, 16 * step, begin() / 2);
        }
    }
    SR_DEVICE void multiply(float factor) {
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = counted(s[n][e], factor);
    }

    /* To a tile (V, F) of bf16; complete after a barrier. */
    SR_DEVICE void publish(sr_bf16 *tile) const {
        pieces_to_tile<F>(tile + 16 * strip() * F, s, begin());
    }

    /* The lane's share of <this, the state in a tile>. */
    SR_DEVICE float dot(const sr_bf16 *tile) const {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const sr_bf16 *const at =
                    tile + sr_tile<F>::offset(16 * strip() + piece_row(e / 2), begin() + n);
                sum = fmaf(s[n][e], to_float(at[piece_column(e % 2)]), sum);
            }
        return sum;
    }
};

/* Zeroes tokens that do not count: 0 times NaN is NaN. By all threads; complete after a barrier. */
template <int WIDTH, int THREADS> SR_DEVICE void chunk_clear(sr_bf16 *tile, const float *factor) {
    using Tile = sr_tile<WIDTH>;
    for (int n = (int)threadIdx.x; n < SR_CHUNK * Tile::chunks; n += THREADS)
        if (factor[n / Tile::chunks] == 0)
            store_vector(tile + Tile::offset(n / Tile::chunks, n % Tile::chunks),
                         sr_vector<sr_bf16>{});
}

/* Rows of keys and values of a head, of queries and gradients of numerators of query head h. */
SR_DEVICE axes_chunk_rows chunk_keys(const sr_axes_call &call, int head) {
    return {call.scratch.k + (int64_t)head * call.T * call.F, call.F, false, nullptr};
}
SR_DEVICE axes_chunk_rows chunk_values(const sr_axes_call &call, int head) {
    return {call.scratch.v + (int64_t)head * call.T * call.Dv, call.Dv, call.sums_rows, nullptr};
}
SR_DEVICE axes_chunk_rows chunk_queries(const sr_axes_call &call, int64_t query) {
    return {call.scratch.q + query * call.T * call.F, call.F, false, nullptr};
}
SR_DEVICE axes_chunk_rows chunk_gradients(const sr_axes_call &call, int64_t query) {
    return {call.scratch.d_numerator + query * call.T * call.Dv, call.Dv, false,
            call.sums_rows ? call.scratch.d_row_sum + query * call.T : nullptr};
}

#endif
