/* row_equation.c: a layer's output from one row's weights, in double. */
#include "analysis/truncated/row_equation.h"

#include <float.h>

double sr_row_weight(const srnn_attention *a, double s, double shift) {
    const double bounded = a->clamp > 0 && s > a->clamp ? a->clamp : s;
    return exp(bounded - shift);
}

static sr_query_row row_of(const sr_row_facts *facts, double row_sum) {
    return (sr_query_row){.row_sum = row_sum,
                          .length = facts->count,
                          .gate = facts->gate,
                          .gate_sum = facts->gate_sum,
                          .least = DBL_MIN};
}

double sr_row_denominator(const sr_row_facts *facts, double row_sum) {
    const sr_query_row row = row_of(facts, row_sum);
    return sr_row_normaliser(facts->attention, &row);
}

void sr_row_finish(double *o, const sr_row_facts *facts, double row_sum) {
    const sr_query_row row = row_of(facts, row_sum);
    const sr_row_factors f = sr_row_factors_of(facts->attention, &row);
    double weight[SR_HEAD_SIZE_MAX], bias[SR_HEAD_SIZE_MAX];
    for (int d = 0; d < facts->D; d++) {
        weight[d] = facts->norm_weight ? (double)facts->norm_weight[d] : 1.0;
        bias[d] = facts->norm_bias ? (double)facts->norm_bias[d] : 0.0;
    }
    const sr_row_norm norm = {.norm = facts->attention->norm,
                              .n = facts->D,
                              .floor = sr_row_norm_floor(facts->attention, row_sum),
                              .epsilon = sr_row_norm_epsilon(facts->attention, facts->D),
                              .weight = weight,
                              .bias = bias};
    sr_row_normalise(o, &norm, (facts->gates ? 1.0 : f.gate) / f.normaliser, f.post);
    for (int d = 0; facts->gates && d < facts->D; d++)
        o[d] *= sr_gate_value(facts->attention->gate_shape, (double)facts->gates[d]);
}
