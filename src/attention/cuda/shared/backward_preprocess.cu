/* backward_preprocess.cu: backward preprocess: from the output's gradient and the saved numerators
 * to the per-row numbers that the core's backward reads. */
#include "attention/cuda/shared/backward_preprocess.h"
#include "attention/cuda/shared/prologue.h"
#include "attention/cuda/shared/prologue_rows.h"

/* Rows of one head that a block handles at a time: `together` for each row position in its
 * warps. */
template <class Row, int together> struct row_pieces {
    static constexpr int rows_of_warp = together * Row::rows, rows = WARPS * rows_of_warp;

    static SR_BOTH int of_head(int T) {
        return (T + rows - 1) / rows;
    }
    /* Row `i` of this lane in piece `piece`. */
    static SR_DEVICE int row(int piece, int i) {
        const int warp = (int)threadIdx.x / SR_WARP;
        return piece * rows + warp * rows_of_warp + i * Row::rows + Row::row();
    }
};

/* Without a norm, and with weights that are not negative, all that the core needs of a row follows
 * from <d_o, numerator>. */
enum { PLAIN_TOGETHER = 8 };

/* A lane's share of <x, y>. */
template <class Row, class N>
SR_DEVICE float lane_dot(const sr_raw_eight<N> &x, const sr_raw_eight<N> &y) {
    float left[Row::count], right[Row::count], sum = 0;
    row_widen<Row>(left, x);
    row_widen<Row>(right, y);
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        sum = fmaf(left[m], right[m], sum);
    return sum;
}

/* A block owns WARPS * PLAIN_TOGETHER * Row::rows consecutive rows of one head; a row is spread
 * over Row::lanes lanes of a warp. Each lane loads its 16 bytes of d_o and of the numerator for
 * four rows at a time, twice, global -> registers, and multiplies; a shuffle transposition sums all
 * eight rows at once and leaves lane l with the dot product of row l. Lanes 0 .. 7 then compute and
 * store their row's row_scale, d_row_sum and gate gradients. No shared memory, no atomics. */
template <class N, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2) plain_rows_backward(const sr_attention_view<N> call) {
    using Row = sr_eight_row<WIDTH>;
    using pieces = row_pieces<Row, PLAIN_TOGETHER>;
    const row_place at = place_of(blockIdx.x, call.H, pieces::of_head(call.T));
    const int64_t first = call.row_index(call.H, at.b, at.h, 0);
    float dot[PLAIN_TOGETHER];
#pragma unroll
    for (int half = 0; half < PLAIN_TOGETHER; half += 4) {
        sr_raw_eight<N> d[4], x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = min(pieces::row(at.t, half + i), call.T - 1);
            row_fetch<Row>(d[i], call.d_o.at(at.b, at.h, t), call.Dv);
            row_fetch<Row>(x[i], call.numerator + (first + t) * call.Dv, call.Dv);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            dot[half + i] = lane_dot<Row>(d[i], x[i]);
    }
    const float along = Row::sum_eight(dot);
    const int t = pieces::row(at.t, Row::lane() % 8);
    if (t >= call.T || Row::lane() >= 8)
        return;
    const int64_t n = first + t;
    const sr_row_facts row = row_facts(call, at.b, at.h, t, call.row_sum[n], call.maximum[n]);
    store_row_gradient(call, {at.b, at.h, t}, n, row_plain_backward(call.choices, row, along));
}

