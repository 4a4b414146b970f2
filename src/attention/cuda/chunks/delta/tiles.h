/* tiles.h (private): parts of the delta rule in chunks: spans of a document in a chunk,
 * lower triangles of pairs, the solved triangle, and strips of a transposed state.
 *
 * A span is the tokens of one document in a chunk. Spans are computed one after the other: rows
 * of a tile outside the span are zero, so that nothing of another document is ever multiplied.
 * Inside a span, with c the running sum of its gates, S the state before it and k, q, v its
 * rows, of features:
 *
 *     A_ij = beta_i e^(c_i - c_j) <k_i, k_j>, j < i;    X = (I + A)^-1
 *     P_ij = scale e^(c_i - c_j) <q_i, k_j>, j <= i
 *     U = X diag(beta) (V - diag(e^c) K S)
 *     numerators = scale diag(e^c) Q S + P U
 *     S after it = e^c_last S + K' diag(e^(c_last - c)) U
 *
 * Features of unit length are rows times a factor, and so are not made: the factors of keys join
 * those of tokens, as logarithms those of pairs. Gradients are those of the rows, but for what they
 * have along them.
 *
 * Betas of almost 0 count as 2^-40, which changes no bit that bf16 could hold: U / beta, which
 * the gradient of beta needs, then exists. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_DELTA_TILES_H
#define SR_ATTENTION_CUDA_CHUNKS_DELTA_TILES_H

#include "attention/cuda/chunks/core.h"
#include "attention/cuda/chunks/units.h"
#include "attention/cuda/shared/tiles.h"

enum {
    SR_DELTA_CHUNK = 64,                        /* tokens */
    SR_DELTA_STEPS = SR_DELTA_CHUNK / 16,       /* of 16 tokens */
    SR_DELTA_BLOCKS = 10,                       /* of 16 x 16 pairs, on and below the diagonal */
    SR_DELTA_PAIRS = SR_DELTA_BLOCKS * 16 * 16, /* numbers of a lower triangle */
    SR_DELTA_STRIP = 16,                        /* value columns of a warp */
    SR_DELTA_STRIPS = 4,                        /* of a block */
    SR_DELTA_SLICE = SR_DELTA_STRIP * SR_DELTA_STRIPS,
};

#define SR_DELTA_BETA_LEAST 9.094947e-13f /* 2^-40 */
#define SR_DELTA_LOG2_E     1.44269504088896340736f

/* Block (i, j) of a lower triangle of pairs: rows 16 i .., columns 16 j ... */
SR_BOTH constexpr int delta_block(int i, int j) {
    return i * (i + 1) / 2 + j;
}
SR_DEVICE int delta_pairs_at(int i, int j) {
    return delta_block(i, j) * 256;
}

SR_BOTH int delta_chunks(int T) {
    return (T + SR_DELTA_CHUNK - 1) / SR_DELTA_CHUNK;
}

/* Read anew by each step of a walk: what follows from them would take too many registers in
 * between. Known not to be negative, so that quotients and remainders are bit fields. */
SR_DEVICE int delta_thread() {
    const int thread = thread_again();
    if (thread < 0 || thread >= 1024)
        __builtin_unreachable();
    return thread;
}
SR_DEVICE int delta_lane() {
    return delta_thread() % SR_WARP;
}

/* ---- fragments; `row` is a multiple of 16 ---- */

/* A: rows row .. row+15 of a tile, columns 16 k .. 16 k + 15. */
template <int WIDTH>
SR_DEVICE void a_rows(uint32_t (&a)[4], const sr_bf16 *tile, int row, int k, int lane) {
    ldmatrix_x4(a, tile + row * WIDTH + sr_tile<WIDTH>::offset(lane % 16, k, lane / 16));
}

/* A: columns 16 c .. 16 c + 15 as its rows; the sum is over rows row .. row+15 of the tile. */
template <int WIDTH>
SR_DEVICE void a_columns(uint32_t (&a)[4], const sr_bf16 *tile, int row, int c, int lane) {
    ldmatrix_x4_transposed(a,
                           tile + row * WIDTH +
                               sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, c, lane / 8 % 2));
}

/* B of two mma, whose columns are rows row .. row+15 of the tile; the sum is over its columns 16 k
 * .. 16 k + 15. */
template <int WIDTH>
SR_DEVICE void b_rows(uint32_t (&b)[4], const sr_bf16 *tile, int row, int k, int lane) {
    ldmatrix_x4(b, tile + row * WIDTH +
                       sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, k, lane / 8 % 2));
}

/* The same with columns 16 c .. 16 c + 15 of the tile; the sum is over rows row .. row+15. */
template <int WIDTH>
SR_DEVICE void b_columns(uint32_t (&b)[4], const sr_bf16 *tile, int row, int c, int lane) {
    ldmatrix_x4_transposed(b, tile + row * WIDTH + sr_tile<WIDTH>::offset(lane % 16, c, lane / 16));
}

