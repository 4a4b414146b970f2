/* rows.h: the mathematics of one row in prologue and epilogue: features, normaliser, gates, norms,
 * and the backward of each; no memory, no state.
 *
 * A row of up to WIDTH numbers is spread over lanes. A Row defines how: a lane has `count` of them,
 * number n is column(n) of the row, `adjacent` of them at a time are neighbours, and sum() and
 * maximum() reduce over the lanes of the row, all of which get the same bits. Numbers past the end
 * of a row are zero. All lanes of the warp call together. */
#ifndef SR_ATTENTION_CUDA_SHARED_ROWS_H
#define SR_ATTENTION_CUDA_SHARED_ROWS_H

#include "attention/cuda/shared/call.h"

#include <float.h>

#define SR_NORM_FLOOR 1e-12f /* of unit features and l2 norms */

/* ---- how a row is spread ---- */

/* Over the four lanes of a quad, as mma and wgmma leave an accumulator row. */
template <int WIDTH> struct sr_quad_row {
    static constexpr int count = WIDTH / 4, adjacent = 2;
    static SR_DEVICE int column(int n) {
        return 8 * (n / 2) + 2 * (int)(threadIdx.x % 4) + n % 2;
    }
    static SR_DEVICE float sum(float x) {
        return quad_sum(x);
    }
    static SR_DEVICE float maximum(float x) {
        return quad_maximum(x);
    }
};

/* Over a warp; WIDTH is a multiple of 64. */
template <int WIDTH> struct sr_warp_row {
    static constexpr int count = WIDTH / SR_WARP, adjacent = 2;
    static SR_DEVICE int column(int n) {
        return 64 * (n / 2) + 2 * (int)(threadIdx.x % SR_WARP) + n % 2;
    }
    static SR_DEVICE float sum(float x) {
        return warp_sum(x);
    }
    static SR_DEVICE float maximum(float x) {
        return warp_maximum(x);
    }
};

/* Eight neighbours per lane, 16 bytes of bf16: a warp has several rows and many bytes in flight.
 * WIDTH is 64, 128 or 256. */
template <int WIDTH> struct sr_eight_row {
    static constexpr int count = 8, adjacent = 8;
    static constexpr int lanes = WIDTH / 8, rows = SR_WARP / lanes; /* of a row; of a warp */
    static SR_DEVICE int column(int n) {
        return 8 * (int)(threadIdx.x % lanes) + n;
    }
    static SR_DEVICE int row() {
        return (int)(threadIdx.x % SR_WARP) / lanes;
    }
    static SR_DEVICE int lane() { /* among those of the row */
        return (int)threadIdx.x % lanes;
    }
    static SR_DEVICE float sum(float x) {
        for (int mask = lanes / 2; mask > 0; mask /= 2)
            x += shuffle_xor(x, mask);
        return x;
    }
    static SR_DEVICE float maximum(float x) {
        for (int mask = lanes / 2; mask > 0; mask /= 2)
            x = fmaxf(x, shuffle_xor(x, mask));
        return x;
    }
    /* Eight sums at once: lane l of the row gets that of number l % 8. */
    static SR_DEVICE float sum_eight(float (&x)[8]) {
#pragma unroll
        for (int mask = lanes / 2; mask >= 8; mask /= 2)
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] += shuffle_xor(x[i], mask);
#pragma unroll
        for (int half = 4; half > 0; half /= 2) {
            const bool upper = lane() & half; /* it continues with the upper half */
#pragma unroll
            for (int i = 0; i < half; i++) {
                const float other = shuffle_xor(upper ? x[i] : x[i + half], half);
                x[i] = (upper ? x[i + half] : x[i]) + other;
            }
        }
        return x[0];
    }
    /* Over the rows of the warp: what the lanes with the same columns have. */
    static SR_DEVICE float sum_of_rows(float x) {
        for (int mask = SR_WARP / 2; mask >= lanes; mask /= 2)
            x += shuffle_xor(x, mask);
        return x;
    }
};

