/* tiles.h (private): what cores of chunks share: spans of one document, gates of a span, products
 * of a warp, the part of a state that a warp has, rows on their way out.
 *
 * A core visits spans: tokens of one chunk and one document. Rows of a tile outside the span are
 * zero, so that what other documents hold never meets a product, and masks are those of causality
 * alone. A chunk in which documents begin is visited once for each. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_TILES_H
#define SR_ATTENTION_CUDA_CHUNKS_TILES_H

#include "attention/cuda/chunks/call.h"
#include "attention/cuda/shared/tiles.h"

/* Tokens of a chunk; its rows in 16s; numbers of a square tile. */
enum { SR_CHUNK = 64, SR_CHUNK_STRIPS = SR_CHUNK / 16, SR_CHUNK_SQUARE = SR_CHUNK * SR_CHUNK };

SR_BOTH int chunk_count(int T) {
    return (T + SR_CHUNK - 1) / SR_CHUNK;
}

SR_DEVICE int chunk_warp() {
    return of_warp((int)threadIdx.x / SR_WARP);
}

/* ---- spans ---- */

/* Tokens from .. past-1 of the chunk that begins at t0. */
struct sr_chunk_span {
    int t0, from, past;
    bool continues; /* it sees the state of the token before, or the initial one */
};

/* The spans of a batch row. The load of what the next span needs is issued a span ahead. */
struct sr_chunk_spans {
    const int32_t *first; /* (T) */
    int T;
    bool initial; /* the first document has a state to begin with */
    int ahead_at = -1, ahead = 0;

    /* The first token of the document of token `at`. */
    SR_DEVICE int begin_of(int at) const {
        return at == ahead_at ? ahead : first[at];
    }
    SR_DEVICE void look_ahead(int at) {
        ahead_at = at;
        ahead = first[at];
    }

    /* The span that begins at `from`. */
    SR_DEVICE sr_chunk_span after(int from) {
        const int t0 = from / SR_CHUNK * SR_CHUNK, end = min(t0 + SR_CHUNK, T);
        const int begins = begin_of(end - 1);
        look_ahead(min(end + SR_CHUNK, T) - 1);
        sr_chunk_span span = {t0, from, end, begins < from};
        if (begins > from) {
            span.continues = first[from] < from;
            int inside = from; /* the last token known to be of the span's document */
#pragma unroll 1
            while (span.past - inside > 1) {
                const int middle = (inside + span.past) / 2;
                if (first[middle] <= from)
                    inside = middle;
                else
                    span.past = middle;
            }
        }
        if (from == 0)
            span.continues = initial;
        return span;
    }

    /* The span that ends before `past`. */
    SR_DEVICE sr_chunk_span before(int past) {
        const int t0 = (past - 1) / SR_CHUNK * SR_CHUNK, begins = begin_of(past - 1);
        const int from = max(t0, begins);
        look_ahead(max(from, 1) - 1);
        return {t0, from, past, from == 0 ? initial : begins < from};
    }
};

SR_DEVICE sr_chunk_spans chunk_spans(const sr_chunk_call &call, int b) {
    return {call.first + (int64_t)b * call.T, call.T, call.initial || call.d_initial};
}

/* ---- gates of a span ---- */

/* What the gates of a span amount to: logarithms to base 2 are sums from its first token on. */
struct alignas(16) sr_chunk_tokens { /* pairs of floats are stored at once */
    float since[SR_CHUNK];           /* the logarithm of all gates up to a token's own */
    float from[SR_CHUNK];            /* the same less that of the factor of its value */
    float before[SR_CHUNK];          /* weight of the state before the span for a token */
    float until[SR_CHUNK];           /* weight of a token in the state after the span */
    float across;                    /* weight of the state before the span in that after it */

    /* The weight of token j for token i, j <= i. */
    SR_DEVICE float between(int i, int j) const {
        return exp2_fast(since[i] - from[j]);
    }
};

/* Two numbers per token of a chunk for each lane of a warp: token 2 lane and the next. */
struct sr_chunk_pair {
    float x[2];