/* The sums of d_weight and d_bias over the block's rows, in the order of the warps: to (2, n). */
template <class Row>
SR_DEVICE void store_block_sums(float *to, const float (&d_weight)[Row::count],
                                const float (&d_bias)[Row::count], int n) {
    __shared__ float sums[WARPS][2][Row::lanes * Row::count];
    const int warp = (int)threadIdx.x / SR_WARP;
#pragma unroll
    for (int m = 0; m < Row::count; m++) {
        const float weight = Row::sum_of_rows(d_weight[m]), bias = Row::sum_of_rows(d_bias[m]);
        if (Row::row() == 0) {
            sums[warp][0][Row::column(m)] = weight;
            sums[warp][1][Row::column(m)] = bias;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * n; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += sums[w][i / n][i % n];
        to[i] = sum;
    }
}

/* A lane's part of a row: the gradient of the output, and the numerator. */
template <class N> struct raw_row { sr_raw_eight<N> d, x; };

/* One row with any norm; adds to the lane's share of the gradients of the norm's weight and
 * bias. */
template <class Row, class N>
SR_DEVICE void normed_row_backward(const sr_attention_view<N> &call, const row_place &at,
                                   const sr_row_facts &facts, const raw_row<N> &raw,
                                   float (&d_weight)[Row::count], float (&d_bias)[Row::count]) {
    float d[Row::count], x[Row::count];
    row_widen<Row>(d, raw.d);
    row_widen<Row>(x, raw.x);
    sr_row_gradient g = row_output_backward<Row>(d, x, d_weight, d_bias, call, facts);
    if (at.t >= call.T)
        return;
    if (call.score.kind == SR_CLASS_LONG && g.scale < 0) { /* only its size has a logarithm */
        row_multiply<Row>(d, -1);
        g.row_sum = -g.row_sum;
    }
    row_store<Row>(call.scratch.d_numerator.at(at.b, at.h, at.t), d, call.Dv);
    if (Row::lane() == 0)
        store_row_gradient(call, at, call.row_index(call.H, at.b, at.h, at.t), g);
}

/* With a norm, or with weights of either sign. Grid-stride loop: a block owns pieces blockIdx.x, +
 * gridDim.x, ... of WARPS * NORMED_TOGETHER * Row::rows rows of a head. Each lane loads its 16
 * bytes of d_o and of the numerator for two rows, global -> registers; shuffles sum over the row's
 * lanes. The gradient of the numerator and the row scalars go to the workspace. Each lane
 * accumulates d_weight and d_bias of its columns over all its rows; at the end the warps are added
 * through shared memory in order, one partial per block in norm_partial, for sum_parts. */
enum { NORMED_TOGETHER = 2 };
template <class N, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    normed_rows_backward(const sr_attention_view<N> call, int64_t total) {
    using Row = sr_eight_row<WIDTH>;
    using pieces = row_pieces<Row, NORMED_TOGETHER>;
    float d_weight[Row::count] = {}, d_bias[Row::count] = {};
    for (int64_t piece = blockIdx.x; piece < total; piece += gridDim.x) {
        const row_place at = place_of(piece, call.H, pieces::of_head(call.T));
        const int64_t first = call.row_index(call.H, at.b, at.h, 0);
        raw_row<N> raw[NORMED_TOGETHER];
        sr_row_facts facts[NORMED_TOGETHER];
#pragma unroll
        for (int i = 0; i < NORMED_TOGETHER; i++) {
            const int wanted = pieces::row(at.t, i), t = min(wanted, call.T - 1);
            row_fetch<Row>(raw[i].d, call.d_o.at(at.b, at.h, t), wanted == t ? call.Dv : 0);
            row_fetch<Row>(raw[i].x, call.numerator + (first + t) * call.Dv, call.Dv);
            facts[i] =
                row_facts(call, at.b, at.h, t, call.row_sum[first + t], call.maximum[first + t]);
        }
#pragma unroll
        for (int i = 0; i < NORMED_TOGETHER; i++) {
            const row_place row = {at.b, at.h, pieces::row(at.t, i)};
            normed_row_backward<Row>(call, row, facts[i], raw[i], d_weight, d_bias);
        }
    }
    if (call.scratch.norm_partial)
        store_block_sums<Row>(call.scratch.norm_partial + (int64_t)blockIdx.x * 2 * call.Dv,
                              d_weight, d_bias, call.Dv);
}

/* The lane in the warp that is lane `i` of this lane's row. */
template <class Row> SR_DEVICE int lane_of_row(int i) {
    return (int)threadIdx.x % SR_WARP / Row::lanes * Row::lanes + i;
}

/* The gradient of a row through an l2 norm: the gradient of sum_j w'_ij v_j is d times that of the
 * output less x times the numerator. */
struct sr_length_gradient {
    sr_row_gradient row;
    float d, x;
};

/* With an l2 norm: everything follows from `square` = <x, x>, and `dot` = <d, x> of the gradient of
 * the output and the numerator; rows have n numbers. */
SR_DEVICE sr_length_gradient row_length_backward(const sr_choices &c, const sr_row_facts &row,
                                                 int n, float square, float dot) {
    const sr_row_scalars s = row_scalars(c, row);
    const float before = s.gate / s.denominator, length = before * sqrtf(square);
    const float floor = row_floor(c, row), unit = sr_norm_length_factor(c.norm, n);
    const bool floored = length < floor;
    const float inverse = 1 / (floored ? floor : length), factor = before * inverse;
    const float along = factor * dot; /* <d, normalised row> */
    sr_length_gradient g = {};
    g.d = s.post * unit;
    g.x = floored ? 0 : g.d * along * factor;
    if (c.post_gate)
        g.row.logit = unit * along * s.post * (1 - s.post);
    row_scalars_backward(&g.row, c, row, s, inverse, (g.d * dot - g.x * square) / s.denominator);
    g.row.scale = factor;
    return g;
}

/* Makes the row's scale a power of two, by which weights in bf16 are multiplied without rounding:
 * the pairs that a decay's gradient subtracts from each other are then the same numbers. */
SR_DEVICE void round_scale(sr_length_gradient *g) {
    const float power = bits_float(float_bits(g->row.scale) & 0xff800000u);
    const float rest = g->row.scale / power; /* no number for 0 and infinity */
    if (!(rest >= 1 && rest < 2))
        return;
    g->row.scale = power;
    g->row.row_sum *= rest;
    g->d *= rest;
    g->x *= rest;
}

/* With an l2 norm and weights that are not negative, everything follows from <x, x> and <d_o, x> of
 * the numerator x. A block owns WARPS * LENGTH_TOGETHER * Row::rows rows of one head. Each lane
 * loads its 16 bytes of d_o and x for four rows, global -> registers, and keeps them; one shuffle
 * transposition sums all eight dot products, so that each lane has those of one row. It computes
 * that row's scalars and stores them; shuffles broadcast its two factors, and all lanes store
 * d_numerator = d d_o - x along from the registers. A warp with a length out of the range of a
 * square falls back to the general path. */
enum { LENGTH_TOGETHER = 4 };
template <class N, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    length_rows_backward(const sr_attention_view<N> call) {
    using Row = sr_eight_row<WIDTH>;
    using pieces = row_pieces<Row, LENGTH_TOGETHER>;
    const row_place at = place_of(blockIdx.x, call.H, pieces::of_head(call.T));
    const int64_t first = call.row_index(call.H, at.b, at.h, 0);
    raw_row<N> raw[LENGTH_TOGETHER];
#pragma unroll
    for (int i = 0; i < LENGTH_TOGETHER; i++) {
        const int t = min(pieces::row(at.t, i), call.T - 1);
        row_fetch<Row>(raw[i].d, call.d_o.at(at.b, at.h, t), call.Dv);
        row_fetch<Row>(raw[i].x, call.numerator + (first + t) * call.Dv, call.Dv);
    }
    const int mine = min(pieces::row(at.t, Row::lane() % 4), call.T - 1);
    const sr_row_facts facts =
        row_facts(call, at.b, at.h, mine, call.row_sum[first + mine], call.maximum[first + mine]);
    float sums[2 * LENGTH_TOGETHER]; /* <x, x>, <d, x> */
#pragma unroll
    for (int i = 0; i < LENGTH_TOGETHER; i++) {
        sums[i] = lane_dot<Row>(raw[i].x, raw[i].x);
        sums[LENGTH_TOGETHER + i] = lane_dot<Row>(raw[i].d, raw[i].x);
    }
    const float one = Row::sum_eight(sums), other = shuffle_xor(one, 4);
    const float square = Row::lane() & 4 ? other : one, dot = Row::lane() & 4 ? one : other;
    if (warp_ballot(!(square > 0x1p-100f && square < 0x1p120f)) != 0) {
#pragma unroll
        for (int i = 0; i < LENGTH_TOGETHER; i++) {
            float unused[Row::count] = {};
            const int t = pieces::row(at.t, i), there = min(t, call.T - 1);
            const sr_row_facts row = row_facts(call, at.b, at.h, there, call.row_sum[first + there],
                                               call.maximum[first + there]);
            normed_row_backward<Row>(call, {at.b, at.h, t}, row, raw[i], unused, unused);
        }
        return;
    }
    sr_length_gradient g = row_length_backward(call.choices, facts, call.Dv, square, dot);
    const bool multiplies = call.score.kind == SR_CLASS_POLYNOMIAL; /* else it is an exponent */
    if (sizeof(N) < sizeof(float) && multiplies && call.choices.decays)
        round_scale(&g);
    if (Row::lane() < LENGTH_TOGETHER && pieces::row(at.t, Row::lane()) < call.T)
        store_row_gradient(call, {at.b, at.h, mine}, first + mine, g.row);
#pragma unroll
    for (int i = 0; i < LENGTH_TOGETHER; i++) {
        const int from = lane_of_row<Row>(i), t = pieces::row(at.t, i);
        const float of_d = shuffle(g.d, from), of_x = shuffle(g.x, from);
        float left[Row::count], right[Row::count];
        row_widen<Row>(left, raw[i].d);
        row_widen<Row>(right, raw[i].x);
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            left[m] = fmaf(of_d, left[m], -of_x * right[m]);
        if (t < call.T)
            row_store<Row>(call.scratch.d_numerator.at(at.b, at.h, t), left, call.Dv);
    }
}

/* The gradient of a row through a norm that divides by its spread, with x the numerator less its
 * mean: the normalised row is factor x, and the gradient of sum_j w'_ij v_j is post d weight -
 * shift - pull x. */
struct sr_spread_gradient {
    sr_row_gradient row;
    float post, factor, shift, pull;
};

/* Sums over the numbers of a row. */
struct sr_spread_sums {
    float square;    /* <before x, before x>: the numerator enters the norm times `before` */
    float dot;       /* <d weight, x> */
    float sum, bias; /* of d weight, and <d, bias>; 0 where no mean is taken off */
};

/* Rows have n numbers. <gradient, x> is `dot` times the epsilon's share of the spread: the rest
 * cancels. */
SR_DEVICE sr_spread_gradient row_spread_backward(const sr_choices &c, const sr_row_facts &row,
                                                 int n, const sr_spread_sums &sums) {
    const sr_row_scalars s = row_scalars(c, row);
    const float epsilon = (float)sr_norm_usual_epsilon(c.norm);
    const float inverse = 1 / sqrtf(sums.square / (float)n + epsilon);
    sr_spread_gradient g = {};
    g.post = s.post;
    g.factor = s.gate / s.denominator * inverse;
    g.shift = s.post * sums.sum / (float)n;
    g.pull = s.post * g.factor * sums.dot / (float)n * g.factor;
    if (c.post_gate)
        g.row.logit = (g.factor * sums.dot + sums.bias) * s.post * (1 - s.post);
    row_scalars_backward(&g.row, c, row, s, inverse,
                         s.post * sums.dot * (epsilon * inverse * inverse) / s.denominator);
    g.row.scale = g.factor;
    return g;
}

/* With a layer or rms norm, all that the core needs of a row follows from a few sums. Grid-stride
 * loop: a block owns pieces blockIdx.x, + gridDim.x, ... of WARPS * SPREAD_TOGETHER * Row::rows
 * rows of a head. Each lane loads its 16 bytes of d_o and the numerator for four rows, global ->
 * registers. Then in order: means and sums of d weight (layer), <d, bias> (post gate), squares and
 * dot products, each by one shuffle transposition that leaves a lane with one row's sums; the row's
 * scalars are stored and its factors broadcast by shuffles; all lanes store d_numerator. d_weight
 * and d_bias accumulate per lane and leave one partial per block in norm_partial, added by
 * sum_parts. */
enum { SPREAD_TOGETHER = 4 };
template <class N, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    spread_rows_backward(const sr_attention_view<N> call, int64_t total) {
    using Row = sr_eight_row<WIDTH>;
    using pieces = row_pieces<Row, SPREAD_TOGETHER>;
    const bool centred = sr_norm_is_centred(call.choices.norm);
    float d_weight[Row::count] = {}, d_bias[Row::count] = {}, weight[Row::count];
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        weight[m] = Row::column(m) < call.Dv ? call.norm_weight[Row::column(m)] : 0;
    for (int64_t piece = blockIdx.x; piece < total; piece += gridDim.x) {
        const row_place at = place_of(piece, call.H, pieces::of_head(call.T));
        const int64_t first = call.row_index(call.H, at.b, at.h, 0);
        raw_row<N> raw[SPREAD_TOGETHER];
#pragma unroll
        for (int i = 0; i < SPREAD_TOGETHER; i++) {
            const int wanted = pieces::row(at.t, i), t = min(wanted, call.T - 1);
            row_fetch<Row>(raw[i].d, call.d_o.at(at.b, at.h, t), wanted == t ? call.Dv : 0);
            row_fetch<Row>(raw[i].x, call.numerator + (first + t) * call.Dv, call.Dv);
        }
        const int mine = min(pieces::row(at.t, Row::lane() % 4), call.T - 1);
        const sr_row_facts facts = row_facts(call, at.b, at.h, mine, call.row_sum[first + mine],
                                             call.maximum[first + mine]);
        const sr_row_scalars scalars = row_scalars(call.choices, facts);
        const float before = scalars.gate / scalars.denominator;
        const bool upper = Row::lane() & 4;
        float sums[2 * SPREAD_TOGETHER], mean = 0, sum = 0, bias = 0;
        if (centred) { /* the sum of x, and of d weight */
#pragma unroll
            for (int i = 0; i < SPREAD_TOGETHER; i++) {
                float d[Row::count], x[Row::count];
                row_widen<Row>(d, raw[i].d);
                row_widen<Row>(x, raw[i].x);
                sums[i] = sums[SPREAD_TOGETHER + i] = 0;
#pragma unroll
                for (int m = 0; m < Row::count; m++) {
                    sums[i] += x[m];
                    sums[SPREAD_TOGETHER + i] = fmaf(d[m], weight[m], sums[SPREAD_TOGETHER + i]);
                }
            }
            const float one = Row::sum_eight(sums), other = shuffle_xor(one, 4);
            mean = (upper ? other : one) / (float)call.Dv;
            sum = upper ? one : other;
        }
        if (call.choices.post_gate && centred) { /* <d, bias> */
#pragma unroll
            for (int i = 0; i < SPREAD_TOGETHER; i++) {
                float d[Row::count];
                row_widen<Row>(d, raw[i].d);
                sums[i] = sums[SPREAD_TOGETHER + i] = 0;
#pragma unroll
                for (int m = 0; m < Row::count; m++)
                    if (Row::column(m) < call.Dv)
                        sums[i] = fmaf(d[m], call.norm_bias[Row::column(m)], sums[i]);
            }
            const float one = Row::sum_eight(sums), other = shuffle_xor(one, 4);
            bias = upper ? other : one;
        }
#pragma unroll
        for (int i = 0; i < SPREAD_TOGETHER; i++) { /* <before x, before x>, and <d weight, x> */
            const float its_mean = shuffle(mean, lane_of_row<Row>(i));
            const float its_before = shuffle(before, lane_of_row<Row>(i));
            float d[Row::count], x[Row::count];
            row_widen<Row>(d, raw[i].d);
            row_widen<Row>(x, raw[i].x);
            sums[i] = sums[SPREAD_TOGETHER + i] = 0;
#pragma unroll
            for (int m = 0; m < Row::count; m++) {
                const float off = Row::column(m) < call.Dv ? x[m] - its_mean : 0;
                const float scaled = its_before * off;
                sums[i] = fmaf(scaled, scaled, sums[i]);
                sums[SPREAD_TOGETHER + i] = fmaf(d[m] * weight[m], off, sums[SPREAD_TOGETHER + i]);
            }
        }
        const float one = Row::sum_eight(sums), other = shuffle_xor(one, 4);
        const sr_spread_sums all = {upper ? other : one, upper ? one : other, sum, bias};
        const sr_spread_gradient g = row_spread_backward(call.choices, facts, call.Dv, all);
        if (Row::lane() < SPREAD_TOGETHER && pieces::row(at.t, Row::lane()) < call.T)
            store_row_gradient(call, {at.b, at.h, mine}, first + mine, g.row);
#pragma unroll
        for (int i = 0; i < SPREAD_TOGETHER; i++) {
            const int from = lane_of_row<Row>(i), t = pieces::row(at.t, i);
            const float its_mean = shuffle(mean, from), post = shuffle(g.post, from);
            const float factor = shuffle(g.factor, from), pull = shuffle(g.pull, from);
            const float shift = shuffle(g.shift, from);
            float d[Row::count], x[Row::count];
            row_widen<Row>(d, raw[i].d);
            row_widen<Row>(x, raw[i].x);
#pragma unroll
            for (int m = 0; m < Row::count; m++) {
                const float off = x[m] - its_mean, posted = post * d[m];
                d_weight[m] = fmaf(posted, factor * off, d_weight[m]);
                d_bias[m] += posted;
                d[m] = fmaf(posted, weight[m], -shift) - pull * off;
            }
            if (t < call.T)
                row_store<Row>(call.scratch.d_numerator.at(at.b, at.h, t), d, call.Dv);
        }
    }
    if (call.scratch.norm_partial)
        store_block_sums<Row>(call.scratch.norm_partial + (int64_t)blockIdx.x * 2 * call.Dv,
                              d_weight, d_bias, call.Dv);
}

/* Pieces of all heads together. */
template <int together, class N> static int64_t pieces_of(const sr_attention_view<N> &call) {
    const int of_head = call.Dv <= 64    ? row_pieces<sr_eight_row<64>, together>::of_head(call.T)
                        : call.Dv <= 128 ? row_pieces<sr_eight_row<128>, together>::of_head(call.T)
                                         : row_pieces<sr_eight_row<256>, together>::of_head(call.T);
    return (int64_t)call.B * call.H * of_head;
}

/* Blocks of a call with a norm that share `pieces`; each writes one partial sum of the norm's
 * gradients. */
static unsigned norm_parts(int64_t pieces) {
    return (unsigned)(pieces < SR_NORM_PARTS ? pieces : (int64_t)SR_NORM_PARTS);
}

/* In float a lane has no registers for four rows; a logarithm has no sign; and a row of one number
 * less its mean is zero, without even the rounding of sums. */
template <class N> static bool has_spread(const sr_attention_view<N> &call) {
    const srnn_norm norm = call.choices.norm;
    return sizeof(N) < sizeof(float) && sr_norm_has_weight(norm) && call.Dv > 1 &&
           call.score.kind != SR_CLASS_LONG;
}

/* out (width): sums over partial (parts, 2, width), `half` 0 or 1 of each. A block owns 32 columns:
 * thread (x, y) adds parts y, y + 32, ... of column x in double from global memory; after a barrier
 * the 32 sums of a column are added over y through shared memory, in order, and row y = 0 stores
 * them. Deterministic: no atomics. */
__global__ void sum_parts(float *out, const float *partial, int parts, int width, int half) {
    const int column = (int)(blockIdx.x * SR_WARP + threadIdx.x);
    double sum = 0;
    for (int n = (int)threadIdx.y; n < parts && column < width; n += SR_WARP)
        sum += (double)partial[((int64_t)n * 2 + half) * width + column];
    const double all = add_over_y(sum);
    if (threadIdx.y == 0 && column < width)
        out[column] = (float)all;
}

template <class N>
srnn_status sr_attention_outputs_backward(const sr_attention_view<N> &call, cudaStream_t stream) {
    const srnn_norm norm = call.choices.norm;
    const dim3 square(SR_WARP, SR_WARP), columns(blocks_for(call.Dv, SR_WARP));
    const int64_t pieces =
        has_spread(call) ? pieces_of<SPREAD_TOGETHER>(call) : pieces_of<NORMED_TOGETHER>(call);
    if (sr_norm_is_length(norm) && call.score.kind != SR_CLASS_LONG) {
        START(length_rows_backward, call.Dv, (unsigned)pieces_of<LENGTH_TOGETHER>(call), call);
    } else if (has_spread(call)) {
        if constexpr (sizeof(N) < sizeof(float))
            START(spread_rows_backward, call.Dv, norm_parts(pieces), call, pieces);
    } else if (call.scratch.d_numerator.data) {
        START(normed_rows_backward, call.Dv, norm_parts(pieces), call, pieces);
    } else {
        START(plain_rows_backward, call.Dv, (unsigned)pieces_of<PLAIN_TOGETHER>(call), call);
    }
    if (call.scratch.norm_partial && call.d_norm_weight)
        SR_CUDA(sr_launch(sum_parts, columns, square, 0, stream, call.d_norm_weight,
                          call.scratch.norm_partial, (int)norm_parts(pieces), call.Dv, 0));
    if (call.scratch.norm_partial && call.d_norm_bias && sr_norm_is_centred(norm))
        SR_CUDA(sr_launch(sum_parts, columns, square, 0, stream, call.d_norm_bias,
                          call.scratch.norm_partial, (int)norm_parts(pieces), call.Dv, 1));
    return SRNN_OK;
}

template srnn_status sr_attention_outputs_backward(const sr_attention_view<float> &, cudaStream_t);
template srnn_status sr_attention_outputs_backward(const sr_attention_view<sr_bf16> &,
                                                   cudaStream_t);
