/* attention_one.h (private): attention of one more token over kept keys and values: what a block of either kernel does.
 *
 * Lanes take eight numbers of a key each, so that a warp has several keys at a time and 16 bytes a lane; each group of
 * lanes adds up what its keys give, then the groups of a warp and the warps of the block, all in a fixed order. */
#ifndef SR_CUDA_ATTENTION_ONE_H
#define SR_CUDA_ATTENTION_ONE_H

#include "device/cuda/attention_states.h"

enum { SR_ONE_TOGETHER = 2 }; /* keys that a group of lanes loads at a time */

/* What some of the keys give: weights relative to 2^maximum. */
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

/* Adds one key and its value. */
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

/* Adds what other keys give. */
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

/* Over the groups of the warp; right in the first. */
template <class Row> SR_DEVICE void warp_sums(key_sums<Row::count> &sums, float unit) {
    for (int mask = SR_WARP / 2; mask >= Row::lanes; mask /= 2) {
        key_sums<Row::count> other;
        other.maximum = shuffle_xor(sums.maximum, mask);
        other.sum = shuffle_xor(sums.sum, mask);
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            other.x[m] = shuffle_xor(sums.x[m], mask);
        sums_add(sums, other, unit);
    }
}

/* The head that a block has. */
struct one_place {
    int b, h, kv;
    int64_t row, position,
        cache; /* of (B, H); of the new token; where the kv head's tokens begin */
};

template <class N>
SR_DEVICE one_place place_of(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                             int row) {
    one_place at = {};
    at.row = row;
    at.b = row / call.H;
    at.h = row % call.H;
    at.kv = at.h / call.group;
    at.cache = ((int64_t)at.b * call.Hkv + at.kv) * memory.capacity;
    return at;
}

/* The head's rows of the new token, wherever they stand. */
template <class N> struct one_token { const N *q, *k, *v; };

/* Keys first, first + step, ... of a warp. */
struct key_walk {
    int64_t first, step;
};

/* Which keys a warp takes: as many blocks share them as have some in the first round. */
template <int WIDTH, int WARPS> struct one_share {
    using Row = sr_eight_row<WIDTH>;
    static constexpr int each = Row::rows * SR_ONE_TOGETHER,
                         keys = WARPS * each; /* of a warp, of a block */
    int shares;
    int warps; /* that have some of the block's */
    key_walk walk;

    SR_DEVICE one_share(int64_t position, int part, int parts) {
        const int64_t first = (int64_t)part * keys;
        shares = (int)min((int64_t)parts, position / keys + 1);
        warps = (int)min((int64_t)WARPS, max(position - first, (int64_t)0) / each + 1);
        walk.first = first + (int)threadIdx.x / SR_WARP * each;
        walk.step = (int64_t)shares * keys;
    }
};

/* What the keys of the walk give, as they stand in memory; the last one is the new token itself. */
template <class N, int WIDTH>
SR_DEVICE void attend_keys(key_sums<8> &sums, const sr_attention_view<N> &call,
                           const sr_kept_memory<N> &memory, const one_place &at,
                           const one_token<N> &token, const key_walk &walk) {
    using Row = sr_eight_row<WIDTH>;
    constexpr int TOGETHER = SR_ONE_TOGETHER;
    float q[8];
    row_load<Row>(q, token.q, call.D);
    for (int64_t from = walk.first; from <= at.position; from += walk.step) {
        float k[TOGETHER][8], v[TOGETHER][8];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t key = min(from + i * Row::rows + Row::row(), at.position);
            const bool is_new = key == at.position;
            row_load<Row>(k[i], is_new ? token.k : memory.keys + (at.cache + key) * call.D, call.D);
            row_load<Row>(v[i], is_new ? token.v : memory.values + (at.cache + key) * call.Dv,
                          call.Dv);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t key = from + i * Row::rows + Row::row();
            const float dot = row_dot<Row>(q, k[i]);
            float decay = 0;
            if (memory.decay && key < at.position)
                decay = (float)((call.scratch.decay[call.row_index(call.Hkv, at.b, at.kv, 0)] -
                                 memory.decay[at.cache + key]) *
                                (double)call.score.decay_unit);
            if (key <= at.position)
                sums_take(sums, call.score, dot, decay, v[i]);
        }
    }
}

/* Puts the new token behind the others; nobody reads it there in this kernel. By threads 0 .. threads-1. */
template <class N>
SR_DEVICE void append_one(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                          const one_place &at, const one_token<N> &token, int threads) {
    const int64_t to = at.cache + at.position;
    for (int c = (int)threadIdx.x; c < call.D; c += threads)
        memory.keys[to * call.D + c] = token.k[c];
    for (int c = (int)threadIdx.x; c < call.Dv; c += threads)
        memory.values[to * call.Dv + c] = token.v[c];
    if (threadIdx.x == 0 && memory.decay)
        memory.decay[to] = call.scratch.decay[call.row_index(call.Hkv, at.b, at.kv, 0)];
}

/* What the warps of a block have summed. */
template <int WIDTH, int WARPS> struct one_memory {
    float x[WARPS][WIDTH], sum[WARPS], maximum[WARPS];
};

/* The warp's sums, for the first warp to add up after a barrier. */
template <int WIDTH, int WARPS>
SR_DEVICE void leave_sums(one_memory<WIDTH, WARPS> &shared, key_sums<8> &sums, float unit) {
    using Row = sr_eight_row<WIDTH>;
    const int warp = (int)threadIdx.x / SR_WARP;
    warp_sums<Row>(sums, unit);
    if (Row::row() != 0)
        return;
#pragma unroll
    for (int m = 0; m < 8; m++)
        shared.x[warp][Row::column(m)] = sums.x[m];
    shared.sum[warp] = sums.sum;
    shared.maximum[warp] = sums.maximum;
}

/* One warp: those of the first `warps`. A lane has the factor of one of them. */
template <int WIDTH, int WARPS>
SR_DEVICE void add_warps(key_sums<sr_warp_row<WIDTH>::count> &all,
                         const one_memory<WIDTH, WARPS> &shared, int warps,
                         const sr_score_rule &rule) {
    using Whole = sr_warp_row<WIDTH>;
    const int lane = (int)threadIdx.x % SR_WARP;
    const float own = lane < warps ? shared.maximum[lane] : -INFINITY;
    float factor = lane < warps ? 1 : 0;
    sums_start(all, rule);
    if (rule.maximum) {
        all.maximum = warp_maximum(own);
        factor = own == -INFINITY ? 0 : exp2f((own - all.maximum) * unit_of(rule));
    }
    for (int part = 0; part < warps; part++) {
        const float scale = shuffle(factor, part);
        all.sum = fmaf(scale, shared.sum[part], all.sum);
#pragma unroll
        for (int m = 0; m < Whole::count; m++)
            all.x[m] = fmaf(scale, shared.x[part][Whole::column(m)], all.x[m]);
    }
}

/* One warp: sums.x becomes the row's output, from the sums of all its keys. */
template <class N, int WIDTH>
SR_DEVICE void output_one(const sr_attention_view<N> &call, const one_place &at,
                          key_sums<sr_warp_row<WIDTH>::count> &sums) {
    using Row = sr_warp_row<WIDTH>;
    const float unit = unit_of(call.score);
    const float saved = sums.maximum == -INFINITY ? 0 : sums.maximum * unit * SR_LN_2;
    row_output<Row>(sums.x, call, row_facts(call, at.b, at.h, 0, sums.sum, saved));
}

#endif
