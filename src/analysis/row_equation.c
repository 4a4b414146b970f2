/* row_equation.c: what a layer makes of one row's weights, in double. */
#include "analysis/row_equation.h"

double sr_row_weight(const srnn_attention *a, double s, double shift) {
    const double bounded = a->clamp > 0 && s > a->clamp ? a->clamp : s;
    return exp(bounded - shift);
}

static sr_query_row row_of(const sr_row_facts *facts, double row_sum) {
    return (sr_query_row){row_sum, facts->count, facts->gate, facts->gate_sum};
}

double sr_row_denominator(const sr_row_facts *facts, double row_sum) {
    const sr_query_row row = row_of(facts, row_sum);
    return sr_row_normaliser(facts->attention, &row);
}

void sr_row_finish(double *o, const sr_row_facts *facts, double row_sum) {
    const sr_query_row row = row_of(facts, row_sum);
    const sr_row_factors f = sr_row_factors_of(facts->attention, &row);
    sr_row_norm norm = {.norm = facts->attention->norm,
                        .n = facts->D,
                        .floor = sr_row_norm_floor(facts->attention, row_sum)};
    for (int d = 0; facts->norm_weight && d < facts->D; d++)
        norm.weight[d] = (double)facts->norm_weight[d];
    for (int d = 0; facts->norm_bias && d < facts->D; d++)
        norm.bias[d] = (double)facts->norm_bias[d];
    sr_row_normalise(o, &norm, f.gate / f.normaliser, f.post);
}