/* c (16 x 8 PIECES) += A times rows row .. row+15 of the tile, from column 16 `begin` on. */
template <int WIDTH, int PIECES>
SR_DEVICE void add_product(float (&c)[PIECES][4], const uint32_t (&a)[4], const sr_bf16 *tile,
                           int row, int begin, int lane) {
#pragma unroll
    for (int n = 0; n < PIECES; n += 2) {
        uint32_t b[4];
        b_columns<WIDTH>(b, tile, row, begin + n / 2, lane);
        mma_m16n8k16(c[n], a, b);
        mma_m16n8k16(c[n + 1], a, b + 2);
    }
}

/* The lane's row and column of number (half, e) of a mma, half 1: 8 rows further down. */
SR_DEVICE int delta_row(int half, int lane) {
    return 8 * half + lane / 4;
}
SR_DEVICE int delta_column(int e, int lane) {
    return 2 * (lane % 4) + e;
}

/* ---- spans ---- */

/* Tokens t0 + from .. t0 + past - 1, t0 the first of their chunk. */
struct delta_span {
    int t0, from, past; /* t0 < 0: there are no more */
    bool fresh;         /* the state before it is zero: its document begins here */
    bool ends; /* its document ends here, and another follows: the state after it is lost */

    SR_DEVICE bool opens_chunk() const {
        return from == 0;
    }
    SR_DEVICE bool closes_chunk(int T) const {
        return t0 + past == min(t0 + SR_DELTA_CHUNK, T);
    }
};

SR_DEVICE delta_span delta_span_of(const int32_t *first, int begin, int end, int T, bool initial) {
    const int t0 = begin / SR_DELTA_CHUNK * SR_DELTA_CHUNK;
    return {t0, begin - t0, end - t0, first[begin] == begin && !(begin == 0 && initial),
            end < T && first[end] == end};
}

/* The span that begins at token t < T; collective. `first` is that of the batch row. */
SR_DEVICE delta_span delta_span_from(const int32_t *first, int t, int T, bool initial) {
    const int t0 = t / SR_DELTA_CHUNK * SR_DELTA_CHUNK;
    int end = min(t0 + SR_DELTA_CHUNK, T);
#pragma unroll
    for (int part = 1; part >= 0; part--) {
        const int n = t0 + 32 * part + delta_lane();
        const uint32_t other = warp_ballot(n > t && n < T && first[n] > t);
        if (other)
            end = t0 + 32 * part + __popc((other & (0u - other)) - 1);
    }
    return delta_span_of(first, t, end, T, initial);
}

/* The span before token `end` > 0. */
SR_DEVICE delta_span delta_span_before(const int32_t *first, int end, int T, bool initial) {
    const int t0 = (end - 1) / SR_DELTA_CHUNK * SR_DELTA_CHUNK;
    return delta_span_of(first, max(first[end - 1], t0), end, T, initial);
}

/* Starts the copy of 64 whole rows to a tile, by THREADS threads, this being number `thread`: it
 * copies 8 columns of rows that have the same swizzle, so that addresses are sums. */
template <int WIDTH, int THREADS>
SR_DEVICE void delta_load_whole(sr_bf16 *tile, const sr_bf16 *rows, int64_t time, int thread) {
    using Tile = sr_tile<WIDTH>;
    constexpr int apart = THREADS / Tile::chunks, parts = apart < 8 ? 8 / apart : 1;
    constexpr int step = apart * parts;
    static_assert(THREADS % Tile::chunks == 0 && step % 8 == 0 && SR_DELTA_CHUNK % step == 0,
                  "rows of a thread have the same swizzle");
    const int chunk = thread % Tile::chunks;
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        const int row = thread / Tile::chunks + part * apart;
        const sr_bf16 *const from = rows + row * time + 8 * chunk;
        sr_bf16 *const to = tile + Tile::offset(row, chunk);
#pragma unroll
        for (int n = 0; n < SR_DELTA_CHUNK / step; n++)
            cp_async_16(to + n * step * WIDTH, from + n * step * time);
    }
}

/* Starts the copy of rows t0 .. of `rows` to a tile, columns `column` .. of `columns`; zero outside
 * the span and past the last column. By THREADS threads, this being number `thread`. Parameters,
 * not a struct: they stay in registers. */
template <int WIDTH, int THREADS>
SR_DEVICE void delta_load(sr_bf16 *tile, const sr_bf16 *rows, int64_t time, const delta_span &span,
                          int column, int columns, int thread) {
    using Tile = sr_tile<WIDTH>;
    if (span.past - span.from == SR_DELTA_CHUNK && column + WIDTH <= columns) {
        delta_load_whole<WIDTH, THREADS>(tile, rows + span.t0 * time + column, time, thread);
        return;
    }
#pragma unroll 1
    for (int n = thread; n < SR_DELTA_CHUNK * Tile::chunks; n += THREADS) {
        const int row = n / Tile::chunks, chunk = n % Tile::chunks;
        const bool counts = row >= span.from && row < span.past && column + 8 * chunk < columns;
        cp_async_16(tile + Tile::offset(row, chunk),
                    counts ? rows + (span.t0 + row) * time + column + 8 * chunk : rows,
                    counts ? 16 : 0);
    }
}

/* The same for a number of each token; one warp. */
SR_DEVICE void delta_load_numbers(float *to, const float *from, const delta_span &span) {
#pragma unroll
    for (int n = delta_lane(); n < SR_DELTA_CHUNK; n += SR_WARP) {
        const bool counts = n >= span.from && n < span.past;
        cp_async_4(to + n, counts ? from + span.t0 + n : from, counts ? 4 : 0);
    }
}