    /* Of the tokens of a span, 0 for others; NULL: 0. */
    SR_DEVICE void load(const float *numbers, const sr_chunk_span &span) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int t = span.t0 + 2 * (int)(threadIdx.x % SR_WARP) + n;
            x[n] = numbers && t >= span.from && t < span.past ? numbers[t] : 0;
        }
    }
    SR_DEVICE void store(float *to) const {
        reinterpret_cast<float2 *>(to)[threadIdx.x % SR_WARP] = make_float2(x[0], x[1]);
    }

    /* x becomes its sum up to each token; returns the sum of all. One warp. */
    SR_DEVICE float sum_up() {
        const int lane = (int)threadIdx.x % SR_WARP;
        float all = x[0] + x[1];
#pragma unroll
        for (int distance = 1; distance < SR_WARP; distance *= 2) {
            const float below = shuffle_up(all, distance);
            all += lane >= distance ? below : 0;
        }
        const float second = all, below = shuffle_up(all, 1);
        x[0] += lane > 0 ? below : 0;
        x[1] = second;
        return shuffle(second, SR_WARP - 1);
    }
};

/* The logarithms of gates of a span on their way to shared memory, by one warp. */
struct sr_chunk_gates : sr_chunk_pair {
    /* gate: (T) of a head; NULL: there are none. The gate of a token that begins a document counts
     * for nothing, and need not be a number. */
    SR_DEVICE void open(const float *gate, const sr_chunk_span &span) {
        load(gate, span);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const bool begins = span.t0 + 2 * (int)(threadIdx.x % SR_WARP) + n == span.from;
            x[n] = begins && !span.continues ? 0 : x[n] * SR_LOG2_E;
        }
    }

    /* Complete after a barrier. of_values: (T), the factors of values of the head, read here, since
     * registers are scarce, for the tokens of the span; NULL: they are 1. */
    SR_DEVICE void publish(sr_chunk_tokens &tokens, const float *of_values = nullptr,
                           const sr_chunk_span &span = {}) {
        sr_chunk_pair factor, weight;
        factor.load(of_values, span);
        const float all = sum_up();
        store(tokens.since);
#pragma unroll
        for (int n = 0; n < 2; n++)
            weight.x[n] = exp2_fast(x[n]);
        weight.store(tokens.before);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int t = span.t0 + 2 * (int)(threadIdx.x % SR_WARP) + n;
            const bool counts = of_values && t >= span.from && t < span.past;
            factor.x[n] = counts ? factor.x[n] : 1;
            weight.x[n] = exp2_fast(all - x[n]) * factor.x[n];
        }
        weight.store(tokens.until);
#pragma unroll
        for (int n = 0; n < 2; n++)
            weight.x[n] = x[n] - log2_fast(factor.x[n]);
        weight.store(tokens.from);
        if (threadIdx.x % SR_WARP == 0)
            tokens.across = exp2_fast(all);
    }
};

/* ---- tiles ---- */

/* Rows of a head from column `begin` on, of which there are `columns`. */
SR_DEVICE sr_head_rows<const sr_bf16> chunk_rows(const sr_chunk_rows &rows, int b, int h,
                                                 int columns, int begin = 0) {
    return {rows.row(b, h, 0) + begin, rows.time, columns - begin, true};
}

/* Starts the cp.async copy of a chunk's rows by all THREADS threads of the block; rows outside the
 * span and columns past the end become zero. Complete after cp_async_wait and a barrier. */
template <int WIDTH, int THREADS>
SR_DEVICE void chunk_load(sr_bf16 *tile, const sr_head_rows<const sr_bf16> &rows,
                          const sr_chunk_span &span) {
    using Tile = sr_tile<WIDTH>;
    constexpr int APART = THREADS / Tile::chunks;
    static_assert(APART % 8 == 0, "all pieces of a thread have the same place in their rows");
    const int thread = thread_again(), row = thread / Tile::chunks, chunk = thread % Tile::chunks;
    const bool exists = 8 * chunk < rows.columns;
    const sr_bf16 *from = rows.rows + (exists ? (span.t0 + row) * rows.time + 8 * chunk : 0);
    sr_bf16 *const to = tile + Tile::offset(row, chunk);
    const int64_t apart = exists ? APART * rows.time : 0;
    if (exists && span.from == span.t0 && span.past == span.t0 + SR_CHUNK) {
#pragma unroll
        for (int n = 0; n < SR_CHUNK / APART; n++)
            cp_async_16(to + n * APART * WIDTH, from + n * apart);
        return;
    }
#pragma unroll 1
    for (int n = 0; n < SR_CHUNK / APART; n++) {
        const int t = span.t0 + row + n * APART;
        const bool copied = exists && t >= span.from && t < span.past;
        cp_async_16(to + n * APART * WIDTH, copied ? from + n * apart : rows.rows, copied ? 16 : 0);
    }
}

