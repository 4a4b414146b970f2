/* scores.h (private): scores with a gate per channel inside a chunk,
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

#include "attention/cuda/chunks/delta/tiles.h"
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
    /* Whether it needs a row as a query, or as a key. */
    SR_DEVICE bool reads(int row) const {
        return low == 0 || (row & low) != 0;
    }
    SR_DEVICE bool writes(int row) const {
        return low == 0 || (row & low) == 0;
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
    return delta_thread() / SR_WARP;
}
SR_DEVICE int channel_of(int set) {
    return 64 * set + 2 * (delta_thread() % SR_WARP);
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

/* The first token of a span before which a gate acts. */
SR_DEVICE int channel_from(const sr_chunk_span &span) {
    return span.continues ? span.from : span.from + 1;
}

/* Where the thread's word of row n of its group lies in a tile. */
template <int F> SR_DEVICE int channel_word(int s, int n) {
    const int lane = delta_thread() % SR_WARP;
    return sr_tile<F>::offset(CHANNEL_ROWS * channel_group() + n, 8 * s + lane / 4) +
           2 * (lane % 4);
}

template <int F> SR_DEVICE float2 channel_get(const sr_bf16 *tile, int s, int n) {
    return unpack_bf16(*reinterpret_cast<const uint32_t *>(tile + channel_word<F>(s, n)));
}
/* Returns what rounding took, in bf16. */
template <int F> SR_DEVICE uint32_t channel_put(sr_bf16 *tile, int s, int n, float2 x) {
    const uint32_t word = pack_bf16(x.x, x.y);
    *reinterpret_cast<uint32_t *>(tile + channel_word<F>(s, n)) = word;
    const float2 lost = x - unpack_bf16(word);
    return pack_bf16(lost.x, lost.y);
}

/* Whether a gate acts before token t of a span. */
SR_DEVICE bool channel_acts(const sr_chunk_span &span, int t) {
    return t >= channel_from(span) && t < span.past;
}

/* Starts the copy of the numbers that the caller has of gates to a tile, by one warp: its own
 * rows. */
template <int F>
SR_DEVICE void channel_load_numbers(sr_bf16 *tile, const sr_chunk_call &call, int b, int head,
                                    const sr_chunk_span &span) {
    const sr_chunk_rows &numbers = call.gates.numbers;
    const sr_bf16 *const from = numbers.row(b, head, 0);
#pragma unroll
    for (int n = delta_lane(); n < CHANNEL_ROWS * F / 8; n += SR_WARP) {
        const int row = CHANNEL_ROWS * channel_group() + n / (F / 8), chunk = n % (F / 8);
        const int t = span.t0 + row;
        const bool exists = channel_acts(span, t) && 8 * chunk < call.F;
        cp_async_16(tile + sr_tile<F>::offset(row, chunk),
                    exists ? from + (t - call.gates.later) * numbers.time + 8 * chunk : from,
                    exists ? 16 : 0);
    }
}

/* Two rows of them, from row n of the group on, with dt_bias. */
template <int F>
SR_DEVICE void channel_numbers(float (&z)[4], const sr_bf16 *tile, float2 bias, int s, int n) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float2 pair = channel_get<F>(tile, s, n + e) + bias;
        z[2 * e] = pair.x;
        z[2 * e + 1] = pair.y;
    }
}

/* dt_bias of set s of the thread's channels. */
SR_DEVICE float2 channel_bias(const sr_chunk_call &call, int head, int s) {
    const sr_gate_rule &rule = call.gates.rule;
    const int channel = channel_of(s);
    return rule.dt_bias && channel < call.F
               ? make_float2(gate_bias(rule, head, channel), gate_bias(rule, head, channel + 1))
               : make_float2(0, 0);
}

/* Logarithms of the gates of those rows, 0 where there are none. Parameters, not a struct: they
 * stay in registers. */