/* ---- factors of the tokens of a span ---- */

/* The lane's two running sums of gates (NULL: 0) of tokens 2 lane, 2 lane + 1, in units of log 2.
 * Collective. */
SR_DEVICE float2 delta_running(const float *gates) {
    const int lane = delta_lane(), at = 2 * lane;
    if (!gates)
        return make_float2(0, 0);
    const float own = gates[at] * SR_DELTA_LOG2_E, next = gates[at + 1] * SR_DELTA_LOG2_E;
    float upto = own + next;
#pragma unroll
    for (int distance = 1; distance < SR_WARP; distance *= 2) {
        const float lower = shuffle_up(upto, distance);
        upto += lane >= distance ? lower : 0;
    }
    return make_float2(upto - next, upto);
}

/* <x, x> of 16 rows of a tile, `row` .. row+15, if features are of unit length: the diagonal of
 * their products. One warp, complete after __syncwarp. */
template <int F>
SR_DEVICE void delta_squares(float *squares, const sr_bf16 *tile, int row, srnn_feature feature) {
    const int lane = delta_lane();
    if (!unit_feature(feature))
        return;
    float square[2][4] = {};
#pragma unroll 2
    for (int k = 0; k < F / 16; k++) {
        uint32_t a[4];
        a_rows<F>(a, tile, row, k, lane);
        const uint32_t b[4] = {a[0], a[2], a[1], a[3]};
        mma_m16n8k16(square[0], a, b);
        mma_m16n8k16(square[1], a, b + 2);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane / 4 / 2 == lane % 4)
            squares[row + delta_row(half, lane)] =
                lane / 4 % 2 ? square[half][2 * half + 1] : square[half][2 * half];
}

/* Those of all rows of a tile. */
template <int F>
SR_DEVICE void delta_all_squares(float *squares, const sr_bf16 *tile, srnn_feature feature) {
#pragma unroll 1
    for (int i = 0; i < SR_DELTA_STEPS; i++)
        delta_squares<F>(squares, tile, 16 * i, feature);
}

/* The factors that make the features of tokens 2 lane, 2 lane + 1 from their squares. */
SR_DEVICE float2 delta_units(const float *squares, srnn_feature feature) {
    if (!unit_feature(feature))
        return make_float2(1, 1);
    const float2 square = *reinterpret_cast<const float2 *>(squares + 2 * delta_lane());
    return make_float2(unit_inverse(feature, square.x), unit_inverse(feature, square.y));
}

/* A lane's two numbers of an array of tokens. */
SR_DEVICE void delta_put(float *to, float x, float y) {
    *reinterpret_cast<float2 *>(to + 2 * delta_lane()) = make_float2(x, y);
}

/* What pairs of a span need of their tokens. */
struct delta_exponents {
    alignas(16) float sum[SR_DELTA_CHUNK]; /* c, in units of log 2 */
    float key[SR_DELTA_CHUNK];             /* c less the logarithm of the key's factor */

    /* From gates (NULL: 0) and the factors of the lane's keys: returns the lane's sums. One warp;
     * complete after __syncwarp. */
    SR_DEVICE float2 fill(const float *gates, float2 unit) {
        const float2 running = delta_running(gates);
        delta_put(sum, running.x, running.y);
        delta_put(key, running.x - log2_fast(unit.x), running.y - log2_fast(unit.y));
        return running;
    }
};

SR_DEVICE float delta_beta(float wanted) {
    return fabsf(wanted) < SR_DELTA_BETA_LEAST ? SR_DELTA_BETA_LEAST : wanted;
}

/* Those of keys. */
struct delta_factors {
    delta_exponents pairs;
    float unit[SR_DELTA_CHUNK];   /* makes the feature; before fill its square */
    float before[SR_DELTA_CHUNK]; /* unit e^c: weight of the state before the span for a token */
    float until[SR_DELTA_CHUNK];  /* unit e^(c_last - c): that of a token in the state after it */
    float beta[SR_DELTA_CHUNK];
    float across; /* e^c_last */

    /* From gates (NULL: 0) and `beta`, zero outside the span, and squares: returns the lane's sums.
     * One warp; complete after __syncwarp. */
    SR_DEVICE float2 fill(const float *gates, srnn_feature feature) {
        const float2 own = delta_units(unit, feature), here = pairs.fill(gates, own);
        const float last = shuffle(here.y, SR_WARP - 1);
        const float2 wanted = *reinterpret_cast<const float2 *>(beta + 2 * delta_lane());
        delta_put(unit, own.x, own.y);
        delta_put(before, own.x * exp2_fast(here.x), own.y * exp2_fast(here.y));
        delta_put(until, own.x * exp2_fast(last - here.x), own.y * exp2_fast(last - here.y));
        delta_put(beta, delta_beta(wanted.x), delta_beta(wanted.y));
        if (delta_lane() == 0)
            across = exp2_fast(last);
        return here;
    }
};

/* Those of queries. */
struct delta_query_factors {
    alignas(16) float unit[SR_DELTA_CHUNK]; /* before fill the square */
    float before[SR_DELTA_CHUNK];           /* scale unit e^c */
    float since[SR_DELTA_CHUNK];            /* e^c */

