/* mma.h (private): shared by the tensor-core kernels for sm_80 and newer (mma.sync, cp.async). */
#ifndef SR_ATTENTION_CUDA_MMA_MMA_H
#define SR_ATTENTION_CUDA_MMA_MMA_H

#include "attention/cuda/shared/tiles.h"

/* In bf16, every variant. */
extern const sr_attention_kernel sr_cuda_attention_mma;

/* Which arrays have rows aligned to 16 bytes. */
struct sr_mma_alignment {
    bool q, k, v, o, numerator; /* o: also d_o */
    bool d_numerator, d_q, d_k, d_v;
};

sr_mma_alignment sr_mma_alignment_of(const sr_attention_view<sr_bf16> &call);

/* The cores; the prologue has filled the workspace. */
srnn_status sr_mma_forward(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                           cudaStream_t stream);
srnn_status sr_mma_backward_queries(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, cudaStream_t stream);
srnn_status sr_mma_backward_keys(const sr_attention_view<sr_bf16> &call,
                                 const sr_mma_alignment &aligned, cudaStream_t stream);

/* Starts kernel<WIDTH, CLASS> for the call's widths and score: SR_MMA_START(start, call, ...) calls
 * start<WIDTH, CLASS>(call, ...), a function that returns srnn_status. */
#define SR_MMA_WIDTH(start, kind, call, ...)                                     \
    ((call).D <= 32 && (call).Dv <= 32     ? start<32, kind>(call, __VA_ARGS__)  \
     : (call).D <= 64 && (call).Dv <= 64   ? start<64, kind>(call, __VA_ARGS__)  \
     : (call).D <= 128 && (call).Dv <= 128 ? start<128, kind>(call, __VA_ARGS__) \
                                           : start<256, kind>(call, __VA_ARGS__))
#define SR_MMA_START(start, call, ...)                                  \
    ((call).score.kind == SR_CLASS_EXPONENTIAL                          \
         ? SR_MMA_WIDTH(start, SR_CLASS_EXPONENTIAL, call, __VA_ARGS__) \
     : (call).score.kind == SR_CLASS_POLYNOMIAL                         \
         ? SR_MMA_WIDTH(start, SR_CLASS_POLYNOMIAL, call, __VA_ARGS__)  \
         : SR_MMA_WIDTH(start, SR_CLASS_LONG, call, __VA_ARGS__))

/* w (COUNT) = the polynomial of r: all of them advance together through the coefficients. */
template <int COUNT>
SR_DEVICE void polynomial_of(float (&w)[COUNT], const float (&r)[COUNT], const float *coefficient,
                             int degree) {
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        w[n] = degree < 0 ? 0 : coefficient[degree];
    for (int power = degree - 1; power >= 0; power--)
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            w[n] = fmaf(w[n], r[n], coefficient[power]);
}

/* C of a token less that of one nearby, as two floats: a gate that forgets everything leaves one
 * float too few bits for the gates after it. `decay` is the KV head's. */
struct sr_decay_since {
    float high, low;

    SR_DEVICE void open(const double *decay, int t, double reference) {
        const double since = decay[t] - reference;
        high = (float)since;
        low = (float)(since - (double)high);
    }
    SR_DEVICE float less(const sr_decay_since &other) const {
        return (high - other.high) + (low - other.low);
    }
};

/* ---- gradients of a 16 x 16 piece of pairs ----
 *
 * r: dot products in, weights w' out; d: <d_numerator, v> in, gradients of r (without the factor
 * slope_unit) out. A lane has 8 pairs; for pair e, Pairs has
 *     scale(e), d_row_sum(e)   of its row, as written by the backward preprocess
 *     hidden(e), own(e)        called only where pairs.masked; own: a token and itself
 *     decay(e), take(e, x)     C_i - C_j in decay_units, and the gradient of C_i - C_j; only where
 *                              pairs.decays; pairs.decays_logits: logits are multiplied
 *
 * The gradient of C_i - C_i counts as 0: in row and column sums it would cancel, but round off
 * those of other pairs, which are far smaller where gates are strong. */
enum { SR_PIECE = 8 };

/* What a piece has besides its scores, at compile time: most pieces have nothing, and should not
 * branch pair by pair. OTHER: hidden pairs, decay, caps. */
enum sr_piece_kind { SR_PIECE_PLAIN, SR_PIECE_CLAMPED, SR_PIECE_OTHER };

/* What the score of a pair is taken of, and its slope by r times the decay inside. */
struct sr_inner {
    float x, slope;
    float decayed, inside; /* r times the decay inside, which is 1 without decays_logits */
};

template <sr_piece_kind PIECE, class Pairs>
SR_DEVICE sr_inner inner_of(float r, int e, const sr_score_rule &rule, const Pairs &pairs) {
    sr_inner in = {r, 1, r, 1};
    if (PIECE == SR_PIECE_OTHER && pairs.decays_logits) {
        in.inside = exp2_fast(pairs.decay(e));
        in.x = in.decayed = r * in.inside;
    }
    if (PIECE == SR_PIECE_OTHER && rule.capped) {
        const sr_capped capped = cap_of(rule, 1 / rule.cap_inverse, in.x);
        in.x = capped.value;
        in.slope = capped.slope;
    }
    if (PIECE != SR_PIECE_PLAIN && rule.clamped && in.x > rule.clamp) {
        in.x = rule.clamp;
        in.slope = 0;
    }
    return in;
}