/* ---- products of a warp; `begin` counts columns of a tile in 8s ---- */

/* Loops use addresses that are computed again in each, since registers are scarce. */
SR_DEVICE int lane_again() {
    return thread_again() % SR_WARP;
}

/* The row and column of number e of C, the accumulators of mma side by side: c[e / 4][e % 4]. */
SR_DEVICE int sum_row(int e, int lane = warp_lane()) {
    return e % 4 / 2 * 8 + lane / 4;
}
SR_DEVICE int sum_column(int e, int lane = warp_lane()) {
    return e / 4 * 8 + 2 * (lane % 4) + e % 2;
}

template <int PIECES> SR_DEVICE void clear_pieces(float (&c)[PIECES][4]) {
#pragma unroll
    for (int e = 0; e < 4 * PIECES; e++)
        c[e / 4][e % 4] = 0;
}

/* Row r of C times factor[r], of a warp's 16 rows. */
template <int PIECES>
SR_DEVICE void scale_pieces(float (&c)[PIECES][4], const float *factor, float also = 1) {
    const int lane = lane_again();
    const float of_row[2] = {factor[sum_row(0, lane)] * also, factor[sum_row(2, lane)] * also};
#pragma unroll
    for (int e = 0; e < 4 * PIECES; e++)
        c[e / 4][e % 4] *= of_row[e % 4 / 2];
}

/* C (16 x 8 PIECES) += 64 or WIDTH columns, from 16 `k` on, of rows row .. row+15 of tile a, times
 * the transposed rows `other` .. of tile b, over its columns from 0 on. */
template <int WIDTH, int WIDTH_B, int COLUMNS, int PIECES>
SR_DEVICE void multiply_by_rows(float (&c)[PIECES][4], const sr_bf16 *a, int row, int k,
                                const sr_bf16 *b, int other) {
    const int lane = lane_again();
#pragma unroll(COLUMNS > 128 ? 1 : 2)
    for (int step = 0; step < COLUMNS / 16; step++) {
        uint32_t left[4], right[4];
        load_a<WIDTH>(left, a, row, k + step, lane);
#pragma unroll
        for (int n = 0; n < PIECES; n += 2) {
            load_b<WIDTH_B>(right, b, other + 8 * n, step, lane);
            mma_m16n8k16(c[n], left, right);
            mma_m16n8k16(c[n + 1], left, right + 2);
        }
    }
}

/* C += 64 columns, from 16 `k` on, of rows row .. row+15 of tile a, times the rows of tile b, from
 * its column 8 `begin` on. */
template <int WIDTH, int WIDTH_B, int PIECES>
SR_DEVICE void multiply_by_columns(float (&c)[PIECES][4], const sr_bf16 *a, int row, int k,
                                   const sr_bf16 *b, int begin) {
    const int lane = lane_again();
#pragma unroll 2
    for (int step = 0; step < SR_CHUNK_STRIPS; step++) {
        uint32_t left[4];
        load_a<WIDTH>(left, a, row, k + step, lane);
        multiply_rows<WIDTH_B>(c, left, b, 16 * step, begin / 2, lane);
    }
}

/* A: the transposed columns 16 c .. 16 c + 15 of the tile, as rows; the sum is over rows row ..
 * row+15. */
template <int WIDTH>
SR_DEVICE void load_a_columns(uint32_t (&a)[4], const sr_bf16 *tile, int row, int c,
                              int lane = warp_lane()) {
    ldmatrix_x4_transposed(a,
                           tile + row * WIDTH +
                               sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, c, lane / 8 % 2));
}

/* A times factor[n] of its columns n. */
SR_DEVICE void scale_columns(uint32_t (&a)[4], const float *factor, int lane) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 own = *reinterpret_cast<const float2 *>(factor + 2 * (lane % 4) + n / 2 * 8);
        const float2 pair = unpack_bf16(a[n]);
        a[n] = pack_bf16(pair.x * own.x, pair.y * own.y);
    }
}

/* Stores C to 16 rows of a tile, from column 8 `begin` on. One warp; complete after a barrier or
 * __syncwarp. */
