/* backward.h (private): shared by the Hopper backward kernels: gradients of scores, tiles of keys
 * that stay while queries pass by, epilogues of rows. */
#ifndef SR_ATTENTION_CUDA_HOPPER_BACKWARD_H
#define SR_ATTENTION_CUDA_HOPPER_BACKWARD_H

#include "attention/cuda/hopper/tiles.h"
#include "attention/cuda/shared/rope.h"

template <weight_kind kind_, bool clamped_, bool decays_ = false> struct backward_rule {
    static constexpr weight_kind kind = kind_;
    static constexpr bool clamped = clamped_;
    static constexpr bool decays = decays_;
};

/* Per-query numbers from the backward preprocess: see sr_attention_scratch. */
struct backward_row {
    float scale; /* with exponents: what is subtracted from them; else a factor */
    float d_row_sum;
};

/* A row's scale, from that of the preprocess: for polynomials a factor. */
template <weight_kind kind> SR_DEVICE float backward_scale(float scale) {
    return kind == WEIGHT_SQUARE ? -log2_fast(fabsf(scale)) : scale;
}

/* differentiate() for the square of r. */
SR_DEVICE float differentiate_square(float &r, float &d, const backward_row &row,
                                     const score_numbers &numbers, float decay) {
    const float exponent = fminf(-row.scale - decay, SQUARE_EXPONENT_MOST);
    const float line = r * numbers.factor * exp2_fast(exponent);
    d += row.d_row_sum;
    r *= line;
    const float d_exponent = r * d;
    d *= 2 * line;
    return d_exponent;
}

/* Turns r into its weight, and the gradient of the weight into that of r (without slope_unit).
 * Polynomials have both already. `decay` is subtracted from the exponent; the return value is the
 * exponent's gradient, which a clamp does not stop. */
template <class rule>
SR_DEVICE float differentiate(float &r, float &d, const backward_row &row,
                              const score_numbers &numbers, float decay = 0) {
    if (rule::kind == WEIGHT_POLYNOMIAL)
        return 0;
    if (rule::kind == WEIGHT_SQUARE)
        return differentiate_square(r, d, row, numbers, decay);
    const bool beyond = rule::clamped && r > numbers.limit;
    if (rule::clamped)
        r = fminf(r, numbers.limit);
    d += row.d_row_sum;
    if (rule::kind == WEIGHT_EXP) {
        r = exp2_fast(fmaf(r, numbers.factor, rule::decays ? -row.scale - decay : -row.scale));
        d *= r;
    } else {
        r *= row.scale * numbers.factor;
        d *= row.scale * numbers.factor;
    }
    const float d_exponent = d;
    if (beyond)
        d = 0;
    return d_exponent;
}

/* The same for a polynomial, or the sigmoid. A loop between GEMMs would serialise them: this runs
 * before all GEMMs of a tile. */
SR_DEVICE void differentiate_polynomial(float &r, float &d, const backward_row &row, float limit,
                                        const sr_score_rule &score) {
    const bool hidden = r == -INFINITY, flat = hidden || r > limit;
    const float x = fminf(r, limit);
    float value = score.coefficient[score.degree], slope = 0;
    if (score.sigmoid) {
        value = sigmoid_weight(score, x);
        slope = value * (1 - value);
    }
    for (int term = score.degree - 1; term >= 0; term--) {
        slope = fmaf(slope, x, value);
        value = fmaf(value, x, score.coefficient[term]);
    }
    r = hidden ? 0 : row.scale * value;
    d = flat ? 0 : row.scale * slope * (d + row.d_row_sum);
}

/* Caps a tile's logits, before they are masked, and multiplies the gradients of weights, d and that
 * of the row sum together, by the slope of the cap; of_row(n): d_row_sum of number n. */
template <int count, class Rows>
SR_DEVICE void cap_gradients(float (&s)[count], float (&d)[count], const sr_score_rule &score,
                             const Rows &of_row) {
    const float cap = 1 / score.cap_inverse;
    const bool near = all_near_zero(s, SR_CAP_NEAR * cap);
    SR_UNROLL
    for (int n = 0; n < count; n++) {
        sr_capped capped = {};
        if (near) {
            capped.value = cap_near(score, s[n]);
            const float t = capped.value * score.cap_inverse;
            capped.slope = fmaf(-t, t, 1.0f);
        } else {
            capped = cap_of(score, cap, s[n]);
        }
        s[n] = capped.value;
        d[n] = fmaf(d[n] + of_row(n), capped.slope, -of_row(n));
    }
}

/* Applies the inverse RoPE to a gradient row of token t. Channels of a pair are in the same
 * thread. */