/* The decay of a weight, in decay_units. */
template <sr_piece_kind PIECE, class Pairs> SR_DEVICE float outer_decay(int e, const Pairs &pairs) {
    return PIECE == SR_PIECE_OTHER && pairs.decays && !pairs.decays_logits ? pairs.decay(e) : 0;
}

/* Pair e from its weight, r, and the slope of the weight by what the score is taken of. Parameters,
 * not a struct: they stay in registers. */
template <sr_piece_kind PIECE, class Pairs>
SR_DEVICE void pair_finish(float &r, float &d, float slope, int e, const sr_score_rule &rule,
                           const sr_inner &in, const Pairs &pairs) {
    const bool hidden = PIECE == SR_PIECE_OTHER && pairs.masked && pairs.hidden(e);
    const float d_weight = d + pairs.d_row_sum(e);
    const float d_logit = PIECE == SR_PIECE_PLAIN ? slope * d_weight
                          : in.slope == 0         ? 0
                                                  : slope * in.slope * d_weight;
    if (PIECE == SR_PIECE_OTHER && pairs.decays) {
        const float along =
            pairs.decays_logits ? d_logit * in.decayed * rule.slope_unit : r * d_weight;
        pairs.take(e, hidden || (pairs.masked && pairs.own(e)) ? 0 : along);
    }
    r = hidden ? 0 : r;
    d = hidden ? 0 : PIECE == SR_PIECE_OTHER ? d_logit * in.inside : d_logit;
}

template <sr_piece_kind PIECE, class Pairs>
SR_DEVICE void exponential_backward(float (&r)[SR_PIECE], float (&d)[SR_PIECE],
                                    const sr_score_rule &rule, const Pairs &pairs) {
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++) {
        const sr_inner in = inner_of<PIECE>(r[e], e, rule, pairs);
        const float x = in.x + outer_decay<PIECE>(e, pairs);
        r[e] = exp2_fast(fmaf(x, rule.scale_log2, -pairs.scale(e)));
        pair_finish<PIECE>(r[e], d[e], r[e], e, rule, in, pairs);
    }
}

/* Values and slopes of the sigmoid, or of a polynomial. */
SR_DEVICE void series_of(float (&value)[SR_PIECE], float (&slope)[SR_PIECE],
                         const float (&x)[SR_PIECE], const sr_score_rule &rule) {
    if (rule.sigmoid) {
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            value[e] = sigmoid_weight(rule, x[e]);
            slope[e] = value[e] * (1 - value[e]);
        }
        return;
    }
    polynomial_of(slope, x, rule.slope, rule.degree - 1);
    polynomial_of(value, x, rule.coefficient, rule.degree);
}

template <sr_piece_kind PIECE, class Pairs>
SR_DEVICE void polynomial_backward(float (&r)[SR_PIECE], float (&d)[SR_PIECE],
                                   const sr_score_rule &rule, const Pairs &pairs) {
    float x[SR_PIECE], value[SR_PIECE], slope[SR_PIECE];
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++)
        x[e] = inner_of<PIECE>(r[e], e, rule, pairs).x;
    series_of(value, slope, x, rule);
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++) {
        const sr_inner in = inner_of<PIECE>(r[e], e, rule, pairs);
        float factor = pairs.scale(e);
        if (PIECE == SR_PIECE_OTHER && pairs.decays && !pairs.decays_logits)
            factor *= exp2_fast(pairs.decay(e));
        r[e] = value[e] * factor;
        pair_finish<PIECE>(r[e], d[e], slope[e] * factor, e, rule, in, pairs);
    }
}

template <sr_piece_kind PIECE, class Pairs>
SR_DEVICE void long_backward(float (&r)[SR_PIECE], float (&d)[SR_PIECE], const sr_score_rule &rule,
                             const Pairs &pairs) {
#pragma unroll
    for (int e = 0; e < SR_PIECE; e++) {
        const sr_inner in = inner_of<PIECE>(r[e], e, rule, pairs);
        const float shift = pairs.scale(e) - outer_decay<PIECE>(e, pairs);
        r[e] = signed_exp2(long_log(rule, in.x, 0), shift);
        const float slope = in.slope == 0 ? 0 : signed_exp2(long_log(rule, in.x, 1), shift);
        pair_finish<PIECE>(r[e], d[e], slope, e, rule, in, pairs);
    }
}

