/* channel_scores.h (private): scores with a gate per channel inside a chunk,
 *     P_ij = sum over channels of q_i k_j e^(c_i - c_j),  j <= i, c the running sum of gates,
 * as products of scaled tiles.
 *
 * A level is a set of pairs that one product finds: rows q e^(c_i - x) times rows k e^(x - c_j), x
 * an anchor per channel. Where no channel of the chunk forgets more than 2^-SR_CHANNEL_RANGE, one
 * level is enough: anchored in the middle of all gates, neither factor leaves the range of bf16,
 * and pairs j > i, which may, are masked. Otherwise levels take the pairs from far to near: those
 * with a multiple of 32 between them, anchored there, so that no factor is above 1 and those below
 * its range are too small to matter; then 16 and 8; and as soon as blocks of 32, 16 or 8 tokens are
 * in range the pairs inside them, anchored in their middle. In blocks of 8 tokens gates are at
 * least 2^SR_CHANNEL_LEAST, and always in range: what is below is 0 for bf16 and for float.
 *
 * Elementwise work has one layout: warp w of CHANNEL_WARPS has rows 8 w .. 8 w + 7 of the chunk, a
 * lane two neighbouring channels of each 64. A row of a tile is one word of each lane. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CHANNEL_SCORES_H
#define SR_ATTENTION_CUDA_CHUNKS_CHANNEL_SCORES_H

#include "attention/cuda/chunks/tiles.h"

enum { CHANNEL_ROWS = 8, CHANNEL_WARPS = SR_CHUNK / CHANNEL_ROWS };
enum { CHANNEL_THREADS = CHANNEL_WARPS * SR_WARP };

/* Logarithms to base 2. */
#define SR_CHANNEL_RANGE 160.0f
#define SR_CHANNEL_LEAST (-28.0f)

/* ---- levels ---- */

/* Pairs with low <= (i xor j) < high; `state`: the last level, whose tiles also meet the states. */
struct channel_level {
    int low, high;
    bool state;

    SR_DEVICE bool has(int i, int j) const {
        const int apart = i ^ j;
        return j <= i && apart >= low && apart < high;
    }
    /* Whether some pairs of rows i .. i+15 and j .. j+15 are of the level. */
    SR_DEVICE bool visits(int i, int j) const {
        const int apart = i ^ j;
        return apart < high && apart + 16 > low;
    }
    SR_DEVICE bool is_first() const {
        return high == SR_CHUNK;
    }
    SR_DEVICE bool has_diagonal() const {
        return low == 0 && high > 0;
    }
};

/* `range`: the tokens of blocks whose gates are in range, from channel_range. */
SR_DEVICE channel_level channel_first_level(int range) {
    return range == SR_CHUNK ? channel_level{0, SR_CHUNK, true}
                             : channel_level{SR_CHUNK / 2, SR_CHUNK, false};
}

SR_DEVICE channel_level channel_next_level(const channel_level &level, int range) {
    if (level.low > range)
        return {level.low / 2, level.low, false};
    return level.low == range ? channel_level{0, range, false} : channel_level{0, 0, true};
}

/* ---- gates ---- */

SR_DEVICE int channel_group() {
    return thread_again() / SR_WARP;
}
SR_DEVICE int channel_of(int set) {
    return 64 * set + 2 * (thread_again() % SR_WARP);
}

SR_DEVICE float2 operator+(float2 x, float2 y) {
    return make_float2(x.x + y.x, x.y + y.y);
}
SR_DEVICE float2 operator-(float2 x, float2 y) {
    return make_float2(x.x - y.x, x.y - y.y);
}
SR_DEVICE float2 operator*(float2 x, float2 y) {
    return make_float2(x.x * y.x, x.y * y.y);
}
SR_DEVICE float2 operator*(float2 x, float y) {
    return make_float2(x.x * y, x.y * y);
}

/* Sums of the gates of each group of 8 tokens, in shared memory. */
template <int F> struct channel_totals {
    float of_group[CHANNEL_WARPS][F];

    SR_DEVICE float2 get(int group, int set) const {
        return *reinterpret_cast<const float2 *>(of_group[group] + channel_of(set));
    }
    SR_DEVICE void put(int set, float2 x) {
        *reinterpret_cast<float2 *>(of_group[channel_group()] + channel_of(set)) = x;
    }
    /* Of all tokens, for one channel. */
    SR_DEVICE float all(int channel) const {
        float sum = 0;
#pragma unroll
        for (int group = 0; group < CHANNEL_WARPS; group++)
            sum += of_group[group][channel];
        return sum;
    }
};

