/* gradients.h (private): what the kernels of gradients of additive writes share (gradients.cu,
 * shared.cu): the place of a block, sums for gates, rows on their way out. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_HEAD_GRADIENTS_H
#define SR_ATTENTION_CUDA_CHUNKS_HEAD_GRADIENTS_H

#include "attention/cuda/chunks/head/head.h"

/* A warp has 16 rows of a chunk and one of two sides of each 64 columns. */
enum { SIDES = 2, WARPS = SIDES * SR_CHUNK_STRIPS, THREADS = WARPS * SR_WARP };
enum { PIECES = SR_CHUNK / 8 / SIDES };

/* Sums of w dw of a chunk: over rows; over columns of 16 rows; what comes from S, and from R; and
 * <S, R> by warps. */
struct gradients_sums {
    float rows[SIDES][SR_CHUNK], columns[SR_CHUNK_STRIPS][SR_CHUNK];
    float from_state[SIDES][SR_CHUNK], from_later[SIDES][SR_CHUNK];
    float both[WARPS];

    SR_DEVICE void clear() {
        for (int n = (int)threadIdx.x; n < SR_CHUNK; n += THREADS) {
            for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
                columns[strip][n] = 0;
            for (int side = 0; side < SIDES; side++)
                rows[side][n] = from_state[side][n] = from_later[side][n] = 0;
        }
        if ((int)threadIdx.x < WARPS)
            both[threadIdx.x] = 0;
    }
};

/* The span that a block is at. In shared memory, since registers are scarce. */
struct gradients_place {
    int b, head;
    sr_chunk_span span;
    bool sees;                     /* the span sees a gradient of the state after it */
    bool reads_state, reads_later; /* which is among those kept; so is the state before it */

    SR_DEVICE int chunk() const {
        return span.t0 / SR_CHUNK;
    }
    /* The warp's first row; the first of its columns of slice n. */
    SR_DEVICE int own() const {
        return of_warp(16 * ((thread_again() / SR_WARP + chunk()) % SR_CHUNK_STRIPS));
    }
    static SR_DEVICE int side() {
        return of_warp(thread_again() / SR_WARP / SR_CHUNK_STRIPS);
    }
    static SR_DEVICE int column(int n) {
        return SR_CHUNK * n + 8 * PIECES * side();
    }
    /* Of the chunk among those of all heads of keys and values. */
    SR_DEVICE int64_t number(const sr_chunk_call &call, int of_head) const {
        return ((int64_t)b * call.Hkv + of_head) * chunk_count(call.T) + chunk();
    }
};

/* Where a tile has the numbers of a lane's accumulators: rows own .. and columns from `column` on.
 * Tiles of one width have them at the same places. */
template <int WIDTH> struct row_words {
    int at[PIECES];

    SR_DEVICE row_words(int own, int column) {
        const int lane = lane_again();
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            at[n] = sr_tile<WIDTH>::offset(own + lane / 4, column / 8 + n) + 2 * (lane % 4);
    }
    /* Of piece n, of the lane's first or second row, eight further, where the swizzle is the
     * same. */
    SR_DEVICE float2 get(const sr_bf16 *tile, int n, int half) const {
        return unpack_bf16(*reinterpret_cast<const uint32_t *>(tile + at[n] + half * 8 * WIDTH));
    }
    /* dot[half] += the lane's share of the products of its rows with those of C. */
    SR_DEVICE void add_dots(float (&dot)[2], const float (&c)[PIECES][4],
                            const sr_bf16 *tile) const {
#pragma unroll
        for (int n = 0; n < PIECES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 pair = get(tile, n, half);
                dot[half] += fmaf(c[n][2 * half], pair.x, c[n][2 * half + 1] * pair.y);
            }
    }
};

/* sum[row] += the dots of rows own .., of all lanes. One warp. */
SR_DEVICE void add_row_dots(float *sum, const float (&dot)[2], int own) {
    const int lane = lane_again();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(dot[half]);
        if (lane % 4 == 0)
            sum[own + sum_row(2 * half, lane)] += all;
    }
}

/* sum[row] += the products of rows own .. of a tile with C, its columns from `column` on. */
template <int WIDTH>
SR_DEVICE void add_row_dots(float *sum, const float (&c)[PIECES][4], const sr_bf16 *tile, int own,
                            int column) {
    float dot[2] = {};
    row_words<WIDTH>(own, column).add_dots(dot, c, tile);
    add_row_dots(sum, dot, own);
}

/* C to columns `column` .. of the rows of a head. */
SR_DEVICE void store_columns(const sr_chunk_rows &rows, const gradients_place &at, int h,
                             const float (&c)[PIECES][4], int column, int columns) {
    store_pieces<PIECES>({rows.row(at.b, h, 0) + column, rows.time, columns - column, true}, c,
                         at.own(), at.span);
}

/* The thread's share of <S, R> of NUMBERS of a tile of S in shared memory and of R. */
template <int NUMBERS> SR_DEVICE float tile_dot(const sr_bf16 *state, const sr_bf16 *later) {
    float sum = 0;
#pragma unroll 1
    for (int at = 8 * thread_again(); at < NUMBERS; at += 8 * THREADS) {
        const sr_vector<sr_bf16> x = load_vector(state + at), y = load_vector(later + at);
#pragma unroll
        for (int n = 0; n < 8; n++)
            sum = fmaf(to_float(x.number[n]), to_float(y.number[n]), sum);
    }
    return sum;
}

/* Gradients of the gates of a span from its sums, of a head of keys and values. One warp, two
 * tokens for each lane. */
SR_DEVICE void store_gates(const sr_chunk_call &call, const gradients_sums &sums,
                           const gradients_place &at, int head, float across) {
    const int lane = (int)threadIdx.x % SR_WARP;
    float whole = 0;
    for (int n = 0; n < WARPS; n++)
        whole += sums.both[n];
    sr_chunk_pair earlier, later; /* sums up to a token */
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = 2 * lane + n;
        earlier.x[n] = later.x[n] = 0;
        for (int side = 0; side < SIDES; side++) {
            earlier.x[n] += sums.from_later[side][t];
            later.x[n] += sums.from_state[side][t] + sums.rows[side][t];
        }
        for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
            later.x[n] -= sums.columns[strip][t];
    }
    const sr_chunk_pair own_earlier = earlier, own_later = later;
    earlier.sum_up();
    const float all_later = later.sum_up();
    float *const to = call.d_gate + call.row(call.Hkv, at.b, head, 0);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = at.span.t0 + 2 * lane + n;
        if (t < at.span.from || t >= at.span.past)
            continue;
        const float sum = across * whole + (earlier.x[n] - own_earlier.x[n]) +
                          (all_later - later.x[n] + own_later.x[n]);
        to[t] = t == at.span.from && !at.span.continues ? 0 : sum;
    }
}

/* The span before `past`, of the block's chunk; by one thread. */
SR_DEVICE void place_span(gradients_place &at, const sr_chunk_call &call, int past, int end) {
    sr_chunk_spans spans = chunk_spans(call, at.b);
    if (past == end)
        at.sees = end < call.T ? spans.first[end] < end : call.d_final != nullptr;
    at.span = spans.before(past);
    at.reads_state = at.span.continues && at.span.from == at.span.t0;
    at.reads_later = at.sees && past == end;
}

#endif