template <int F>
SR_DEVICE void channel_logarithms(float2 (&a)[2], const sr_bf16 *tile, const chunk_gate_head &rule,
                                  const sr_chunk_call &call, float2 bias, int s, int n,
                                  const sr_chunk_span &span) {
    const int t = span.t0 + CHANNEL_ROWS * channel_group() + n;
    const bool counts = channel_of(s) < call.F;
    float z[4], x[4];
    channel_numbers<F>(z, tile, bias, s, n);
    rule.logarithms(x, z);
#pragma unroll
    for (int e = 0; e < 2; e++)
        a[e] = counts && channel_acts(span, t + e) ? make_float2(x[2 * e], x[2 * e + 1])
                                                   : make_float2(0, 0);
}

/* Gates of the tokens of a span in shared memory, (64, F), until they have become a level's
 * exponents; a warp's rows are its own business. Columns are permuted so that what a half warp
 * reads as sums of mma, 4 rows of 8 columns, lies in different banks. */
template <int F> struct channel_gates {
    static constexpr int sets = F / 64;
    alignas(16) float number[SR_CHUNK * F];

    static SR_DEVICE int place(int row, int column) {
        return row * F + (column ^ row % 4 * 8);
    }
    /* Of a row and an even column. */
    SR_DEVICE float2 &pair(int row, int column) {
        return *reinterpret_cast<float2 *>(number + place(row, column));
    }
    SR_DEVICE float2 &at(int s, int n) {
        return pair(CHANNEL_ROWS * channel_group() + n, channel_of(s));
    }
    SR_DEVICE float2 get(int s, int n) const {
        return const_cast<channel_gates *>(this)->at(s, n);
    }

    /* Starts the copy of those of a span, 0 for others and for the token that begins a document, or
     * to `numbers`, a tile, of what the caller has of them. One warp: its own rows. */
    SR_DEVICE void load(sr_bf16 *numbers, const sr_chunk_call &call, int b, int head,
                        const sr_chunk_span &span) {
        if (!call.gate) {
            channel_load_numbers<F>(numbers, call, b, head, span);
            return;
        }
        const float *const gate = call.gate + call.row(call.Hkv, b, head, 0) * call.F;
#pragma unroll
        for (int n = delta_lane(); n < CHANNEL_ROWS * F / 4; n += SR_WARP) {
            const int row = CHANNEL_ROWS * channel_group() + n / (F / 4), c = n % (F / 4) * 4;
            const int t = span.t0 + row;
            const bool exists = channel_acts(span, t) && c < call.F;
            cp_async_16(number + place(row, c), gate + (exists ? (int64_t)t * call.F + c : 0),
                        exists ? 16 : 0);
        }
    }

    /* Once the warp's copies are complete: gates become their sums from the first row of the group
     * on, as logarithms to base 2; totals are complete after a barrier. */
    SR_DEVICE void sum_up(channel_totals<F> &totals, const sr_bf16 *numbers,
                          const sr_chunk_call &call, int head, const sr_chunk_span &span) {
        if (!call.gate)
            find(numbers, call, head, span);
#pragma unroll
        for (int s = 0; s < sets; s++) {
            float2 sum = {0, 0};
#pragma unroll
            for (int n = 0; n < CHANNEL_ROWS; n += 2) {
                float2 own[2] = {at(s, n), at(s, n + 1)};
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    sum = sum + own[e] * SR_LOG2_E;
                    at(s, n + e) = sum;
                }
            }
            totals.put(s, sum);
        }
    }

  private:
    /* The logarithms of a warp's rows from the caller's numbers. */
    SR_DEVICE void find(const sr_bf16 *numbers, const sr_chunk_call &call, int head,
                        const sr_chunk_span &span) {
        const chunk_gate_head rule(call.gates.rule, head);
#pragma unroll
        for (int s = 0; s < sets; s++) {
            const float2 bias = channel_bias(call, head, s);
#pragma unroll 1
            for (int n = 0; n < CHANNEL_ROWS; n += 2) {
                float2 own[2];
                channel_logarithms<F>(own, numbers, rule, call, bias, s, n, span);
                at(s, n) = own[0];
                at(s, n + 1) = own[1];
            }
        }
    }
};