    /* From the lane's sums and squares. One warp; complete after __syncwarp. */
    SR_DEVICE void fill(float2 sum, float scale, srnn_feature feature) {
        const float2 own = delta_units(unit, feature);
        const float2 decay = make_float2(exp2_fast(sum.x), exp2_fast(sum.y));
        delta_put(unit, own.x, own.y);
        delta_put(before, scale * own.x * decay.x, scale * own.y * decay.y);
        delta_put(since, decay.x, decay.y);
    }
};

/* ---- lower triangles of pairs ---- */

template <int PIECES> SR_DEVICE void delta_clear(float (&c)[PIECES][4]) {
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = 0;
}

/* Sets of blocks of a lower triangle: few enough for their sums to be in registers. */
enum : uint32_t {
    SR_DELTA_DIAGONAL = 1u << delta_block(0, 0) | 1u << delta_block(1, 1) |
                        1u << delta_block(2, 2) | 1u << delta_block(3, 3),
    SR_DELTA_ALL = (1u << SR_DELTA_BLOCKS) - 1,
    SR_DELTA_LAST_ROW = SR_DELTA_ALL & ~((1u << delta_block(3, 0)) - 1),
};

/* w = the products of rows of a tile with keys, for a set of blocks; `rows` may be the keys. The
 * A of 16 rows has the numbers of the B of the same rows in another order. One warp. */
template <int F, uint32_t SET>
SR_DEVICE void delta_triangle(float (&w)[SR_DELTA_BLOCKS][2][4], const sr_bf16 *rows,
                              const sr_bf16 *keys, bool same) {
    const int lane = delta_lane();
#pragma unroll
    for (int block = 0; block < SR_DELTA_BLOCKS; block++)
        if (SET >> block & 1)
            delta_clear(w[block]);
#pragma unroll 1
    for (int k = 0; k < F / 16; k++) {
        uint32_t right[SR_DELTA_STEPS][4];
#pragma unroll
        for (int j = 0; j < SR_DELTA_STEPS; j++)
            a_rows<F>(right[j], keys, 16 * j, k, lane);
#pragma unroll
        for (int i = 0; i < SR_DELTA_STEPS; i++) {
            uint32_t left[4] = {right[i][0], right[i][1], right[i][2], right[i][3]};
            if (!same && (SET >> delta_block(i, 0) & ((2u << i) - 1)) != 0)
                a_rows<F>(left, rows, 16 * i, k, lane);
#pragma unroll
            for (int j = 0; j <= i; j++) {
                if (!(SET >> delta_block(i, j) & 1))
                    continue;
                const uint32_t b[4] = {right[j][0], right[j][2], right[j][1], right[j][3]};
                mma_m16n8k16(w[delta_block(i, j)][0], left, b);
                mma_m16n8k16(w[delta_block(i, j)][1], left, b + 2);
            }
        }
    }
}

/* Multiplies block (i, j) by the exponentials of the differences of exponents of its rows and of
 * its keys, as in delta_exponents, and the factors of its rows; 0 above the diagonal. Seven
 * parameters: a block, where it is, and the numbers of its rows and keys. */
template <class Factor>
SR_DEVICE void delta_decay(float (&w)[2][4], int i, int j, const float *rows, const float *keys,
                           const Factor &factor, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = 16 * i + delta_row(half, lane);
        const float own = rows[row], multiply = factor(row);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int column = 16 * j + 8 * n + delta_column(0, lane);
            const float2 key = *reinterpret_cast<const float2 *>(keys + column);
            float *const x = w[n] + 2 * half;
            x[0] *= multiply * exp2_fast(own - key.x);
            x[1] *= multiply * exp2_fast(own - key.y);
            if (i == j) { /* also instead of infinities */
                x[0] = column > row ? 0 : x[0];
                x[1] = column + 1 > row ? 0 : x[1];
            }
        }
    }
}

/* A block of 16 x 16 to shared memory in bf16; one warp, complete after __syncwarp. */
SR_DEVICE void delta_store_block(sr_bf16 *block, const float (&w)[2][4], int lane) {
    uint32_t a[4];
    pack_a(a, w[0], w[1]);
    stmatrix_x4(block + sr_tile<16>::offset(lane % 16, lane / 16), a);
}

/* A set of the blocks of P of a span, of exponents and factors as delta_decay. One warp. */
template <int F, uint32_t SET, class Factor>
SR_DEVICE void delta_score_blocks(sr_bf16 *pairs, const sr_bf16 *queries, const sr_bf16 *keys,
                                  const float *of_rows, const float *of_keys,
                                  const Factor &factor) {
    float w[SR_DELTA_BLOCKS][2][4];
    delta_triangle<F, SET>(w, queries, keys, false);
    const int lane = delta_lane();
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            if (!(SET >> delta_block(i, j) & 1))
                continue;
            delta_decay(w[delta_block(i, j)], i, j, of_rows, of_keys, factor, lane);
            delta_store_block(pairs + delta_pairs_at(i, j), w[delta_block(i, j)], lane);
        }
}

