/* one_token.h: attention of one new token over the KV cache: the work of a block, in either decode
 * kernel.
 *
 * Lanes hold eight numbers of a key each, so that a warp handles several keys at a time with 16
 * bytes per lane; each group of lanes runs its own online softmax over its keys, then the groups of
 * a warp and the warps of the block are combined, all in a fixed order. */
#ifndef SR_ATTENTION_CUDA_DECODE_ONE_TOKEN_H
#define SR_ATTENTION_CUDA_DECODE_ONE_TOKEN_H

#include "attention/cuda/decode/state.h"

enum { SR_ONE_TOGETHER = 2 }; /* keys that a group of lanes loads at a time */

/* Online softmax over some of the keys: weights relative to 2^maximum. */
template <int COUNT> struct key_sums { float maximum, sum, x[COUNT]; };

template <int COUNT> SR_DEVICE void sums_start(key_sums<COUNT> &sums, const sr_score_rule &rule) {
    sums = {};
    sums.maximum = rule.maximum ? -INFINITY : 0;
}

template <int COUNT> SR_DEVICE void sums_scale(key_sums<COUNT> &sums, float factor) {
    sums.sum *= factor;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] *= factor;
}

/* Adds one key and its value; rescales if the key raises the running maximum. */
template <int COUNT>
SR_DEVICE void sums_take(key_sums<COUNT> &sums, const sr_score_rule &rule, float dot, float decay,
                         const float (&value)[COUNT]) {
    const sr_signed_log s = weight_before(rule, dot, decay);
    float weight = s.log2;
    if (rule.kind != SR_CLASS_POLYNOMIAL) {
        const float unit = unit_of(rule);
        if (rule.maximum && s.log2 > sums.maximum) {
            sums_scale(sums, exp2f((sums.maximum - s.log2) * unit));
            sums.maximum = s.log2;
        }
        const float shift = sums.maximum == -INFINITY ? 0 : sums.maximum;
        weight = exp2f((s.log2 - shift) * unit);
        weight = s.negative ? -weight : weight;
    }
    sums.sum += weight;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] = fmaf(weight, value[m], sums.x[m]);
}

/* Dot products of the keys that a group of lanes has at a time. */
struct key_dots {
    bool there[SR_ONE_TOGETHER];
    float dot[SR_ONE_TOGETHER], decay[SR_ONE_TOGETHER];
};

/* Adds all of them at once where the weights are exponentials of the dot products: one
 * rescaling. */
template <class Row, class N>
SR_DEVICE void sums_take_exponentials(key_sums<8> &sums, const sr_score_rule &rule,
                                      const key_dots &keys,
                                      const sr_raw_eight<N> (&values)[SR_ONE_TOGETHER]) {
    float log[SR_ONE_TOGETHER], now = sums.maximum;
#pragma unroll
    for (int i = 0; i < SR_ONE_TOGETHER; i++) {
        log[i] = keys.there[i] ? clamp_dot(rule, keys.dot[i]) + keys.decay[i] : -INFINITY;
        now = fmaxf(now, log[i]);
    }
    const float unit = rule.scale_log2, shift = now == -INFINITY ? 0 : now;
    sums_scale(sums, exp2f((sums.maximum - shift) * unit));
    sums.maximum = now;
#pragma unroll
    for (int i = 0; i < SR_ONE_TOGETHER; i++) {
        const float weight = exp2f((log[i] - shift) * unit);
        float value[8];
        row_widen<Row>(value, values[i]);
        sums.sum += weight;
#pragma unroll
        for (int m = 0; m < 8; m++)
            sums.x[m] = fmaf(weight, value[m], sums.x[m]);
    }
}

template <class Row, class N>
SR_DEVICE void sums_take_each(key_sums<8> &sums, const sr_score_rule &rule, const key_dots &keys,
                              const sr_raw_eight<N> (&values)[SR_ONE_TOGETHER]) {
#pragma unroll
    for (int i = 0; i < SR_ONE_TOGETHER; i++) {
        float value[8];
        row_widen<Row>(value, values[i]);
        if (keys.there[i])
            sums_take(sums, rule, keys.dot[i], keys.decay[i], value);
    }
}

