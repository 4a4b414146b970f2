/* lanes.h: attention in float by warps: 4 rows per warp stay, and rows pass by in tiles of 32, one
 * per lane. For the generic kernel and for recurrent state and KV cache. */
#ifndef SR_ATTENTION_CUDA_SHARED_LANES_H
#define SR_ATTENTION_CUDA_SHARED_LANES_H

#include "attention/cuda/shared/rows.h"

enum { SR_TILE = SR_WARP, SR_OWN = 4 };

/* Rows in shared memory; the odd stride lets 32 lanes read one column of 32 rows at a time. */
template <int WIDTH> struct sr_float_tile { float number[SR_TILE][WIDTH + 1]; };

/* One number for each pair of a row of the warp and one that passes by. */
struct sr_pair_rows {
    float number[SR_OWN][SR_TILE + 1];
};

/* dot[r] = <row r of the warp, the lane's row of the tile>. */
template <int WIDTH>
SR_DEVICE void dots(float (&dot)[SR_OWN], const float (*stays)[WIDTH + 1],
                    const sr_float_tile<WIDTH> &comes, int columns) {
    const int lane = (int)threadIdx.x % SR_WARP;
#pragma unroll
    for (int r = 0; r < SR_OWN; r++)
        dot[r] = 0;
    for (int column = 0; column < columns; column++) {
        const float x = comes.number[lane][column];
#pragma unroll
        for (int r = 0; r < SR_OWN; r++)
            dot[r] = fmaf(stays[r][column], x, dot[r]);
    }
}

/* The lane's number for each of the warp's rows. */
SR_DEVICE void pairs_store(sr_pair_rows &to, const float (&number)[SR_OWN]) {
    const int lane = (int)threadIdx.x % SR_WARP;
#pragma unroll
    for (int r = 0; r < SR_OWN; r++)
        to.number[r][lane] = number[r];
}

/* x[r] += sum over the rows of the tile of the pair's weight times the row. */
template <int WIDTH>
SR_DEVICE void add_rows(float (&x)[SR_OWN][WIDTH / SR_WARP], const sr_pair_rows &weight,
                        const sr_float_tile<WIDTH> &comes) {
    using Row = sr_warp_row<WIDTH>;
    for (int j = 0; j < SR_TILE; j++)
#pragma unroll
        for (int m = 0; m < Row::count; m++) {
            const float y = comes.number[j][Row::column(m)];
#pragma unroll
            for (int r = 0; r < SR_OWN; r++)
                x[r][m] = fmaf(weight.number[r][j], y, x[r][m]);
        }
}

/* ---- scores ---- */

/* A weight before the running maximum is taken off: its logarithm in units of base 2, or the weight
 * itself. */
SR_DEVICE sr_signed_log weight_before(const sr_score_rule &rule, float r, float decay) {
    const float x = clamp_dot(rule, r);
    switch (rule.kind) {
    case SR_CLASS_EXPONENTIAL:
        return {x + decay, false};
    case SR_CLASS_POLYNOMIAL:
        return {polynomial_weight(rule, x) * exp2f(decay), false};
    case SR_CLASS_LONG:
        break;
    }
    sr_signed_log weight = long_log(rule, x, 0);
    weight.log2 += decay;
    return weight;
}

/* How many times base 2 a unit of those logarithms is. */
SR_DEVICE float unit_of(const sr_score_rule &rule) {
    return rule.kind == SR_CLASS_EXPONENTIAL ? rule.scale_log2 : 1.0f;
}

/* ---- online softmax ---- */

/* Row sums, running maxima and numerators of the warp's rows. */
template <int WIDTH> struct sr_running {
    float sum[SR_OWN]; /* the lane's share */
    float maximum[SR_OWN];
    float x[SR_OWN][WIDTH / SR_WARP]; /* numerators */
};

/* Online softmax: raises the running maximum by the 32 keys of the tile, rescales row sum and
 * numerator, and returns the lane's weight. s: from weight_before, for the lane's key. */
template <int WIDTH>
SR_DEVICE float raise_and_weigh(sr_running<WIDTH> &rows, int r, sr_signed_log s,
                                const sr_score_rule &rule) {
    const float unit = unit_of(rule);
    if (rule.maximum) {
        const float before = rows.maximum[r], now = fmaxf(before, warp_maximum(s.log2));
        const float factor = now == before ? 1 : exp2f((before - now) * unit);
        rows.maximum[r] = now;
        rows.sum[r] *= factor;
#pragma unroll
        for (int m = 0; m < WIDTH / SR_WARP; m++)
            rows.x[r][m] *= factor;
    }
    const float shift = rows.maximum[r] == -INFINITY ? 0 : rows.maximum[r];
    const float size = exp2f((s.log2 - shift) * unit);
    return s.negative ? -size : size;
}

/* The weight of row r's pair with the lane's key, added to the row sum. */
template <int WIDTH>
SR_DEVICE float weigh(sr_running<WIDTH> &rows, int r, const sr_score_rule &rule, bool seen,
                      float dot, float decay) {
    const bool logarithm = rule.kind != SR_CLASS_POLYNOMIAL;
    sr_signed_log s = {logarithm ? -INFINITY : 0, false};
    if (seen)
        s = weight_before(rule, dot, decay);
    const float weight = logarithm ? raise_and_weigh(rows, r, s, rule) : s.log2;
    rows.sum[r] += weight;
    return weight;
}

/* Empty sums. */
template <int WIDTH>
SR_DEVICE void running_start(sr_running<WIDTH> &rows, const sr_score_rule &rule) {
#pragma unroll
    for (int r = 0; r < SR_OWN; r++) {
        rows.sum[r] = 0;
        rows.maximum[r] = rule.maximum ? -INFINITY : 0;
#pragma unroll
        for (int m = 0; m < WIDTH / SR_WARP; m++)
            rows.x[r][m] = 0;
    }
}

#endif