template <int F, class Factor>
SR_DEVICE void delta_scores(sr_bf16 *pairs, const sr_bf16 *queries, const sr_bf16 *keys,
                            const float *of_rows, const float *of_keys, const Factor &factor) {
    delta_score_blocks<F, SR_DELTA_LAST_ROW>(pairs, queries, keys, of_rows, of_keys, factor);
    delta_score_blocks<F, SR_DELTA_ALL & ~SR_DELTA_LAST_ROW>(pairs, queries, keys, of_rows, of_keys,
                                                             factor);
}

/* ---- the solved triangle ----
 *
 * One warp solves a span. The four diagonal blocks of A are inverted by substitution in float, half
 * a warp each, a lane a column. The other blocks of A stay in registers, as tf32: rounded to bf16
 * they would be the largest error where keys are alike. Then X column by column, from top to
 * bottom, transposed so that a result has the layout of the next operand:
 *
 *     X_ij' = -(sum_m X_mj' A_im') X_ii'        j <= m < i
 *
 * Blocks of X are kept transposed. */

enum { SR_DELTA_SOLVE_STRIDE = 20, SR_DELTA_SOLVE_BLOCK = 16 * SR_DELTA_SOLVE_STRIDE };
static_assert(4 * SR_DELTA_SOLVE_BLOCK * sizeof(float) <= SR_DELTA_PAIRS * sizeof(sr_bf16),
              "diagonal blocks of A in float have the place of X");

/* Column `own` of the inverse of a diagonal block of I + A; `block` has A transposed. */
SR_DEVICE void delta_invert(float (&x)[16], const float *block, int own) {
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = i == own ? 1 : 0;
#pragma unroll
    for (int j = 0; j < 15; j++)
#pragma unroll
        for (int four = (j + 1) / 4; four < 4; four++) {
            const float4 a =
                *reinterpret_cast<const float4 *>(block + j * SR_DELTA_SOLVE_STRIDE + 4 * four);
            const float column[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (4 * four + e > j)
                    x[4 * four + e] = fmaf(-column[e], x[j], x[4 * four + e]);
        }
}

/* Row `row` of a block of 16 x 16. */
SR_DEVICE void delta_store_row(sr_bf16 *block, const float (&x)[16], int row) {
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        sr_vector<uint32_t> pairs;
#pragma unroll
        for (int n = 0; n < 4; n++)
            pairs.number[n] = pack_bf16(x[8 * chunk + 2 * n], x[8 * chunk + 2 * n + 1]);
        store_vector(reinterpret_cast<uint32_t *>(block + sr_tile<16>::offset(row, chunk)), pairs);
    }
}

/* The diagonal blocks of A to X. */
SR_DEVICE void delta_solve_diagonal(sr_bf16 *solved, const float (&w)[SR_DELTA_BLOCKS][2][4]) {
    float *const place = reinterpret_cast<float *>(solved);
    const int lane = delta_lane(), own = lane % 16, half = lane / 16;
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                place[i * SR_DELTA_SOLVE_BLOCK +
                      (8 * n + delta_column(e % 2, lane)) * SR_DELTA_SOLVE_STRIDE +
                      delta_row(e / 2, lane)] = w[delta_block(i, i)][n][e];
    __syncwarp();
    float x[2][16];
#pragma unroll
    for (int n = 0; n < 2; n++)
        delta_invert(x[n], place + (2 * n + half) * SR_DELTA_SOLVE_BLOCK, own);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int i = 2 * n + half;
        delta_store_row(solved + delta_pairs_at(i, i), x[n], own);
    }
    __syncwarp();
}

/* sum += X_mj' A_im', the former as its accumulator left it. */
SR_DEVICE void delta_solve_add(float (&sum)[2][4], const float (&x)[2][4], const float (&a)[2][4]) {
#pragma unroll
    for (int z = 0; z < 2; z++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t left[4] = {float_bits(x[z][0]), float_bits(x[z][2]), float_bits(x[z][1]),
                                      float_bits(x[z][3])};
            const uint32_t right[2] = {float_bits(a[z][2 * n]), float_bits(a[z][2 * n + 1])};
            mma_m16n8k8_tf32(sum[n], left, right);
        }
}

/* x = -sum X_ii', the sum as two bf16. */
SR_DEVICE void delta_solve_finish(float (&x)[2][4], const float (&sum)[2][4],
                                  const sr_bf16 *diagonal, int lane) {
    uint32_t high[4], low[4], b[4];
    pack_a(high, sum[0], sum[1]);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 had = unpack_bf16(high[n]);
        low[n] = pack_bf16(had.x - sum[n / 2][n % 2 * 2], had.y - sum[n / 2][n % 2 * 2 + 1]);
        high[n] ^= 0x80008000u;
    }
    b_columns<16>(b, diagonal, 0, 0, lane);
    delta_clear(x);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        mma_m16n8k16(x[n], high, b + 2 * n);
        mma_m16n8k16(x[n], low, b + 2 * n);
    }
}

/* Column J of X below its diagonal; get(a, i, m): block (i, m) of A, as tf32. */
template <int J, class Get> SR_DEVICE void delta_solve_column(sr_bf16 *solved, const Get &get) {
    float x[SR_DELTA_STEPS - J][2][4];
    uint32_t own[4];
    const int lane = delta_lane();
    a_rows<16>(own, solved + delta_pairs_at(J, J), 0, 0, lane);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 pair = unpack_bf16(own[n]);
        x[0][n / 2][n % 2 * 2] = pair.x;
        x[0][n / 2][n % 2 * 2 + 1] = pair.y;
    }