/* Combines two online softmax states. */
template <int COUNT>
SR_DEVICE void sums_add(key_sums<COUNT> &sums, const key_sums<COUNT> &other, float unit) {
    const float maximum = fmaxf(sums.maximum, other.maximum);
    const float factor = other.maximum == maximum ? 1 : exp2f((other.maximum - maximum) * unit);
    if (sums.maximum != maximum)
        sums_scale(sums, exp2f((sums.maximum - maximum) * unit));
    sums.maximum = maximum;
    sums.sum = fmaf(factor, other.sum, sums.sum);
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] = fmaf(factor, other.x[m], sums.x[m]);
}

/* Combines the groups of the warp. */
template <class Row> SR_DEVICE void warp_sums(key_sums<Row::count> &sums, float unit) {
    float maximum = sums.maximum;
    for (int mask = SR_WARP / 2; mask >= Row::lanes; mask /= 2)
        maximum = fmaxf(maximum, shuffle_xor(maximum, mask));
    sums_scale(sums, sums.maximum == maximum ? 1 : exp2f((sums.maximum - maximum) * unit));
    sums.maximum = maximum;
    sums.sum = Row::sum_of_rows(sums.sum);
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        sums.x[m] = Row::sum_of_rows(sums.x[m]);
}

/* The head of a block. */
struct one_place {
    int b, h, kv;
    int row, position; /* of (B, H); of the new token */
    int64_t cache;     /* where the kv head's tokens begin */
};

template <class N>
SR_DEVICE one_place place_of(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                             int row) {
    one_place at = {};
    at.row = row;
    at.b = call.B == 1 ? 0 : row / call.H; /* divisions are slow */
    at.h = row - at.b * call.H;
    at.kv = call.group == 1 ? at.h : at.h / call.group;
    at.cache = ((int64_t)at.b * call.Hkv + at.kv) * memory.capacity;
    return at;
}

/* The head's rows of the new token: in global memory, or in shared memory after RoPE. */
template <class N> struct one_token { const N *q, *k, *v; };

/* Keys first, first + step, ... of a warp. */
struct key_walk {
    int first, step;
};

/* The share of a warp: a round has `each` keys, and rounds are distributed round-robin over the
 * blocks of a row. A block takes part only if every warp of the others has a round: combining sums
 * across blocks takes longer than that. */
template <int WIDTH, int WARPS> struct one_share {
    using Row = sr_eight_row<WIDTH>;
    static constexpr int each = Row::rows * SR_ONE_TOGETHER;
    int shares;
    int warps; /* warps of the block that have keys */
    key_walk walk;

    SR_DEVICE one_share(int position, int part, int parts) {
        const int rounds = position / each + 1;
        shares = min(parts, (rounds + WARPS - 1) / WARPS);
        warps = min(WARPS, (max(rounds - part, 0) + shares - 1) / shares);
        walk.first = ((int)(threadIdx.x / SR_WARP) * shares + part) * each;
        walk.step = shares * WARPS * each;
    }
};

/* The call, the KV cache, and the block's place in both. WHOLE: heads have multiples of eight
 * numbers and are aligned to 16 bytes. EXPONENTIAL: sr_is_exponential; the other scores make a long
 * program, which is slow to run through even where no branch is taken. */
template <class N, bool WHOLE, bool EXPONENTIAL> struct one_feed {
    const sr_attention_view<N> &call;
    const sr_kv_cache<N> &memory;
    one_place at;
    one_token<N> token;
};

/* Keys and values that a group of lanes has at a time, as they lie in memory. */
template <class N> struct key_round { sr_raw_eight<N> k[SR_ONE_TOGETHER], v[SR_ONE_TOGETHER]; };

