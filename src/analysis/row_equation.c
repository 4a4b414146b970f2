/* row_equation.c: what a layer makes of one row's weights, in double. */
#include "analysis/row_equation.h"

#include "attention/score.h"

#include <float.h>
#include <math.h>

static const double layer_epsilon = 1e-5, l2_floor = 1e-12;
static const double rms_epsilon = (double)FLT_EPSILON;

double sr_row_weight(const srnn_attention *a, double s, double shift) {
    const double bounded = a->clamp > 0 && s > a->clamp ? a->clamp : s;
    return exp(bounded - shift);
}

double sr_row_denominator(const sr_row_facts *row, double row_sum) {
    const srnn_attention *a = row->attention;
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        return row_sum + a->epsilon;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return (row_sum < 1 ? 1 : row_sum) + a->epsilon;
    case SRNN_NORMALISER_ROW_LENGTH:
        return row->count + a->epsilon;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return (row->gate_sum < 1 ? 1 : row->gate_sum) + a->epsilon;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    return 1 + a->epsilon;
}

static double output_gate(const sr_row_facts *row) {
    switch (row->attention->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return sr_sigmoid(row->gate);
    case SRNN_GATE_INVERSE_EXP:
        return exp(-row->gate);
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return 1 / row->gate_sum;
    }
    return 1;
}

static double mean_of(const double *x, int count) {
    double sum = 0;
    for (int d = 0; d < count; d++)
        sum += x[d];
    return sum / count;
}

static double mean_square(const double *x, int count) {
    double sum = 0;
    for (int d = 0; d < count; d++)
        sum += x[d] * x[d];
    return sum / count;
}

static void multiply(double *x, double factor, const float *weight, int count) {
    for (int d = 0; d < count; d++)
        x[d] *= weight ? factor * (double)weight[d] : factor;
}

static void apply_norm(double *x, const sr_row_facts *row) {
    const int D = row->D;
    switch (row->attention->norm) {
    case SRNN_NORM_NONE:
        return;
    case SRNN_NORM_LAYER: {
        const double mean = mean_of(x, D);
        for (int d = 0; d < D; d++)
            x[d] -= mean;
        multiply(x, 1 / sqrt(mean_square(x, D) + layer_epsilon), row->norm_weight, D);
        for (int d = 0; d < D; d++)
            x[d] += (double)row->norm_bias[d];
        return;
    }
    case SRNN_NORM_RMS:
        multiply(x, 1 / sqrt(mean_square(x, D) + rms_epsilon), row->norm_weight, D);
        return;
    case SRNN_NORM_L2:
        multiply(x, 1 / fmax(sqrt(mean_square(x, D) * D), l2_floor), NULL, D);
        return;
    case SRNN_NORM_L2_SCALED:
        multiply(x, D / fmax(sqrt(mean_square(x, D) * D), l2_floor), NULL, D);
        return;
    }
}

void sr_row_finish(double *o, const sr_row_facts *row, double row_sum) {
    multiply(o, output_gate(row) / sr_row_denominator(row, row_sum), NULL, row->D);
    apply_norm(o, row);
    if (row->attention->post_gate)
        multiply(o, sr_sigmoid(row->gate), NULL, row->D);
}