#pragma unroll
    for (int i = J + 1; i < SR_DELTA_STEPS; i++) {
        float sum[2][4] = {};
#pragma unroll
        for (int m = J; m < i; m++) {
            float a[2][4];
            get(a, i, m);
            delta_solve_add(sum, x[m - J], a);
        }
        delta_solve_finish(x[i - J], sum, solved + delta_pairs_at(i, i), lane);
        delta_store_block(solved + delta_pairs_at(i, J), x[i - J], lane);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i - J][n][e] = bits_float(to_tf32(x[i - J][n][e]));
    }
}

/* A set of the blocks of A. */
template <int F, uint32_t SET>
SR_DEVICE void delta_key_blocks(float (&w)[SR_DELTA_BLOCKS][2][4], const sr_bf16 *keys,
                                const delta_factors &factors) {
    delta_triangle<F, SET>(w, keys, keys, true);
    const int lane = delta_lane();
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
        for (int j = 0; j <= i; j++)
            if (SET >> delta_block(i, j) & 1)
                delta_decay(
                    w[delta_block(i, j)], i, j, factors.pairs.sum, factors.pairs.key,
                    [&](int row) { return factors.beta[row] * factors.unit[row]; }, lane);
}

/* X of a span from its keys. One warp; complete after __syncwarp. */
template <int F>
SR_DEVICE void delta_solve_span(sr_bf16 *solved, const sr_bf16 *keys,
                                const delta_factors &factors) {
    float w[SR_DELTA_BLOCKS][2][4];
    delta_key_blocks<F, SR_DELTA_DIAGONAL>(w, keys, factors);
    delta_solve_diagonal(solved, w);
    delta_key_blocks<F, SR_DELTA_ALL & ~SR_DELTA_DIAGONAL>(w, keys, factors);
#pragma unroll
    for (int i = 1; i < SR_DELTA_STEPS; i++)
#pragma unroll
        for (int j = 0; j < i; j++)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float &x = w[delta_block(i, j)][n / 4][n % 4];
                x = bits_float(to_tf32(x));
            }
    const auto get = [&](float(&a)[2][4], int i, int m) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            a[n / 4][n % 4] = w[delta_block(i, m)][n / 4][n % 4];
    };
    delta_solve_column<0>(solved, get);
    delta_solve_column<1>(solved, get);
    delta_solve_column<2>(solved, get);
}

/* ---- results to memory ---- */

/* Transposes 4 x 4 words over the lanes of a quad: lane i gets word i of each. */
SR_DEVICE void quad_transpose(uint32_t (&word)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
        const uint32_t other = shuffle_xor(odd ? word[n] : word[n + 1], 1);
        word[n] = odd ? other : word[n];
        word[n + 1] = odd ? word[n + 1] : other;
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint32_t other = shuffle_xor(upper ? word[n] : word[n + 2], 2);
        word[n] = upper ? other : word[n];
        word[n + 2] = upper ? word[n + 2] : other;
    }
}

SR_DEVICE void store_words(sr_bf16 *to, const uint32_t (&word)[4]) {
    store_vector(reinterpret_cast<uint32_t *>(to),
                 sr_vector<uint32_t>{word[0], word[1], word[2], word[3]});
}

/* A 16 x 16 A fragment to 16 rows in memory, rows from .. past-1 of them, those columns that are
 * among `columns`. Parameters, not a struct: they stay in registers. */
SR_DEVICE void delta_store_fragment(sr_bf16 *rows, int64_t stride, const uint32_t (&a)[4], int from,
                                    int past, int columns, int lane) {
    uint32_t word[4] = {a[0], a[2], a[1], a[3]};
    quad_transpose(word, lane);
    const int row = lane / 4 + lane % 4 / 2 * 8, column = lane % 2 * 8;
    if (row >= from && row < past && column < columns)
        store_words(rows + row * stride + column, word);
}

/* C (16 x 8 PIECES) in bf16 to 16 rows in memory, as above, columns begin .. ; PIECES is a multiple
 * of 4. Parameters, not a struct: they stay in registers. */
template <int PIECES>
SR_DEVICE void delta_store_strip(sr_bf16 *rows, int64_t stride, const float (&c)[PIECES][4],
                                 int from, int past, int begin, int columns) {
    const int lane = delta_lane();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < PIECES; n += 4) {
            uint32_t word[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                word[e] = pack_bf16(c[n + e][2 * half], c[n + e][2 * half + 1]);
            quad_transpose(word, lane);
            const int row = delta_row(half, lane), column = begin + 8 * (n + lane % 4);
            if (row >= from && row < past && column < columns)
                store_words(rows + row * stride + column, word);
        }
}

/* ---- a strip of a transposed state: 16 value columns by all features ---- */

/* Two numbers of an array of tokens, the first of which is even. */
SR_DEVICE float2 delta_pair(const float *numbers, int token) {
    return *reinterpret_cast<const float2 *>(numbers + token);
}