template <int WIDTH, int PIECES>
SR_DEVICE void pieces_to_tile(sr_bf16 *rows, const float (&c)[PIECES][4], int begin) {
    const int lane = thread_again() % SR_WARP;
#pragma unroll
    for (int n = 0; n < PIECES; n += 2) {
        uint32_t a[4];
        pack_a(a, c[n], c[n + 1]);
        stmatrix_x4(rows + sr_tile<WIDTH>::offset(lane % 16, begin + n + lane / 16), a);
    }
}

/* <row, x> for the lane's two of rows row .. row+15 of a tile; x: (WIDTH) sums of PARTS in shared
 * memory. All four lanes of a row get it. */
template <int WIDTH, int PARTS>
SR_DEVICE void row_dots(float (&dot)[2], const sr_bf16 *tile, int row,
                        const float (&x)[PARTS][WIDTH]) {
    const int lane = lane_again();
    dot[0] = dot[1] = 0;
#pragma unroll 1
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t a[4];
        load_a<WIDTH>(a, tile, row, k, lane);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float2 at = {0, 0};
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const float2 own =
                    *reinterpret_cast<const float2 *>(x[part] + 16 * k + 8 * side + 2 * (lane % 4));
                at.x += own.x;
                at.y += own.y;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 pair = unpack_bf16(a[2 * side + half]);
                dot[half] = fmaf(pair.x, at.x, fmaf(pair.y, at.y, dot[half]));
            }
        }
    }
    dot[0] = quad_sum(dot[0]);
    dot[1] = quad_sum(dot[1]);
}

/* ---- the part of a state that a warp has ---- */

enum { SR_PART_PIECES = SR_CHUNK / 8, SR_PART_THREADS = SR_CHUNK_STRIPS * SR_WARP };

/* Numbers of the part of four warps: 64 values by 64 features, and sums of features. */
enum { SR_PART_NUMBERS = (4 * SR_PART_PIECES + 2) * SR_PART_THREADS };

/* S^T: a strip of 16 values by the 64 features of part `part`; warp 4 part + strip. And the sums of
 * those features, two for each lane, over the 16 tokens of every chunk that are the warp's. */
struct sr_state_part {
    float s[SR_PART_PIECES][4];
    float ones[2];

    static SR_DEVICE int strip() {
        return thread_again() / SR_WARP % SR_CHUNK_STRIPS;
    }
    static SR_DEVICE int part() {
        return thread_again() / SR_PART_THREADS;
    }

    SR_DEVICE void multiply(float factor) {
#pragma unroll
        for (int e = 0; e < 4 * SR_PART_PIECES; e++)
            s[e / 4][e % 4] *= factor;
        ones[0] *= factor;
        ones[1] *= factor;
    }
    SR_DEVICE void clear() {
        clear_pieces(s);
        ones[0] = ones[1] = 0;
    }