template <sr_score_class KIND, sr_piece_kind PIECE, class Pairs>
SR_DEVICE void pairs_backward_as(float (&r)[SR_PIECE], float (&d)[SR_PIECE],
                                 const sr_score_rule &rule, const Pairs &pairs) {
    if constexpr (KIND == SR_CLASS_EXPONENTIAL)
        exponential_backward<PIECE>(r, d, rule, pairs);
    else if constexpr (KIND == SR_CLASS_POLYNOMIAL)
        polynomial_backward<PIECE>(r, d, rule, pairs);
    else
        long_backward<PIECE>(r, d, rule, pairs);
}

template <sr_score_class KIND, class Pairs>
SR_DEVICE void pairs_backward(float (&r)[SR_PIECE], float (&d)[SR_PIECE], const sr_score_rule &rule,
                              const Pairs &pairs) {
    if (KIND == SR_CLASS_LONG || pairs.masked || pairs.decays || rule.capped)
        pairs_backward_as<KIND, SR_PIECE_OTHER>(r, d, rule, pairs);
    else if (rule.clamped)
        pairs_backward_as<KIND, SR_PIECE_CLAMPED>(r, d, rule, pairs);
    else
        pairs_backward_as<KIND, SR_PIECE_PLAIN>(r, d, rule, pairs);
}

/* Pair e of a piece is row e / 2 % 2 of the lane's two, column e / 4 * 2 + e % 2 of its four. */
SR_DEVICE int piece_row(int half) {
    return 8 * half + (int)(threadIdx.x % SR_WARP) / 4;
}

SR_DEVICE int piece_column(int e) {
    return e / 4 * 8 + 2 * (int)(threadIdx.x % 4) + e % 2;
}

/* C of the lane's rows and columns of a piece whose first position is (row, column), relative to
 * one of them. */
struct sr_piece_decay {
    sr_decay_since of_row[2], of_column[4];
    float unit;

    SR_DEVICE void open(const double *decay, int row, int column, int T, float unit_) {
        const double reference = decay[min(column, T - 1)];
        unit = unit_;
#pragma unroll
        for (int half = 0; half < 2; half++)
            of_row[half].open(decay, min(row + piece_row(half), T - 1), reference);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e += e % 4 == 1 ? 3 : 1)
            of_column[e / 4 * 2 + e % 2].open(decay, min(column + piece_column(e), T - 1),
                                              reference);
    }

    SR_DEVICE float row_less_column(int e) const {
        return of_row[e / 2 % 2].less(of_column[e / 4 * 2 + e % 2]) * unit;
    }
};

/* The C fragment of a 16 x 16 piece, two mma side by side, as the A fragment of the next GEMM. */
SR_DEVICE void pack_piece(uint32_t (&a)[4], const float (&c)[SR_PIECE]) {
#pragma unroll
    for (int n = 0; n < 4; n++)
        a[n] = pack_bf16(c[2 * n], c[2 * n + 1]);
}

/* The gradient of a row of features (without slope_unit) to that of the row, `raw`, of q or k. */
template <class Row>
SR_DEVICE void feature_gradient(float (&x)[Row::count], const sr_bf16 *raw,
                                const sr_attention_view<sr_bf16> &call) {
    row_multiply<Row>(x, call.score.slope_unit);
    if (call.choices.feature != SRNN_FEATURE_IDENTITY) {
        float before[Row::count];
        row_load<Row>(before, raw, call.D);
        row_feature_backward<Row>(x, before, call.choices.feature);
    }
}

/* The gradient of values times their factor to those of the values and of the factor. */
template <class Row>
SR_DEVICE void value_gradient(float (&x)[Row::count], const sr_attention_view<sr_bf16> &call, int b,
                              int kv, int j) {
    const int inside = min(j, call.T - 1);
    const int64_t at = call.row_index(call.Hkv, b, kv, inside);
    const float factor = call.scratch.value_factor[at];
    float value[Row::count]; /* the products with the factor are rounded */
    row_load<Row>(value, call.raw_v.at(b, kv, inside), call.Dv);
    const float dot = factor * row_dot<Row>(value, x);
    row_multiply<Row>(x, factor);
    if (threadIdx.x % 4 != 0 || j >= call.T)
        return;
    call.scratch.value_dot[at] = dot;
    if (call.choices.value_gate && call.d_value_gate.data) {
        const float gate = sigmoid(to_float(*call.value_gate.at(b, kv, j)));
        store_number(call.d_value_gate.at(b, kv, j), dot * (1 - gate));
    }
}

/* c (MT times 16 x 16) = A times the transposed rows row .. row+15 of the tile. operand(m) is the A
 * of c[m]. */
template <int WIDTH, int MT, class Operands>
SR_DEVICE void multiply_pieces(float (&c)[MT][SR_PIECE], const Operands &operand,
                               const sr_bf16 *tile, int row) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            c[m][e] = 0;
#pragma unroll 8
    for (int k = 0; k < WIDTH / 16; k++) {
        uint32_t b[4];
        load_b<WIDTH>(b, tile, row, k);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            uint32_t a[4];
            operand(m).get(a, k);
            mma_m16n8k16(c[m], a, b);
            mma_m16n8k16(c[m] + 4, a, b + 2);
        }
    }
}

#endif