/* A fragments of a transposed strip of 16 values by 64 tokens: one for 16 tokens. As B, a[0], a[2]
 * and a[1], a[3] are the tokens by the first and the last 8 values. */
struct delta_strip {
    uint32_t a[SR_DELTA_STEPS][4];

    SR_DEVICE void set(const float (&c)[8][4]) {
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
            pack_a(a[m], c[2 * m], c[2 * m + 1]);
    }

    /* The same times the tokens' factors and one for all. */
    SR_DEVICE void set(const float (&c)[8][4], const float *factor, float all = 1) {
        const int lane = delta_lane();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 own = delta_pair(factor, 8 * n + delta_column(0, lane));
            own.x *= all;
            own.y *= all;
            a[n / 2][n % 2 * 2] = pack_bf16(c[n][0] * own.x, c[n][1] * own.y);
            a[n / 2][n % 2 * 2 + 1] = pack_bf16(c[n][2] * own.x, c[n][3] * own.y);
        }
    }

    SR_DEVICE void get(const sr_bf16 *tile, int strip) {
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
            a_columns<SR_DELTA_SLICE>(a[m], tile, 16 * m, strip, delta_lane());
    }

    /* Its own columns of a tile of tokens by values, once all lanes have read what was there;
     * complete after __syncwarp. */
    SR_DEVICE void put(sr_bf16 *tile, int strip) const {
        const int lane = delta_lane();
        __syncwarp();
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int token = 16 * m + 8 * (n / 2) + delta_column(e, lane);
                    const int value = delta_row(n % 2, lane);
                    tile[sr_tile<SR_DELTA_SLICE>::offset(token, 2 * strip + value / 8) +
                         value % 8] = {(uint16_t)(a[m][n] >> 16 * e)};
                }
    }
};

/* c (16 tokens x 16 values) += A times 16 rows of the transposed operand `right`. */
SR_DEVICE void delta_multiply_strip(float (&c)[2][4], const uint32_t (&a)[4],
                                    const uint32_t (&right)[4]) {
    const uint32_t b[4] = {right[0], right[2], right[1], right[3]};
    mma_m16n8k16(c[0], a, b);
    mma_m16n8k16(c[1], a, b + 2);
}

/* Rows of the span from a warp's own columns of a tile to memory, those among `columns`. */
SR_DEVICE void delta_store_columns(sr_bf16 *rows, int64_t stride, const sr_bf16 *tile, int strip,
                                   const delta_span &span, int columns) {
#pragma unroll
    for (int n = delta_lane(); n < 2 * SR_DELTA_CHUNK; n += SR_WARP) {
        const int row = n / 2, chunk = n % 2;
        if (row >= span.from && row < span.past && 8 * chunk < columns)
            store_vector(rows + row * stride + 8 * chunk,
                         load_vector(tile +
                                     sr_tile<SR_DELTA_SLICE>::offset(row, 2 * strip + chunk)));
    }
}

/* c (16 values x 8 n tokens) *= the tokens' factors. */
SR_DEVICE void delta_scale_tokens(float (&c)[8][4], const float *factor) {
    const int lane = delta_lane();
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 own = delta_pair(factor, 8 * n + delta_column(0, lane));
        c[n][0] *= own.x;
        c[n][1] *= own.y;
        c[n][2] *= own.x;
        c[n][3] *= own.y;
    }
}

/* A times the factors of its columns, tokens 16 m ... */
SR_DEVICE void delta_scale_columns(uint32_t (&a)[4], const float *factor, int m, int lane) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 own = delta_pair(factor, 16 * m + 8 * (n / 2) + delta_column(0, lane));
        const float2 pair = unpack_bf16(a[n]);
        a[n] = pack_bf16(pair.x * own.x, pair.y * own.y);
    }
}

template <int F> struct delta_state {
    static constexpr int P = F / 8;
    float s[P][4];

    SR_DEVICE void clear() {
        delta_clear(s);
    }

    /* A of features 16 k ... As B it is the features by the values, like a delta_strip. */
    SR_DEVICE void operand(uint32_t (&a)[4], int k) const {
        pack_a(a, s[2 * k], s[2 * k + 1]);
    }

    /* c (16 values x 64 tokens) = S' K'. */
    SR_DEVICE void times_rows(float (&c)[8][4], const sr_bf16 *keys) const {
        const int lane = delta_lane();
        delta_clear(c);
#pragma unroll
        for (int k = 0; k < F / 16; k++) {
            uint32_t a[4], b[4];
            operand(a, k);
#pragma unroll
            for (int m = 0; m < SR_DELTA_STEPS; m++) {
                b_rows<F>(b, keys, 16 * m, k, lane);
                mma_m16n8k16(c[2 * m], a, b);
                mma_m16n8k16(c[2 * m + 1], a, b + 2);
            }
        }
    }

    SR_DEVICE void multiply(float factor) {
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] *= factor;
    }

    /* Each feature times its factor. */
    SR_DEVICE void multiply(const float *factor) {
        const int lane = delta_lane();
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] *= factor[8 * n + delta_column(e % 2, lane)];
    }

    /* From and to floats (features, values), the strip from value `value` on. */
    SR_DEVICE void load(const float *from, int value, int features, int values) {
        each(value, features, values,
             [&](float &x, int64_t at, bool counts) { x = counts ? from[at] : 0; });
    }
    SR_DEVICE void store(float *to, int value, int features, int values) {
        each(value, features, values, [&](float &x, int64_t at, bool counts) {
            if (counts)
                to[at] = x;
        });
    }
    template <class Use> SR_DEVICE void each(int value, int features, int values, const Use &use) {
        const int lane = delta_lane();
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int f = 8 * n + delta_column(e % 2, lane), v = value + delta_row(e / 2, lane);
                use(s[n][e], (int64_t)f * values + v, f < features && v < values);
            }
    }
};