/* 64, 32, 16 or 8: the largest block of tokens with gates in range in every channel. All warps
 * get the same. */
template <int F> SR_DEVICE int channel_range(const channel_totals<F> &totals) {
    const auto fits =
        [&](int groups) { /* whether blocks of this many groups do */
                          bool all = true;
#pragma unroll
                          for (int s = 0; s < F / 64; s++)
                              for (int begin = 0; begin < CHANNEL_WARPS; begin += groups) {
                                  float2 sum = {0, 0};
                                  for (int group = begin; group < begin + groups; group++)
                                      sum = sum + totals.get(group, s);
                                  all = all && fminf(sum.x, sum.y) >= -SR_CHANNEL_RANGE;
                              }
                          return warp_ballot(!all) == 0;
        };
    for (int groups = CHANNEL_WARPS; groups > 1; groups /= 2)
        if (fits(groups))
            return groups * CHANNEL_ROWS;
    return CHANNEL_ROWS;
}

/* ---- the factors of a level, for a thread's rows and channels ---- */

/* Rows with exponent x are scaled by 2^x where they are queries, by 2^(all - x) as keys. */
template <int F> struct channel_factors {
    static constexpr int sets = F / 64;
    float2 offset[sets]; /* x less the group's own sums */
    float2 all[sets];    /* all gates of the span where anchors are its two ends, else 0 */
    bool queries, keys;  /* whether the level needs the rows as such */
    bool whole;          /* the level is all pairs of the chunk */
    bool least;          /* gates are at least SR_CHANNEL_LEAST */

    SR_DEVICE void open(const channel_gates<F> &gates, const channel_totals<F> &totals,
                        const channel_level &level) {
        const bool middle = level.has_diagonal();
        queries = keys = true;
        whole = middle && level.high == SR_CHUNK;
        least = middle && level.high == CHANNEL_ROWS;
        const int own = channel_group();
        int begin = 0, end = CHANNEL_WARPS; /* groups: the anchors of queries and of keys */
        if (middle && !whole) {
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
            if (least) {
                after = inside(gates, s);
            } else {
                for (int group = begin; group < own; group++)
                    before = before + totals.get(group, s);
                for (int group = own; group < end; group++)
                    after = after + totals.get(group, s);
            }
            const bool ends = !middle && level.low == 0;
            all[s] = ends ? before + after : make_float2(0, 0);
            offset[s] = middle ? (before - after) * 0.5f : queries ? before : before - after;
        }
    }

    /* use(s, n, x) for each set and row, x its exponent. The row's gate may be overwritten. */
    template <class Use> SR_DEVICE void each(const channel_gates<F> &gates, const Use &use) const {
#pragma unroll
        for (int s = 0; s < sets; s++) {
            float2 sum = {0, 0};
            float2 above = gates.get(s, 0);
#pragma unroll 1
            for (int n = 0; n < CHANNEL_ROWS; n++) {
                const float2 own = gates.get(s, n);
                sum = least ? sum + limited(own - above) : own;
                above = own;
                use(s, n, sum + offset[s]);
            }
        }
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
};

/* ---- scaled tiles ---- */

SR_DEVICE float2 channel_exp2(float2 x) {
    return make_float2(exp2_fast(x.x), exp2_fast(x.y));
}

/* The tiles of a span: rows, then those of a level. */
template <int F> struct channel_tiles {
    alignas(16) sr_bf16 queries[SR_CHUNK * F]; /* times `scale` and 2^x */
    sr_bf16 readers[SR_CHUNK * F];             /* keys, times 2^x: what the delta rule erases */
    sr_bf16 writers[SR_CHUNK * F];             /* keys, times 2^(all - x) */
    channel_gates<F> gates;                    /* x */
    channel_totals<F> totals;
    alignas(8) float all[F]; /* of the level's factors */

    /* Starts the copies of a span's rows; by all threads. */
    SR_DEVICE void load(const sr_chunk_call &call, int b, int query, int head,
                        const sr_chunk_span &span) {
        chunk_load<F, CHANNEL_THREADS>(queries,
                                       chunk_rows(call.q, b, call.query_head(query), call.F), span);
        chunk_load<F, CHANNEL_THREADS>(readers, chunk_rows(call.k, b, call.key_head(head), call.F),
                                       span);
        gates.load(writers, call, b, head, span);
    }
    /* Once the warp's copies of gates are complete; totals are complete after a barrier. */
    SR_DEVICE void sum_up(const sr_chunk_call &call, int head, const sr_chunk_span &span) {
        gates.sum_up(totals, writers, call, head, span);
    }

    /* Those become the tiles of a level, but for that of readers without READERS; rows that it
     * does not need become zero. In the place of gates are left, with EXPONENTS, the exponents,
     * else what rounding took from two neighbours of queries and of writers, in bf16. By all
     * threads; complete after a barrier. */
    template <bool EXPONENTS, bool READERS>
    SR_DEVICE void scale_rows(const channel_factors<F> &factors, float scale) {
        if (EXPONENTS && channel_group() == 0)
#pragma unroll
            for (int s = 0; s < F / 64; s++)
                *reinterpret_cast<float2 *>(all + channel_of(s)) = factors.all[s];
        const auto put = [&](int s, int n, float2 x, float2 query, float2 key, float2 write) {
            const uint32_t lost[2] = {channel_put<F>(queries, s, n, query),
                                      channel_put<F>(writers, s, n, write)};
            if (READERS)
                channel_put<F>(readers, s, n, key);
            gates.at(s, n) = EXPONENTS ? x : make_float2(bits_float(lost[0]), bits_float(lost[1]));
        };
        if (factors.whole) {
#pragma unroll
            for (int s = 0; s < F / 64; s++)
#pragma unroll 2
                for (int n = 0; n < CHANNEL_ROWS; n++) {
                    const float2 x = gates.get(s, n) + factors.offset[s];
                    const float2 read = channel_exp2(x), write = channel_exp2(x * -1.0f);
                    const float2 key = channel_get<F>(readers, s, n);
                    put(s, n, x, channel_get<F>(queries, s, n) * (read * scale), key * read,
                        key * write);
                }
            return;
        }
        factors.each(gates, [&](int s, int n, float2 x) {
            const float2 none = {0, 0}, key = channel_get<F>(readers, s, n);
            const float2 read = channel_exp2(x), write = channel_exp2(factors.all[s] - x);
            const float2 query = channel_get<F>(queries, s, n) * (read * scale);
            put(s, n, x, factors.queries ? query : none, factors.queries ? key * read : none,
                factors.keys ? key * write : none);
        });
    }
};

/* ---- products ---- */

/* What rounding took from the numbers that a lane has of fragments of queries and writers. The
 * addresses differ from one k to the next in one term. */
template <int F> struct channel_lost_words {
    const float *near, *far; /* of a lane's first two columns of 16, and of those 8 further */
    int permuted;            /* the 16s of columns are permuted by this */

    SR_DEVICE channel_lost_words(const channel_gates<F> &gates, int lane) {
        const int row = lane / 4, column = 2 * (lane % 4), swap = row % 4 * 8;
        near = gates.number + row * F + column + swap % 16;
        far = gates.number + row * F + column + 8 - swap % 16;
        permuted = swap / 16;
    }
    /* As the B fragments of rows j .. j+15, and the A fragment of rows i .. i+15. */
    SR_DEVICE void of_writers(uint32_t (&b)[4], int j, int k) const {
        const int at = j * F + 16 * (k ^ permuted) + 1;
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[n] = float_bits((n % 2 ? far : near)[at + n / 2 * 8 * F]);
    }
    SR_DEVICE void of_queries(uint32_t (&a)[4], int i, int k) const {
        const int at = i * F + 16 * (k ^ permuted);
#pragma unroll
        for (int n = 0; n < 4; n++)
            a[n] = float_bits((n / 2 ? far : near)[at + n % 2 * 8 * F]);
    }
};

/* w = the products of rows i .. i+15 of queries, or else of readers, and j .. j+15 of writers that
 * are of the level, which visits them, and 0 for others. Products of what rounding took from one
 * of the factors are added: rows that see few keys have weights far smaller than the terms of
 * their sums, and a norm makes gradients of such rows the largest. */
template <int F>
SR_DEVICE void channel_pairs(float (&w)[2][4], const channel_tiles<F> &tiles, bool queries, int i,
                             int j, const channel_level &level) {
    const sr_bf16 *const rows = queries ? tiles.queries : tiles.readers;
    const channel_lost_words<F> left(tiles.gates, delta_lane());
    clear_pieces(w);
#pragma unroll 1
    for (int k = 0; k < F / 16; k++) {
        uint32_t a[4], b[4], lost[4];
        load_a<F>(a, rows, i, k, delta_lane());
        load_b<F>(b, tiles.writers, j, k, delta_lane());
        mma_m16n8k16(w[0], a, b);
        mma_m16n8k16(w[1], a, b + 2);
        left.of_writers(lost, j, k);
        mma_m16n8k16(w[0], a, lost);
        mma_m16n8k16(w[1], a, lost + 2);
        if (!queries)
            continue;
        left.of_queries(lost, i, k);
        mma_m16n8k16(w[0], lost, b);
        mma_m16n8k16(w[1], lost, b + 2);
    }
    if (i == j) {
        const int lane = delta_lane();
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[e / 4][e % 4] =
                level.has(sum_row(e, lane), sum_column(e, lane)) ? w[e / 4][e % 4] : 0;
    }
}

/* A fragment of a block of pairs on the diagonal, nothing above it, keeps those of the level;
 * `lower`: the quarter of pairs 8 and more apart. */
SR_DEVICE void channel_limit(uint32_t (&a)[4], int lower, const channel_level &level) {
    if (level.low > 0)
        a[0] = a[3] = 0;
    if (level.high <= CHANNEL_ROWS)
        a[lower] = 0;
}

/* C += rows own .. of pairs, (64, 64), those of the level, times those rows of a tile, from its
 * column 8 `begin` on. */
template <int WIDTH, int PIECES>
SR_DEVICE void channel_multiply_rows(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                     const sr_bf16 *tile, int begin, const channel_level &level) {
    const int lane = delta_lane();
#pragma unroll 1
    for (int at = 0; at <= own; at += 16)
        if (level.visits(own, at)) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, pairs, own, at / 16, lane);
            if (at == own)
                channel_limit(a, 1, level);
            multiply_rows<WIDTH>(c, a, tile, at, begin / 2, lane);
        }
}

/* C += the transposed columns own .. of the pairs times those rows of a tile. */
template <int WIDTH, int PIECES>
SR_DEVICE void channel_multiply_columns(float (&c)[PIECES][4], const sr_bf16 *pairs, int own,
                                        const sr_bf16 *tile, int begin,
                                        const channel_level &level) {
    const int lane = delta_lane();
#pragma unroll 1
    for (int at = own; at < SR_CHUNK; at += 16)
        if (level.visits(at, own)) {
            uint32_t a[4];
            load_a_columns<SR_CHUNK>(a, pairs, at, own / 16, lane);
            if (at == own)
                channel_limit(a, 2, level);
            multiply_rows<WIDTH>(c, a, tile, at, begin / 2, lane);
        }
}

#endif