    /* S^T += values^T keys, tokens times their factors (NULL: 1), of a chunk. */
    template <int F>
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, const float *factor) {
        const int lane = lane_again(), own = strip(), begin = SR_CHUNK / 16 * part();
#pragma unroll 2
        for (int step = 0; step < SR_CHUNK_STRIPS; step++) {
            uint32_t a[4];
            load_a_columns<SR_CHUNK>(a, values, 16 * step, own, lane);
            if (factor)
                scale_columns(a, factor + 16 * step, lane);
            multiply_rows<F>(s, a, keys, 16 * step, begin, lane);
        }
    }

    /* Sums += keys, tokens times their factors. */
    template <int F> SR_DEVICE void add_ones(const sr_bf16 *keys, const float *factor) {
        const int lane = lane_again(), row = 16 * strip(), chunk = SR_CHUNK / 8 * part() + lane / 4;
#pragma unroll 4
        for (int n = 0; n < 16; n++) {
            const sr_bf16 *const at = keys + sr_tile<F>::offset(row + n, chunk) + lane % 4 * 2;
            const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(at));
            ones[0] = fmaf(pair.x, factor[row + n], ones[0]);
            ones[1] = fmaf(pair.y, factor[row + n], ones[1]);
        }
    }

    /* To a tile (64, F) of bf16; complete after a barrier, or for the warp's own rows a
     * __syncwarp. */
    template <int F> SR_DEVICE void publish(sr_bf16 *tile) const {
        pieces_to_tile<F>(tile + 16 * strip() * F, s, SR_PART_PIECES * part());
    }
    /* The warp's sums, to its row of (strips, F). */
    SR_DEVICE void publish_ones(float *of_strip) const {
        reinterpret_cast<float2 *>(of_strip + SR_CHUNK * part())[lane_again()] =
            make_float2(ones[0], ones[1]);
    }

    /* use(x, f, v): each number in an array (F, V), from f0 and v0 on, that exists. */
    template <class Use>
    SR_DEVICE void each(const sr_chunk_call &call, int f0, int v0, const Use &use) {
#pragma unroll
        for (int e = 0; e < 4 * SR_PART_PIECES; e++) {
            const int f = f0 + SR_CHUNK * part() + sum_column(e);
            const int v = v0 + 16 * strip() + sum_row(e);
            if (f < call.F && v < call.V)
                use(s[e / 4][e % 4], (int64_t)f * call.V + v);
        }
    }
    SR_DEVICE void get(const sr_chunk_call &call, const float *state, int f0, int v0) {
        each(call, f0, v0, [&](float &x, int64_t at) { x = state[at]; });
    }
    SR_DEVICE void put(const sr_chunk_call &call, float *state, int f0, int v0) {
        each(call, f0, v0, [&](float &x, int64_t at) { state[at] = x; });
    }

    /* As numbers in the order of threads. */
    SR_DEVICE void put_numbers(float *numbers) const {
        float *const own = numbers + part() * SR_PART_NUMBERS + thread_again() % SR_PART_THREADS;
#pragma unroll
        for (int e = 0; e < 4 * SR_PART_PIECES; e++)
            own[e * SR_PART_THREADS] = s[e / 4][e % 4];
        own[4 * SR_PART_PIECES * SR_PART_THREADS] = ones[0];
        own[(4 * SR_PART_PIECES + 1) * SR_PART_THREADS] = ones[1];
    }
    /* S = factor S + those. */
    SR_DEVICE void join_numbers(const float *numbers, float factor) {
        const float *const own =
            numbers + part() * SR_PART_NUMBERS + thread_again() % SR_PART_THREADS;
#pragma unroll
        for (int e = 0; e < 4 * SR_PART_PIECES; e++)
            s[e / 4][e % 4] = fmaf(s[e / 4][e % 4], factor, own[e * SR_PART_THREADS]);
        ones[0] = fmaf(ones[0], factor, own[4 * SR_PART_PIECES * SR_PART_THREADS]);
        ones[1] = fmaf(ones[1], factor, own[(4 * SR_PART_PIECES + 1) * SR_PART_THREADS]);
    }
};

/* ---- results ---- */

/* Four words of each lane of a quad, transposed: lane i gets words i, in the order of lanes. */
SR_DEVICE void quad_transpose(uint32_t (&r)[4]) {
    const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x / 2 % 2 != 0;
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
        const uint32_t got = shuffle_xor(odd ? r[m] : r[m + 1], 1);
        r[m] = odd ? got : r[m];
        r[m + 1] = odd ? r[m + 1] : got;
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint32_t got = shuffle_xor(upper ? r[m] : r[m + 2], 2);
        r[m] = upper ? got : r[m];
        r[m + 2] = upper ? r[m + 2] : got;
    }
}

/* Stores C, 16 rows of a chunk from `own` on, as bf16, 16 bytes at a time, to the rows of the span.
 * `to` begins at the first column of C. One warp. */
template <int PIECES>
SR_DEVICE void store_pieces(const sr_head_rows<sr_bf16> &to, const float (&c)[PIECES][4], int own,
                            const sr_chunk_span &span) {
    const int lane = lane_again();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = span.t0 + own + 8 * half + lane / 4;
        sr_bf16 *const row = to.rows + t * to.time;
        const bool exists = t >= span.from && t < span.past;
#pragma unroll
        for (int n = 0; n < PIECES; n += 4) {
            sr_vector<uint32_t> words;
#pragma unroll
            for (int m = 0; m < 4; m++)
                words.number[m] = n + m < PIECES ? pack_bf16(c[(n + m) % PIECES][2 * half],
                                                             c[(n + m) % PIECES][2 * half + 1])
                                                 : 0;
            quad_transpose(words.number);
            const int column = 8 * (n + lane % 4);
            if (exists && column < to.columns && n + lane % 4 < PIECES)
                store_vector(reinterpret_cast<uint32_t *>(row + column), words);
        }
    }
}

#endif