/* A lane's eight neighbours of a row of n numbers. */
template <class Row, bool WHOLE, class N>
SR_DEVICE void fetch_eight(sr_raw_eight<N> &raw, const N *from, int n) {
    if constexpr (WHOLE) {
        constexpr int each = sr_vector<N>::count;
        raw = {};
#pragma unroll
        for (int m = 0; m < 8; m += each)
            if (Row::column(0) < n)
                raw_load(raw, m, from + Row::column(m));
    } else {
        row_fetch<Row>(raw, from, n);
    }
}

/* Issues the loads of a round of cached keys and values, from token `from` on, without waiting for
 * them. */
template <int WIDTH, class N, bool WHOLE, bool EXPONENTIAL>
SR_DEVICE void fetch_round(key_round<N> &round, const one_feed<N, WHOLE, EXPONENTIAL> &feed,
                           int from) {
    using Row = sr_eight_row<WIDTH>;
    const int D = feed.call.D, Dv = feed.call.Dv;
    round = {};
#pragma unroll
    for (int i = 0; i < SR_ONE_TOGETHER; i++) {
        const int key = from + i * Row::rows + Row::row();
        if (key >= feed.at.position)
            continue;
        fetch_eight<Row, WHOLE>(round.k[i], feed.memory.keys + (feed.at.cache + key) * D, D);
        fetch_eight<Row, WHOLE>(round.v[i], feed.memory.values + (feed.at.cache + key) * Dv, Dv);
    }
}

/* C_i - C_j of the new token and a cached one, in units of the score. */
template <class N, bool WHOLE, bool EXPONENTIAL>
SR_DEVICE float decay_between(const one_feed<N, WHOLE, EXPONENTIAL> &feed, int key) {
    const sr_attention_view<N> &call = feed.call;
    if (EXPONENTIAL || !feed.memory.decay || key >= feed.at.position)
        return 0;
    return (float)((call.scratch.decay[call.row_index(call.Hkv, feed.at.b, feed.at.kv, 0)] -
                    feed.memory.decay[feed.at.cache + key]) *
                   (double)call.score.decay_unit);
}

/* Adds a round; the last token of all is the new one itself. */
template <int WIDTH, class N, bool WHOLE, bool EXPONENTIAL>
SR_DEVICE void take_round(key_sums<8> &sums, key_round<N> &round, const float (&q)[8],
                          const one_feed<N, WHOLE, EXPONENTIAL> &feed, int from) {
    using Row = sr_eight_row<WIDTH>;
    key_dots keys;
#pragma unroll
    for (int i = 0; i < SR_ONE_TOGETHER; i++) {
        const int key = from + i * Row::rows + Row::row();
        float k[8];
        if (key == feed.at.position) {
            fetch_eight<Row, WHOLE>(round.k[i], feed.token.k, feed.call.D);
            fetch_eight<Row, WHOLE>(round.v[i], feed.token.v, feed.call.Dv);
        }
        row_widen<Row>(k, round.k[i]);
        keys.dot[i] = row_dot<Row>(q, k);
        keys.decay[i] = decay_between(feed, key);
        keys.there[i] = key <= feed.at.position;
    }
    if constexpr (EXPONENTIAL)
        sums_take_exponentials<Row>(sums, feed.call.score, keys, round.v);
    else
        sums_take_each<Row>(sums, feed.call.score, keys, round.v);
}

/* Online softmax over the keys of the walk, the first of which are in `round`. */
template <int WIDTH, class N, bool WHOLE, bool EXPONENTIAL>
SR_DEVICE void attend_keys(key_sums<8> &sums, key_round<N> &round,
                           const one_feed<N, WHOLE, EXPONENTIAL> &feed, const key_walk &walk) {
    float q[8];
    sr_raw_eight<N> raw;
    fetch_eight<sr_eight_row<WIDTH>, WHOLE>(raw, feed.token.q, feed.call.D);
    row_widen<sr_eight_row<WIDTH>>(q, raw);
    for (int from = walk.first; from <= feed.at.position; from += walk.step) {
        key_round<N> next; /* its loads are issued before this one is used */
        fetch_round<WIDTH>(next, feed, from + walk.step);
        take_round<WIDTH>(sums, round, q, feed, from);
        round = next;
    }
}

