/* backward_preprocess.h (private): the per-row numbers that the core's backward reads. */
#ifndef SR_ATTENTION_CUDA_SHARED_BACKWARD_PREPROCESS_H
#define SR_ATTENTION_CUDA_SHARED_BACKWARD_PREPROCESS_H

#include "attention/cuda/shared/rows.h"

/* Row number n of a (B, heads, T) array. */
struct row_place {
    int b, h, t;
};

/* The factor of a row's weights, or the term subtracted from their logarithms. In float the maximum
 * is not included. */
template <class N>
SR_DEVICE float row_scale_of(const sr_score_rule &rule, float scale, float maximum) {
    if (rule.kind == SR_CLASS_POLYNOMIAL)
        return scale;
    return (sizeof(N) == sizeof(float) ? 0 : maximum * SR_LOG2_E) - log2f(fabsf(scale));
}

template <class N>
SR_DEVICE void store_row_gradient(const sr_attention_view<N> &call, const row_place &at, int64_t n,
                                  const sr_row_gradient &g) {
    call.scratch.row_scale[n] = row_scale_of<N>(call.score, g.scale, call.maximum[n]);
    call.scratch.d_row_sum[n] = g.row_sum;
    if (call.scratch.d_sink) { /* a sink is a weight without a value: w' = a w, of either sign */
        const float scale = call.score.kind == SR_CLASS_LONG ? fabsf(g.scale) : g.scale;
        call.scratch.d_sink[n] = g.row_sum * (scale * row_sink(call, at.h, call.maximum[n]));
    }
    if (call.choices.cumulates)
        call.scratch.d_cumulative[n] = g.cumulative;
    if (call.choices.gated && call.d_output_gate.data)
        store_number(call.d_output_gate.at(at.b, at.h, at.t), g.logit);
}

#endif
