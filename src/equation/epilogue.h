/* epilogue.h: the epilogue of the equation, in double: from the sum over a row's keys to its
 * output.
 *   o = post_gate * norm(output_gate * numerator / normaliser)
 * CPU kernels and the analysis of trained layers share it. */
#ifndef SR_EQUATION_EPILOGUE_H
#define SR_EQUATION_EPILOGUE_H

#include "equation/facts.h"
#include "equation/norm.h"
#include "equation/row.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { SR_ROW_SUMS = 8 };

static const double SR_L2_FLOOR = 1e-12;

/* ---- sums over a row, in eight independent accumulators */

typedef double sr_row_sums __attribute__((vector_size(SR_ROW_SUMS * sizeof(double))));

/* ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) */
static inline double sr_row_sums_total(const sr_row_sums *sums) {
    sr_row_sums sum = *sums;
    sum += __builtin_shufflevector(sum, sum, 1, 0, 3, 2, 5, 4, 7, 6);
    sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5);
    return sum[0] + sum[4];
}

static inline double sr_row_dot(const double *a, const double *b, int n) {
    sr_row_sums sum = {0}, x, y;
    int whole = n / SR_ROW_SUMS * SR_ROW_SUMS;
    for (int d = 0; d < whole; d += SR_ROW_SUMS) {
        memcpy(&x, a + d, sizeof x);
        memcpy(&y, b + d, sizeof y);
        sum += x * y;
    }
    for (int d = whole; d < n; d++)
        sum[0] += a[d] * b[d];
    return sr_row_sums_total(&sum);
}

static inline double sr_row_total(const double *a, int n) {
    sr_row_sums sum = {0}, x;
    int whole = n / SR_ROW_SUMS * SR_ROW_SUMS;
    for (int d = 0; d < whole; d += SR_ROW_SUMS) {
        memcpy(&x, a + d, sizeof x);
        sum += x;
    }
    for (int d = whole; d < n; d++)
        sum[0] += a[d];
    return sr_row_sums_total(&sum);
}

/* ---- the norm */

/* A norm over n numbers, with its parameters. */
typedef struct sr_row_norm {
    srnn_norm norm;
    int n;
    double floor;                /* of an l2 norm */
    double epsilon;              /* of the others */
    const double *weight, *bias; /* (n) */
} sr_row_norm;

/* The epsilon of layer and rms, over heads of Dv channels. */
static inline double sr_row_norm_epsilon(const srnn_attention *a, int Dv) {
    const bool heads = a->norm_weight == SRNN_NORM_WEIGHT_HEAD && a->norm == SRNN_NORM_LAYER;
    if (a->norm_epsilon > 0.0)
        return a->norm_epsilon;
    return sr_norm_usual_epsilon(a->norm) * (heads ? Dv : 1);
}

/* The floor of an l2 norm, for a row with this sum of weights. */
static inline double sr_row_norm_floor(const srnn_attention *a, double row_sum) {
    return sr_floor_follows_rows(a) ? SR_L2_FLOOR * row_sum : SR_L2_FLOOR;
}

/* x (n) minus its mean, in place; returns 1/deviation. */
static inline double sr_row_centre(double *x, int n, double epsilon) {
    const double mean = sr_row_total(x, n) / n;
    for (int d = 0; d < n; d++)
        x[d] -= mean;
    return 1.0 / sqrt(sr_row_dot(x, x, n) / n + epsilon);
}

/* x (n) = post * norm(factor * x) */
static inline void sr_row_normalise(double *x, const sr_row_norm *rule, double factor,
                                    double post) {
    const double *weight = rule->weight, *bias = rule->bias;
    const int n = rule->n;
    switch (rule->norm) {
    case SRNN_NORM_NONE:
        for (int d = 0; d < n; d++)
            x[d] *= factor * post;
        return;
    case SRNN_NORM_LAYER: {
        for (int d = 0; d < n; d++)
            x[d] = factor * x[d];
        const double inverse = sr_row_centre(x, n, rule->epsilon);
        for (int d = 0; d < n; d++)
            x[d] = post * (x[d] * inverse * weight[d] + bias[d]);
        return;
    }
    case SRNN_NORM_RMS: {
        const double inverse =
            1.0 / sqrt(factor * factor * sr_row_dot(x, x, n) / n + rule->epsilon);
        for (int d = 0; d < n; d++)
            x[d] = post * factor * inverse * x[d] * weight[d];
        return;
    }
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED: {
        const double length = fabs(factor) * sqrt(sr_row_dot(x, x, n));
        double whole = post * factor / (length < rule->floor ? rule->floor : length);
        whole *= sr_norm_length_factor(rule->norm, n);
        for (int d = 0; d < n; d++)
            x[d] = whole * x[d];
        return;
    }
    }
}

#endif