/* Appends the new token to the KV cache; no thread of this kernel reads it there. By threads 0 ..
 * threads-1. */
template <class N, bool WHOLE, bool EXPONENTIAL>
SR_DEVICE void append_one(const one_feed<N, WHOLE, EXPONENTIAL> &feed, int thread, int threads) {
    const sr_attention_view<N> &call = feed.call;
    const int64_t to = feed.at.cache + feed.at.position;
    for (int c = thread; c < call.D; c += threads)
        feed.memory.keys[to * call.D + c] = feed.token.k[c];
    for (int c = thread; c < call.Dv; c += threads)
        feed.memory.values[to * call.Dv + c] = feed.token.v[c];
    if (thread == 0 && feed.memory.decay)
        feed.memory.decay[to] =
            call.scratch.decay[call.row_index(call.Hkv, feed.at.b, feed.at.kv, 0)];
}

/* The sums of the block's warps. */
template <int WIDTH, int WARPS> struct one_memory {
    float x[WARPS][WIDTH], sum[WARPS], maximum[WARPS];
};

/* Stores the warp's sums, for the first warp to combine after a barrier. */
template <int WIDTH, int WARPS>
SR_DEVICE void leave_sums(one_memory<WIDTH, WARPS> &shared, key_sums<8> &sums, float unit) {
    using Row = sr_eight_row<WIDTH>;
    const int warp = (int)(threadIdx.x / SR_WARP);
    warp_sums<Row>(sums, unit);
    if (Row::row() != 0)
        return;
#pragma unroll
    for (int m = 0; m < 8; m++)
        shared.x[warp][Row::column(m)] = sums.x[m];
    shared.sum[warp] = sums.sum;
    shared.maximum[warp] = sums.maximum;
}

/* One warp: combines those of the first `warps`. A lane has the factor of one of them. */
template <int WIDTH, int WARPS>
SR_DEVICE void add_warps(key_sums<sr_warp_row<WIDTH>::count> &all,
                         const one_memory<WIDTH, WARPS> &shared, int warps,
                         const sr_score_rule &rule) {
    using Whole = sr_warp_row<WIDTH>;
    const int lane = (int)(threadIdx.x % SR_WARP);
    const float own = lane < warps ? shared.maximum[lane] : -INFINITY;
    float factor = lane < warps ? 1 : 0;
    sums_start(all, rule);
    if (rule.maximum) {
        all.maximum = warp_maximum(own);
        factor = own == -INFINITY ? 0 : exp2f((own - all.maximum) * unit_of(rule));
    }
    all.sum = warp_sum(lane < warps ? factor * shared.sum[lane] : 0);
#pragma unroll
    for (int part = 0; part < WARPS; part++) { /* unrolled: a loop would stall on each load */
        const float scale = shuffle(factor, part);
#pragma unroll
        for (int m = 0; m < Whole::count; m++)
            all.x[m] = fmaf(scale, part < warps ? shared.x[part][Whole::column(m)] : 0, all.x[m]);
    }
}

/* Epilogue by one warp: sums.x becomes the row's output, from the sums of all its keys. */
template <class N, int WIDTH>
SR_DEVICE void output_one(const sr_attention_view<N> &call, const one_place &at,
                          key_sums<sr_warp_row<WIDTH>::count> &sums) {
    using Row = sr_warp_row<WIDTH>;
    const float unit = unit_of(call.score);
    const float saved = sums.maximum == -INFINITY ? 0 : sums.maximum * unit * SR_LN_2;
    row_output<Row>(sums.x, call, row_facts(call, at.b, at.h, 0, sums.sum, saved));
}

#endif