/* ---- memory ---- */

template <class N> struct alignas(2 * sizeof(N)) sr_pair { N number[2]; };

/* Whether this lane's eight neighbours can be moved 16 bytes at a time. */
template <class Row, class N> SR_DEVICE bool moves_eight(const N *row, int n) {
    return Row::adjacent == 8 && (uintptr_t)row % 16 == 0 && Row::column(0) + 8 <= n;
}

/* A lane's eight neighbours as they lie in memory: in whole words, since extracting a number would
 * stall until the load completes. */
template <class N> struct sr_raw_eight { uint32_t word[8 * sizeof(N) / 4]; };

/* 16 bytes of them, from number m on. */
template <class N> SR_DEVICE void raw_load(sr_raw_eight<N> &raw, int m, const N *from) {
    const uint4 four = *reinterpret_cast<const uint4 *>(from);
    uint32_t *const to = raw.word + m * (int)sizeof(N) / 4;
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
}

/* Issues the loads of this lane's part of the n numbers at `from`, without waiting for them. */
template <class Row, class N> SR_DEVICE void row_fetch(sr_raw_eight<N> &raw, const N *from, int n) {
    constexpr int each = sr_vector<N>::count;
    if (moves_eight<Row>(from, n)) {
#pragma unroll
        for (int m = 0; m < 8; m += each)
            raw_load(raw, m, from + Row::column(m));
        return;
    }
    N number[8];
#pragma unroll
    for (int m = 0; m < 8; m++)
        number[m] = Row::column(m) < n ? from[Row::column(m)] : from_float<N>(0);
    memcpy(raw.word, number, sizeof number);
}

template <class Row, class N>
SR_DEVICE void row_widen(float (&x)[Row::count], const sr_raw_eight<N> &raw) {
#pragma unroll
    for (int m = 0; m < 8; m++) {
        const uint32_t word = raw.word[m * (int)sizeof(N) / 4];
        if constexpr (sizeof(N) == 4)
            x[m] = bits_float(word);
        else
            x[m] = bits_float(m % 2 == 0 ? word << 16 : word & 0xffff0000u); /* bf16 */
    }
}

/* x = the n numbers at `from`. */
template <class Row, class N>
SR_DEVICE void row_load(float (&x)[Row::count], const N *from, int n) {
    if constexpr (Row::adjacent == 8) {
        sr_raw_eight<N> raw;
        row_fetch<Row>(raw, from, n);
        row_widen<Row>(x, raw);
        return;
    }
    const bool paired = (uintptr_t)from % sizeof(sr_pair<N>) == 0;
#pragma unroll
    for (int m = 0; m < Row::count; m += 2) {
        const int c = Row::column(m);
        x[m] = x[m + 1] = 0;
        if (paired && c + 1 < n) {
            const sr_pair<N> pair = *reinterpret_cast<const sr_pair<N> *>(from + c);
            x[m] = to_float(pair.number[0]);
            x[m + 1] = to_float(pair.number[1]);
            continue;
        }
        if (c < n)
            x[m] = to_float(from[c]);
        if (c + 1 < n)
            x[m + 1] = to_float(from[c + 1]);
    }
}

template <class Row, class N> SR_DEVICE void row_store(N *to, const float (&x)[Row::count], int n) {
    if constexpr (Row::adjacent == 8)
        if (moves_eight<Row>(to, n)) {
            constexpr int each = sr_vector<N>::count;
#pragma unroll
            for (int m = 0; m < Row::count; m += each) {
                sr_vector<N> vector;
#pragma unroll
                for (int i = 0; i < each; i++)
                    vector.number[i] = from_float<N>(x[m + i]);
                store_vector(to + Row::column(m), vector);
            }
            return;
        }
    const bool paired = (uintptr_t)to % sizeof(sr_pair<N>) == 0;
#pragma unroll
    for (int m = 0; m < Row::count; m += 2) {
        const int c = Row::column(m);
        const sr_pair<N> pair = {{from_float<N>(x[m]), from_float<N>(x[m + 1])}};
        if (paired && c + 1 < n) {
            *reinterpret_cast<sr_pair<N> *>(to + c) = pair;
            continue;
        }
        if (c < n)
            to[c] = pair.number[0];
        if (c + 1 < n)
            to[c + 1] = pair.number[1];
    }
}