template <int D>
SR_DEVICE void apply_inverse_rope(float (&g)[D / 4], const sr_rope_angles &rope, int64_t token) {
    constexpr int half = D / 8;
    const float *angles = rope.table + (int64_t)rope.positions[token] * D + fragment_column();
    SR_UNROLL
    for (int m = 0; m < half; m += 2) {
        const float2 cosine = *reinterpret_cast<const float2 *>(angles + 4 * m);
        const float2 sine = *reinterpret_cast<const float2 *>(angles + D / 2 + 4 * m);
        const float low[2] = {g[m], g[m + 1]}, high[2] = {g[m + half], g[m + half + 1]};
        g[m] = rotated(low[0], high[0], cosine.x, sine.x);
        g[m + 1] = rotated(low[1], high[1], cosine.y, sine.y);
        g[m + half] = rotated(high[0], low[0], cosine.x, -sine.x);
        g[m + half + 1] = rotated(high[1], low[1], cosine.y, -sine.y);
    }
}

/* Epilogue: gradient rows of q or k from the accumulators; `raw` is the input of the feature map.
 * Parameters, not a struct: they stay in registers. */
template <int D>
SR_DEVICE void store_feature_rows(const sr_strided<sr_bf16> &to,
                                  const sr_strided<const sr_bf16> &raw, const float (&sum)[D / 2],
                                  const hopper_view &call, int b, int h, int row) {
    using Row = sr_quad_row<D>;
    const srnn_feature feature = call.choices.feature;
    if (!to.data)
        return;
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        const int t = row + fragment_row() + 8 * half, there = min(t, call.T - 1);
        float g[D / 4];
        fragment_take<D>(g, sum, half);
        row_multiply<Row>(g, call.score.slope_unit);
        if (feature != SRNN_FEATURE_IDENTITY && feature != SRNN_FEATURE_UNIT_HEADS) {
            float x[D / 4];
            row_load<Row>(x, raw.at(b, h, there), D);
            row_feature_backward<Row>(g, x, feature);
        }
        if (call.rope.table)
            apply_inverse_rope<D>(g, call.rope, (int64_t)b * call.T + there);
        fragment_store<D>(to.at(b, h, there), g, t < call.T);
    }
}

/* Epilogue: gradient rows of v, and of its gate, from the accumulators of dV: v times its
 * factor. */
template <int D>
SR_DEVICE void store_value_rows(const float (&sum)[D / 2], const hopper_view &call, int b, int h,
                                int row) {
    using Row = sr_quad_row<D>;
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        const int t = row + fragment_row() + 8 * half, there = min(t, call.T - 1);
        const bool write = t < call.T;
        float g[D / 4];
        fragment_take<D>(g, sum, half);
        if (call.scratch.value_factor) {
            const int64_t index = call.row_index(call.Hkv, b, h, there);
            const float factor = call.scratch.value_factor[index];
            float x[D / 4]; /* the products with the factor are rounded */
            row_load<Row>(x, call.raw_v.at(b, h, there), D);
            const float along = factor * row_dot<Row>(x, g);
            if (write && threadIdx.x % 4 == 0) {
                call.scratch.value_dot[index] = along;
                if (call.choices.value_gate && call.d_value_gate.data) {
                    const float gate = sigmoid(to_float(*call.value_gate.at(b, h, t)));
                    store_number(call.d_value_gate.at(b, h, t), along * (1 - gate));
                }
            }
            row_multiply<Row>(g, factor);
        }
        if (call.d_v.data)
            fragment_store<D>(call.d_v.at(b, h, there), g, write);
    }
}

/* The sums of d_exponent over a row or column of pairs, from which a decay's gradient is computed;
 * `to` is the head's. Pairs of a token with itself are left out: they would cancel, but round off
 * the others, which are far smaller where gates are strong. */
SR_DEVICE void store_dots(float *to, const float (&dot)[2], int row, int T) {
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        const int t = row + fragment_row() + 8 * half;
        const float all = quad_sum(dot[half]);
        if (t < T && threadIdx.x % 4 == 0)
            to[t] = all;
    }
}

/* ---- keys stay, queries pass by ---- */

/* A tile of keys; query tiles up to past-1 of each head of the group see them. */
struct key_work {
    int b, head; /* of the keys */
    int key;     /* the first */
    int past;    /* 0: there is no more work */
};

/* Past the last query tile, from `from` on, that sees keys up to `last`; one warp together. */
template <int queries>
SR_DEVICE int key_work_past(const hopper_view &call, int b, int from, int last) {
    const int32_t *first = call.first + (int64_t)b * call.T;
    const int tiles = (call.T + queries - 1) / queries;
    if (first[call.T - 1] <= last)
        return tiles;
    for (int j = from;; j += SR_WARP) {
        const int t = (j + (int)threadIdx.x) * queries;
        const uint32_t beyond = warp_ballot(t >= call.T || first[t] > last);
        if (beyond != 0)
            return j + __ffs((int)beyond) - 1;
    }
}

/* Rows are keys, columns queries; the first query is `behind` positions before the first key. Hides
 * keys later than the query (causal mask). */