/* Gates of the tokens of a span in shared memory, (64, F); a warp's rows are its own business. */
template <int F> struct channel_gates {
    static constexpr int sets = F / 64;
    alignas(16) float number[SR_CHUNK * F];

    SR_DEVICE float2 &at(int s, int n) {
        const int row = CHANNEL_ROWS * channel_group() + n;
        return *reinterpret_cast<float2 *>(number + row * F + channel_of(s));
    }
    SR_DEVICE float2 get(int s, int n) const {
        return const_cast<channel_gates *>(this)->at(s, n);
    }

    /* Starts the copy of those of a span, 0 for others and for the token that begins a document,
     * from rows of `channels`, (T, channels). One warp: its own rows. */
    SR_DEVICE void load(const float *gate, int channels, const sr_chunk_span &span) {
        const int from = span.continues ? span.from : span.from + 1;
#pragma unroll
        for (int n = lane_again(); n < CHANNEL_ROWS * F / 4; n += SR_WARP) {
            const int row = CHANNEL_ROWS * channel_group() + n / (F / 4), c = n % (F / 4) * 4;
            const int t = span.t0 + row;
            const bool exists = t >= from && t < span.past && c < channels;
            cp_async_16(number + row * F + c, gate + (exists ? (int64_t)t * channels + c : 0),
                        exists ? 16 : 0);
        }
    }

    /* Once the warp's copies are complete: gates become their sums from the first row of the group
     * on, as logarithms to base 2; totals are complete after a barrier. */
    SR_DEVICE void sum_up(channel_totals<F> &totals) {
#pragma unroll
        for (int s = 0; s < sets; s++) {
            float2 sum = {0, 0};
#pragma unroll
            for (int n = 0; n < CHANNEL_ROWS; n++) {
                sum = sum + at(s, n) * SR_LOG2_E;
                at(s, n) = sum;
            }
            totals.put(s, sum);
        }
    }
};

/* 64, 32, 16 or 8: the largest block of tokens with gates in range in every channel. All warps
 * get the same. */
template <int F> SR_DEVICE int channel_range(const channel_totals<F> &totals) {
    bool fits64 = true, fits32 = true, fits16 = true;
#pragma unroll
    for (int s = 0; s < F / 64; s++) {
        float2 of64 = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 of32 = {0, 0};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int group = 4 * half + 2 * n;
                const float2 of16 = totals.get(group, s) + totals.get(group + 1, s);
                fits16 = fits16 && fminf(of16.x, of16.y) >= -SR_CHANNEL_RANGE;
                of32 = of32 + of16;
            }
            fits32 = fits32 && fminf(of32.x, of32.y) >= -SR_CHANNEL_RANGE;
            of64 = of64 + of32;
        }
        fits64 = fits64 && fminf(of64.x, of64.y) >= -SR_CHANNEL_RANGE;
    }
    const bool all64 = warp_ballot(!fits64) == 0, all32 = warp_ballot(!fits32) == 0;
    const bool all16 = warp_ballot(!fits16) == 0;
    return all64 ? 64 : all32 ? 32 : all16 ? 16 : 8;
}

/* ---- the factors of a level, for a thread's rows and channels ---- */

template <int F> struct channel_factors {
    static constexpr int sets = F / 64;
    float2 of_query[sets], of_key[sets]; /* exponents less, and plus, the group's own sums */
    bool queries, keys;                  /* whether the level needs the rows as such */
    bool least;                          /* gates are at least SR_CHANNEL_LEAST */

    SR_DEVICE void open(const channel_gates<F> &gates, const channel_totals<F> &totals,
                        const channel_level &level) {
        const int own = channel_group();
        const bool middle = level.has_diagonal();
        int begin = 0, end = CHANNEL_WARPS; /* groups: the anchors of queries and of keys */
        queries = keys = true;
        least = middle && level.high == CHANNEL_ROWS;
        if (middle) {
            const int groups = level.high / CHANNEL_ROWS;
            begin = own / groups * groups;
            end = begin + groups;
        } else if (level.low > 0) {
            const int groups = level.low / CHANNEL_ROWS;
            begin = end = own / (2 * groups) * (2 * groups) + groups;
            queries = own >= begin;
            keys = !queries;
        }
#pragma unroll
        for (int s = 0; s < sets; s++) {
            float2 before = {0, 0}, after = {0, 0};
#pragma unroll
            for (int group = 0; group < CHANNEL_WARPS; group++) {
                const float2 total = totals.get(group, s);
                if (group >= begin && group < own)
                    before = before + total;
                if (group >= own && group < end)
                    after = after + total;
            }
            if (least)
                after = inside(gates, s);
            const float2 half = (before + after) * (middle ? 0.5f : 0.0f);
            of_query[s] = before - half;
            of_key[s] = after - half;
        }
    }

    /* use(s, n, factor) for each set and row, as a query or as a key. */
    template <class Use>
    SR_DEVICE void each_query(const channel_gates<F> &gates, const Use &use) const {
        each_sum(gates, [&](int s, int n, float2 sum) {
            const float2 x = sum + of_query[s];
            use(s, n, make_float2(exp2_fast(x.x), exp2_fast(x.y)));
        });
    }
    template <class Use>
    SR_DEVICE void each_key(const channel_gates<F> &gates, const Use &use) const {
        each_sum(gates, [&](int s, int n, float2 sum) {
            const float2 x = of_key[s] - sum;
            use(s, n, make_float2(exp2_fast(x.x), exp2_fast(x.y)));
        });
    }

  private:
    /* The gate between two rows, at least SR_CHANNEL_LEAST. */
    static SR_DEVICE float2 limited(float2 gate) {
        return make_float2(fmaxf(gate.x, SR_CHANNEL_LEAST), fmaxf(gate.y, SR_CHANNEL_LEAST));
    }
    /* The sum of those of the group, but for the first row's. */
    static SR_DEVICE float2 inside(const channel_gates<F> &gates, int s) {
        float2 sum = {0, 0};
        for (int n = 1; n < CHANNEL_ROWS; n++)
            sum = sum + limited(gates.get(s, n) - gates.get(s, n - 1));
        return sum;
    }

    template <class Use>
    SR_DEVICE void each_sum(const channel_gates<F> &gates, const Use &use) const {
#pragma unroll
        for (int s = 0; s < sets; s++) {
            float2 sum = {0, 0};
            float2 above = gates.get(s, 0);
#pragma unroll 4
            for (int n = 0; n < CHANNEL_ROWS; n++) {
                const float2 own = gates.get(s, n);
                sum = least ? sum + limited(own - above) : own;
                above = own;
                use(s, n, sum);
            }
        }
    }
};