/* ---- sums over a row ---- */

template <class Row> SR_DEVICE float row_sum(const float (&x)[Row::count]) {
    float sum = 0;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        sum += x[m];
    return Row::sum(sum);
}

template <class Row>
SR_DEVICE float row_dot(const float (&x)[Row::count], const float (&y)[Row::count]) {
    float sum = 0;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        sum = fmaf(x[m], y[m], sum);
    return Row::sum(sum);
}

/* |x|, also where squares would leave the range of a float. */
template <class Row> SR_DEVICE float row_length(const float (&x)[Row::count]) {
    float largest = 0;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        largest = fmaxf(largest, fabsf(x[m]));
    const uint32_t exponent = float_bits(Row::maximum(largest)) >> 23;
    const uint32_t bounded = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    const float down = bits_float((254 - bounded) << 23), up = bits_float(bounded << 23);
    float sum = 0; /* of squares of numbers up to 2 */
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        sum = fmaf(x[m] * down, x[m] * down, sum);
    return sqrtf(Row::sum(sum)) * up;
}

template <class Row> SR_DEVICE void row_multiply(float (&x)[Row::count], float factor) {
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        x[m] *= factor;
}

/* x less its mean; past the end zero. */
template <class Row> SR_DEVICE void row_centre(float (&x)[Row::count], int n) {
    const float mean = row_sum<Row>(x) / (float)n;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        x[m] = Row::column(m) < n ? x[m] - mean : 0;
}

/* ---- features ---- */

SR_DEVICE float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* elu(x) + 1, to about 20 bits. */
SR_DEVICE float elu1(float x) {
    return x > 0 ? x + 1 : exp2_fast(x * SR_LOG2_E);
}

/* In place; unit_heads is one factor per channel, `inverse` (n), which the others do not read. */
template <class Row>
SR_DEVICE void row_feature(float (&x)[Row::count], srnn_feature feature, const float *inverse,
                           int n) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
        return;
    case SRNN_FEATURE_RELU:
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            x[m] = x[m] < 0 ? 0 : x[m]; /* this way round a NaN stays one */
        return;
    case SRNN_FEATURE_ELU1:
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            x[m] = Row::column(m) >= n ? 0 : elu1(x[m]);
        return;
    case SRNN_FEATURE_UNIT:
        row_multiply<Row>(x, 1 / fmaxf(row_length<Row>(x), SR_NORM_FLOOR));
        return;
    case SRNN_FEATURE_UNIT_HEADS:
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            x[m] = Row::column(m) < n ? x[m] * inverse[Row::column(m)] : 0;
        return;
    case SRNN_FEATURE_UNIT_SMOOTH: /* the kernels here do not support these */
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return;
    }
}

/* g: the gradient of the feature in, of x out. The rest of unit_heads needs all heads. */
template <class Row>
SR_DEVICE void row_feature_backward(float (&g)[Row::count], const float (&x)[Row::count],
                                    srnn_feature feature) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH: /* the kernels here do not support these */
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return;
    case SRNN_FEATURE_RELU:
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            g[m] = x[m] > 0 ? g[m] : 0;
        return;
    case SRNN_FEATURE_ELU1:
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            g[m] = x[m] > 0 ? g[m] : g[m] * expf(x[m]);
        return;
    case SRNN_FEATURE_UNIT: {
        const float length = row_length<Row>(x);
        const bool floored = length < SR_NORM_FLOOR;
        const float inverse = 1 / (floored ? SR_NORM_FLOOR : length);
        /* by all lanes: rows of a warp may take different branches */
        const float dot = row_dot<Row>(x, g);
        const float along = floored ? 0 : dot * inverse * inverse;
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            g[m] = inverse * (g[m] - along * x[m]);
        return;
    }
    }
}