template <weight_kind kind, int count>
SR_DEVICE void keys_mask_later(float (&s)[count], float (&d)[count], int behind,
                               const backward_row *row) {
    const int column = fragment_column(), least = behind + fragment_row() - column;
    SR_UNROLL
    for (int n = 0; n < count; n++)
        if (8 * (n / 4) + (n & 1) < least + 8 * fragment_half(n)) {
            s[n] = hidden_logit<kind>();
            if (kind == WEIGHT_LINEAR) /* whose slope is 1 even where hidden */
                d[n] = -row[8 * (n / 4) + (n & 1) + column].d_row_sum;
        }
}

/* The keys start at `key`. Hides keys before the query's document. */
template <weight_kind kind, int count>
SR_DEVICE void keys_mask_earlier(float (&s)[count], float (&d)[count], int key, const int *first,
                                 const backward_row *row) {
    const int column = fragment_column(), mine = key + fragment_row();
    SR_UNROLL
    for (int n = 0; n < count; n++)
        if (first[8 * (n / 4) + (n & 1) + column] > mine + 8 * fragment_half(n)) {
            s[n] = hidden_logit<kind>();
            if (kind == WEIGHT_LINEAR)
                d[n] = -row[8 * (n / 4) + (n & 1) + column].d_row_sum;
        }
}

/* A consumer's accumulators for its keys, and the decay of their exponents. */
template <int D> struct keys_sums {
    float dk[D / 2], dv[D / 2];
    float dot[2], decay[2];
    int own; /* with a decay: the number, of the first row, of a key's own query, or none of them */
};

/* A tile's logits and gradients of weights in; weights and gradients of logits out, two in a
 * register. */
template <int queries> struct keys_tile {
    float s[queries / 2], d[queries / 2];
    uint32_t w[queries / 4], dr[queries / 4];
};

/* Row scalars of 32 queries, as a thread needs them. Loaded before GEMMs start: shared memory has a
 * high latency while wgmma reads from it. */
struct keys_rows {
    float4 two[4];

    /* `row` begins at this thread's first. */
    SR_DEVICE void ask(const backward_row *row, int part) {
        SR_UNROLL
        for (int i = 0; i < 4; i++)
            two[i] = *reinterpret_cast<const float4 *>(row + 32 * part + 8 * i);
    }
};

/* Weights and gradients of logits of 32 queries, packed as bf16 for the next GEMMs. */
template <int D, class rule, int queries>
SR_DEVICE void keys_weigh(keys_sums<D> &sums, keys_tile<queries> &tile, int part,
                          const keys_rows &rows, const score_numbers &numbers) {
    float(&s)[queries / 2] = tile.s, (&d)[queries / 2] = tile.d;
    SR_UNROLL
    for (int i = 16 * part; i < 16 * part + 16; i += 4) {
        const float4 both = rows.two[i / 4 % 4];
        const backward_row left = {both.x, both.y}, right = {both.z, both.w};
        const float first[2] = {differentiate<rule>(s[i], d[i], left, numbers, sums.decay[0]),
                                differentiate<rule>(s[i + 1], d[i + 1], right, numbers,
                                                    sums.decay[0])};
        const float second[2] = {differentiate<rule>(s[i + 2], d[i + 2], left, numbers,
                                                     sums.decay[1]),
                                 differentiate<rule>(s[i + 3], d[i + 3], right, numbers,
                                                     sums.decay[1])};
        if (rule::decays) {
            SR_UNROLL
            for (int n = 0; n < 2; n++) {
                sums.dot[0] += 2 * i + n == sums.own ? 0 : first[n];
                sums.dot[1] += 2 * i + n == sums.own + 8 ? 0 : second[n];
            }
        }
        tile.w[i / 2] = pack_bf16(s[i], s[i + 1]);
        tile.w[i / 2 + 1] = pack_bf16(s[i + 2], s[i + 3]);
        tile.dr[i / 2] = pack_bf16(d[i], d[i + 1]);
        tile.dr[i / 2 + 1] = pack_bf16(d[i + 2], d[i + 3]);
    }
}

/* ---- launching ---- */

static inline cudaError_t backward_maps(backward_task *task, int query_rows, int key_rows) {
    const hopper_view &call = task->call;
    cudaError_t error = tile_map_encode(&task->q, call.q, call, call.H, query_rows);
    if (error == cudaSuccess)
        error = tile_map_encode(&task->d, call.d_numerator, call, call.H, query_rows);
    if (error == cudaSuccess)
        error = tile_map_encode(&task->k, call.k, call, call.Hkv, key_rows);
    if (error == cudaSuccess)
        error = tile_map_encode(&task->v, call.v, call, call.Hkv, key_rows);
    return error;
}

static inline dim3 backward_grid(const sr_tile_order &order, int multiprocessors) {
    const int tiles = tile_count(order);
    return dim3((unsigned)(tiles < multiprocessors ? tiles : multiprocessors));
}

#endif