/* ---- products of a strip, by mma.sync ----
 *
 * c and state are 16 values by tokens and by features, a is 16 values by 64 tokens, pairs are lower
 * blocks. */

struct delta_products {
    static constexpr int reverse_scorers = 1; /* 64 features: there are registers for */

    /* Before a barrier behind which products read what the thread has written. */
    static SR_DEVICE void publish() {
    }

    /* Before the work of strips, and of other warps: moves registers where that is possible. */
    static SR_DEVICE void strips_begin() {
    }
    static SR_DEVICE void others_begin() {
    }

    /* c = S' rows'. */
    template <int F>
    static SR_DEVICE void times_rows(float (&c)[8][4], const delta_state<F> &state,
                                     const sr_bf16 *rows) {
        state.times_rows(c, rows);
    }

    /* S' += a rows. */
    template <int F>
    static SR_DEVICE void add_rows(delta_state<F> &state, const uint32_t (&a)[SR_DELTA_STEPS][4],
                                   const sr_bf16 *rows) {
        const int lane = delta_lane();
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++)
            add_product<F>(state.s, a[m], rows, 16 * m, 0, lane);
    }

    /* c = a X', blocks of X transposed. */
    static SR_DEVICE void times_solved(float (&c)[8][4], const uint32_t (&a)[SR_DELTA_STEPS][4],
                                       const sr_bf16 *pairs) {
        const int lane = delta_lane();
        delta_clear(c);
#pragma unroll
        for (int j = 0; j < SR_DELTA_STEPS; j++)
#pragma unroll
            for (int i = j; i < SR_DELTA_STEPS; i++) {
                uint32_t b[4];
                b_columns<16>(b, pairs + delta_pairs_at(i, j), 0, 0, lane);
                mma_m16n8k16(c[2 * i], a[j], b);
                mma_m16n8k16(c[2 * i + 1], a[j], b + 2);
            }
    }

    /* Numerators of a span to memory, diag(scale unit) (e^c Q S + P U), U with the factors of keys:
     * `to` is the strip's column of its first row. 16 tokens at a time, not transposed, which takes
     * few registers. */
    template <int F, class Slot>
    static SR_DEVICE void store_numerators(sr_bf16 *to, int64_t time, Slot &slot,
                                           const delta_state<F> &state, const delta_strip &used,
                                           float scale, int, int columns) {
        const delta_span &span = slot.span;
#pragma unroll 1
        for (int i = 0; i < SR_DELTA_STEPS; i++) {
            const int lane = delta_lane();
            float c[2][4] = {};
            uint32_t a[4];
#pragma unroll
            for (int k = 0; k < F / 16; k++) {
                uint32_t known[4];
                a_rows<F>(a, slot.queries, 16 * i, k, lane);
                state.operand(known, k);
                delta_multiply_strip(c, a, known);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                c[e / 4][e % 4] *= slot.of_queries.since[16 * i + delta_row(e / 2 % 2, lane)];
#pragma unroll
            for (int j = 0; j < SR_DELTA_STEPS; j++) {
                if (j > i)
                    break;
                a_rows<16>(a, slot.scores + delta_pairs_at(i, j), 0, 0, lane);
                delta_multiply_strip(c, a, used.a[j]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                c[e / 4][e % 4] *=
                    scale * slot.of_queries.unit[16 * i + delta_row(e / 2 % 2, lane)];
            pack_a(a, c[0], c[1]);
            delta_store_fragment(to + 16 * i * time, time, a, span.from - 16 * i,
                                 span.past - 16 * i, columns, lane);
        }
    }

    /* A strip's values to its rows in memory, by way of its columns of a tile. `to` is the strip's
     * column of the first row of the span's chunk. */
    static SR_DEVICE void store(sr_bf16 *to, int64_t time, sr_bf16 *tile, const delta_strip &x,
                                int strip, const delta_span &span, int columns) {
        x.put(tile, strip);
        __syncwarp();
        delta_store_columns(to, time, tile, strip, span, columns);
    }

    /* c = a pairs: to each token from later ones. */
    static SR_DEVICE void times_later(float (&c)[8][4], const uint32_t (&a)[SR_DELTA_STEPS][4],
                                      const sr_bf16 *pairs) {
        const int lane = delta_lane();
        delta_clear(c);
#pragma unroll
        for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) {
                uint32_t b[4];
                b_columns<16>(b, pairs + delta_pairs_at(i, j), 0, 0, lane);
                mma_m16n8k16(c[2 * j], a[i], b);
                mma_m16n8k16(c[2 * j + 1], a[i], b + 2);
            }
    }
};

#endif