/* ---- outputs ---- */

/* What a row's epilogue needs once its sum is complete. */
struct sr_row_facts {
    float row_sum;    /* as it is saved */
    float length;     /* keys that it sees, for normalisers that need it */
    float logit;      /* of the output gate */
    float cumulative; /* the running sum of its exp */
    float maximum;    /* the logarithm by which its weights were scaled down */
    float sink;       /* to be added to the row sum */
};

/* The denominator of the numerator, the gate before the norm, the gate after it. */
struct sr_row_scalars {
    float denominator, gate, post;
};

/* The denominator of a row with this row sum. Infinity where that would be zero or nearly:
 * a row whose weights are all zero becomes a row of zeros and passes no gradient. */
SR_DEVICE float sum_denominator(const sr_choices &c, float row_sum) {
    const float whole = row_sum + c.epsilon;
    return fabsf(whole) < FLT_MIN ? INFINITY : whole;
}

SR_DEVICE float row_denominator(const sr_choices &c, const sr_row_facts &row) {
    switch (c.normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        return sum_denominator(c, row.row_sum + row.sink);
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return (row.row_sum < 1 ? 1 : row.row_sum) + c.epsilon;
    case SRNN_NORMALISER_ROW_LENGTH:
        return row.length + c.epsilon;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return (row.cumulative < 1 ? 1 : row.cumulative) + c.epsilon;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    return 1 + c.epsilon;
}

SR_DEVICE float row_gate(const sr_choices &c, const sr_row_facts &row) {
    switch (c.output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return sigmoid(row.logit);
    case SRNN_GATE_INVERSE_EXP:
        return expf(-row.logit);
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return 1 / row.cumulative;
    }
    return 1;
}

SR_DEVICE sr_row_scalars row_scalars(const sr_choices &c, const sr_row_facts &row) {
    return {row_denominator(c, row), row_gate(c, row), c.post_gate ? sigmoid(row.logit) : 1.0f};
}

/* The sink of a row whose weights were divided by e^maximum. Its exponent is limited to the range
 * of a float: beyond it the rest of the row vanishes. */
template <class N>
SR_DEVICE float row_sink(const sr_attention_view<N> &call, int h, float maximum) {
    const float most = 80, logit = call.sinks ? call.sinks[h] : 0;
    return call.choices.sink == SRNN_SINK_NONE ? 0 : expf(fminf(logit - maximum, most));
}

/* The facts of row t; row sum and maximum, as they are saved, are passed in. */
template <class N>
SR_DEVICE sr_row_facts row_facts(const sr_attention_view<N> &call, int b, int h, int t, float sum,
                                 float maximum) {
    sr_row_facts row = {sum, 0, 0, 0, maximum, 0};
    if (call.choices.sink != SRNN_SINK_NONE)
        row.sink = row_sink(call, h, maximum);
    if (call.choices.normaliser == SRNN_NORMALISER_ROW_LENGTH)
        row.length = (float)(call.position() + t - call.first[(int64_t)b * call.T + t] + 1);
    if (call.choices.gated)
        row.logit = to_float(*call.output_gate.at(b, h, t));
    if (call.choices.cumulates)
        row.cumulative = (float)call.scratch.cumulative[call.row_index(call.H, b, h, t)];
    return row;
}

/* The floor of an l2 norm: of rows divided by their sum, or of undivided ones, whose scale it then
 * has. */
SR_DEVICE float row_floor(const sr_choices &c, const sr_row_facts &row) {
    if (c.floor_follows_rows)
        return SR_NORM_FLOOR * row.row_sum;
    return c.normaliser == SRNN_NORMALISER_ROW_SUM ? SR_NORM_FLOOR
                                                   : SR_NORM_FLOOR * expf(-row.maximum);
}

/* x: factor times the numerator in, its normalised row out: less the mean for a layer norm, times
 * the returned `inverse`; weight and bias are not applied. *floored: an l2 norm is at its floor. */
template <class Row>
SR_DEVICE float row_normalise(float (&x)[Row::count], bool *floored, const sr_choices &c, int n,
                              float floor) {
    float inverse = 1;
    *floored = false;
    switch (c.norm) {
    case SRNN_NORM_NONE:
        return 1;
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        if (sr_norm_is_centred(c.norm))
            row_centre<Row>(x, n);
        inverse = 1 / sqrtf(row_dot<Row>(x, x) / (float)n + (float)sr_norm_usual_epsilon(c.norm));
        break;
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED: {
        const float length = row_length<Row>(x);
        *floored = length < floor;
        inverse = 1 / (*floored ? floor : length);
        break;
    }
    }
    row_multiply<Row>(x, inverse);
    return inverse;
}

/* x: the normalised row; applies weights and constant factors; `bias`: NULL where none is added. */
template <class Row>
SR_DEVICE void row_affine(float (&x)[Row::count], srnn_norm norm, const float *weight,
                          const float *bias, int n) {
    switch (norm) {
    case SRNN_NORM_NONE:
    case SRNN_NORM_L2:
        return;
    case SRNN_NORM_L2_SCALED:
        row_multiply<Row>(x, (float)n);
        return;
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
#pragma unroll
        for (int m = 0; m < Row::count; m++) {
            const int column = Row::column(m);
            if (column < n)
                x[m] = fmaf(x[m], weight[column], bias ? bias[column] : 0.0f);
        }
        return;
    }
}

/* Without a norm: the factor of the numerator. */
SR_DEVICE float row_plain_factor(const sr_choices &c, const sr_row_facts &row) {
    const sr_row_scalars s = row_scalars(c, row);
    return s.post * s.gate / s.denominator;
}

/* Epilogue of a row. x: the numerator in, the output out. */
template <class Row, class N>
SR_DEVICE void row_output(float (&x)[Row::count], const sr_attention_view<N> &call,
                          const sr_row_facts &row) {
    if (call.choices.norm == SRNN_NORM_NONE) {
        row_multiply<Row>(x, row_plain_factor(call.choices, row));
        return;
    }
    const sr_row_scalars s = row_scalars(call.choices, row);
    bool floored;
    row_multiply<Row>(x, s.gate / s.denominator);
    row_normalise<Row>(x, &floored, call.choices, call.Dv, row_floor(call.choices, row));
    row_affine<Row>(x, call.choices.norm, call.norm_weight, call.norm_bias, call.Dv);
    if (call.choices.post_gate)
        row_multiply<Row>(x, s.post);
}

/* ---- outputs, backward ---- */

struct sr_row_gradient {
    float scale;      /* a: the core works with w' = a w */
    float row_sum;    /* gradient of sum_j w'_ij */
    float logit;      /* of the output gate, directly */
    float cumulative; /* of its running sum */
};

/* d: the gradient of the normalised row in; out, that of the row before the norm without its factor
 * `inverse`. */
template <class Row>
SR_DEVICE void row_normalise_backward(float (&d)[Row::count], const float (&hat)[Row::count],
                                      const sr_choices &c, int n, bool floored) {
    float mean = 0, along = 0;
    switch (c.norm) {
    case SRNN_NORM_NONE:
        return;
    case SRNN_NORM_LAYER:
        mean = row_sum<Row>(d) / (float)n;
        along = row_dot<Row>(d, hat) / (float)n;
        break;
    case SRNN_NORM_RMS:
        along = row_dot<Row>(d, hat) / (float)n;
        break;
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        /* by all lanes: rows of a warp may take different branches below */
        along = row_dot<Row>(d, hat);
        along = floored ? 0 : along;
        break;
    }
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        d[m] = Row::column(m) < n ? d[m] - mean - hat[m] * along : 0;
}

/* Gradients of the row's scalars; `along` = <d, numerator / denominator>. */
SR_DEVICE void row_scalars_backward(sr_row_gradient *g, const sr_choices &c,
                                    const sr_row_facts &row, const sr_row_scalars &s, float inverse,
                                    float along) {
    const float d_gate = inverse * along;
    switch (c.output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        g->logit += d_gate * s.gate * (1 - s.gate);
        break;
    case SRNN_GATE_INVERSE_EXP:
        g->logit -= d_gate * s.gate;
        break;
    case SRNN_GATE_INVERSE_CUMULATIVE:
        g->cumulative -= d_gate * s.gate * s.gate;
        break;
    }
    if (c.detach)
        return;
    switch (c.normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        g->row_sum = -along;
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        g->row_sum = row.row_sum < 1 ? 0 : -along;
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        g->cumulative -= row.cumulative < 1 ? 0 : s.gate * d_gate / s.denominator;
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
}

/* Without a norm: everything follows from <d, x> of the gradient of the output and the
 * numerator. */
SR_DEVICE sr_row_gradient row_plain_backward(const sr_choices &c, const sr_row_facts &row,
                                             float dot) {
    const sr_row_scalars s = row_scalars(c, row);
    const float before = s.gate / s.denominator;
    sr_row_gradient g = {};
    if (c.post_gate)
        g.logit = before * dot * s.post * (1 - s.post);
    row_scalars_backward(&g, c, row, s, s.post, dot / s.denominator);
    g.scale = before * s.post;
    return g;
}

/* Backward of a row's epilogue. d: the gradient of the output in, of sum_j w'_ij v_j out. x: the
 * numerator in, overwritten. Adds to the lane's share of the gradients of the norm's weight and
 * bias.
 *
 * With y = x / denominator, the row before the norm is gate y, and its gradient is `inverse` times
 * a row d of the magnitude of the output's gradient. So with a = gate inverse / denominator the
 * gradient of the sum of w v is a d, and that of the sum of w' v is d: for softmax the output's
 * gradient itself. The sum of w' has the gradient -<d, y>. */
template <class Row, class N>
SR_DEVICE sr_row_gradient row_output_backward(float (&d)[Row::count], float (&x)[Row::count],
                                              float (&d_weight)[Row::count],
                                              float (&d_bias)[Row::count],
                                              const sr_attention_view<N> &call,
                                              const sr_row_facts &row) {
    const sr_choices &c = call.choices;
    if (c.norm == SRNN_NORM_NONE)
        return row_plain_backward(c, row, row_dot<Row>(d, x));
    const sr_row_scalars s = row_scalars(c, row);
    const float before = s.gate / s.denominator;
    float hat[Row::count];
    bool floored;
    sr_row_gradient g = {};
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        hat[m] = before * x[m];
    const float inverse = row_normalise<Row>(hat, &floored, c, call.Dv, row_floor(c, row));
    if (c.post_gate) {
        float u[Row::count];
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            u[m] = hat[m];
        row_affine<Row>(u, c.norm, call.norm_weight, call.norm_bias, call.Dv);
        g.logit = row_dot<Row>(d, u) * s.post * (1 - s.post);
    }
    row_multiply<Row>(d, s.post);
    if (sr_norm_has_weight(c.norm))
#pragma unroll
        for (int m = 0; m < Row::count; m++) {
            d_weight[m] = fmaf(d[m], hat[m], d_weight[m]);
            d_bias[m] += d[m];
        }
    row_affine<Row>(d, c.norm, call.norm_weight, nullptr, call.Dv);
    row_normalise_backward<Row>(d, hat, c, call.Dv, floored);
    row_multiply<Row>(x, 1 / s.denominator);
    row_scalars_backward(&g, c, row, s, inverse, row_dot<Row>(d, x));
    g.scale = before * inverse;
    return g;
}

#endif