/* ---- scaled tiles ---- */

/* Where the thread's word of row n of its group lies in a tile. */
template <int F> SR_DEVICE int channel_word(int s, int n) {
    const int lane = thread_again() % SR_WARP;
    return sr_tile<F>::offset(CHANNEL_ROWS * channel_group() + n, 8 * s + lane / 4) +
           2 * (lane % 4);
}

template <int F> SR_DEVICE float2 channel_get(const sr_bf16 *tile, int s, int n) {
    return unpack_bf16(*reinterpret_cast<const uint32_t *>(tile + channel_word<F>(s, n)));
}
template <int F> SR_DEVICE void channel_put(sr_bf16 *tile, int s, int n, float2 x) {
    *reinterpret_cast<uint32_t *>(tile + channel_word<F>(s, n)) = pack_bf16(x.x, x.y);
}

/* The rows of `from` times their factors of a level, and `scale`; rows that it does not need become
 * zero. By all threads; complete after a barrier. */
template <int F>
SR_DEVICE void channel_scale_queries(sr_bf16 *to, const sr_bf16 *from,
                                     const channel_gates<F> &gates,
                                     const channel_factors<F> &factors, float scale) {
    factors.each_query(gates, [&](int s, int n, float2 factor) {
        const float2 x = channel_get<F>(from, s, n) * (factor * scale);
        channel_put<F>(to, s, n, factors.queries ? x : make_float2(0, 0));
    });
}
template <int F>
SR_DEVICE void channel_scale_keys(sr_bf16 *to, const sr_bf16 *from, const channel_gates<F> &gates,
                                  const channel_factors<F> &factors) {
    factors.each_key(gates, [&](int s, int n, float2 factor) {
        const float2 x = channel_get<F>(from, s, n) * factor;
        channel_put<F>(to, s, n, factors.keys ? x : make_float2(0, 0));
    });
}

/* ---- products ---- */

/* w = the products of rows i .. i+15 of tile a and j .. j+15 of tile b that are of the level, and 0
 * for others. */
template <int WIDTH>
SR_DEVICE void channel_pairs(float (&w)[2][4], const sr_bf16 *a, int i, const sr_bf16 *b, int j,
                             const channel_level &level) {
    clear_pieces(w);
    multiply_by_rows<WIDTH, WIDTH, WIDTH>(w, a, i, 0, b, j);
    const int lane = lane_again();
#pragma unroll
    for (int e = 0; e < 8; e++)
        w[e / 4][e % 4] =
            level.has(i + sum_row(e, lane), j + sum_column(e, lane)) ? w[e / 4][e % 4] : 0;
}

/* C += rows own .. of the level's pairs, (64, 64), times those rows of a tile, from its column 8
 * `begin` on. */
template <int WIDTH, int PIECES>
SR_DEVICE void channel_multiply_rows(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                     const sr_bf16 *tile, int begin, const channel_level &level) {
    const int lane = lane_again();
#pragma unroll 1
    for (int at = 0; at <= own; at += 16)
        if (level.visits(own, at)) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, pairs, own, at / 16, lane);
            multiply_rows<WIDTH>(c, a, tile, at, begin / 2, lane);
        }
}

/* C += the transposed columns own .. of the pairs times those rows of a tile. */
template <int WIDTH, int PIECES>
SR_DEVICE void channel_multiply_columns(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                        const sr_bf16 *tile, int begin,
                                        const channel_level &level) {
    const int lane = lane_again();
#pragma unroll 1
    for (int at = own; at < SR_CHUNK; at += 16)
        if (level.visits(at, own)) {
            uint32_t a[4];
            load_a_columns<SR_CHUNK>(a, pairs, at, own / 16, lane);
            multiply_rows<WIDTH>(c, a, tile, at, begin / 2, lane);
        }
}

#endif
