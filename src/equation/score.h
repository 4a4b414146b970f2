/* score.h: the pointwise mathematics of the equation, each function followed by its derivative.
 * Compiled by the C and the CUDA compiler; double only, because it is the definition that fast
 * kernels are measured against and the slow path that they fall back to. */
#ifndef SR_EQUATION_SCORE_H
#define SR_EQUATION_SCORE_H

#include "softrnn.h"

#include <math.h>
#include <stdbool.h>

#ifdef __CUDACC__
#define SR_EQUATION_FUNCTION __host__ __device__ inline
#else
#define SR_EQUATION_FUNCTION static inline
#endif

SR_EQUATION_FUNCTION double sr_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* log(1 + exp(x)), whose slope is the sigmoid. */
SR_EQUATION_FUNCTION double sr_softplus(double x) {
    return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x)));
}

/* The logarithm of a decay's gate lies within these bounds, beyond which its slope is 0:
 * e^-10000 is far below the smallest double, and a running sum of larger ones would round off
 * the gates after them. A NaN stays. */
#define SR_GATE_LOGARITHM_MAX 1e4

SR_EQUATION_FUNCTION double sr_gate_limited(double logarithm) {
    if (logarithm < -SR_GATE_LOGARITHM_MAX)
        return -SR_GATE_LOGARITHM_MAX;
    return logarithm > SR_GATE_LOGARITHM_MAX ? SR_GATE_LOGARITHM_MAX : logarithm;
}

/* True where the limit acts. */
SR_EQUATION_FUNCTION bool sr_gate_is_limited(double logarithm) {
    return fabs(logarithm) > SR_GATE_LOGARITHM_MAX;
}

/* c tanh(s / c) and its slope, 1 / cosh^2, which does not cancel where tanh is nearly 1. */
SR_EQUATION_FUNCTION double sr_cap_value(double cap, double s) {
    return cap * tanh(s / cap);
}

SR_EQUATION_FUNCTION double sr_cap_slope(double cap, double s) {
    const double e = exp(-2.0 * fabs(s / cap));
    return 4.0 * e / ((1.0 + e) * (1.0 + e));
}

/* The activation of a gate. */
SR_EQUATION_FUNCTION double sr_gate_value(srnn_gate_shape shape, double z) {
    const double sigmoid = sr_sigmoid(z);
    switch (shape) {
    case SRNN_GATE_SHAPE_SIGMOID:
        break;
    case SRNN_GATE_SHAPE_SILU:
        return z * sigmoid;
    case SRNN_GATE_SHAPE_SILU_SQUARE:
        return z * sigmoid * z * sigmoid;
    case SRNN_GATE_SHAPE_IDENTITY:
        return z;
    }
    return sigmoid;
}

SR_EQUATION_FUNCTION double sr_gate_slope(srnn_gate_shape shape, double z) {
    const double sigmoid = sr_sigmoid(z), silu_slope = sigmoid * (1.0 + z * (1.0 - sigmoid));
    switch (shape) {
    case SRNN_GATE_SHAPE_SIGMOID:
        break;
    case SRNN_GATE_SHAPE_SILU:
        return silu_slope;
    case SRNN_GATE_SHAPE_SILU_SQUARE:
        return 2.0 * z * sigmoid * silu_slope;
    case SRNN_GATE_SHAPE_IDENTITY:
        return 1.0;
    }
    return sigmoid * (1.0 - sigmoid);
}

/* sum_{n=0}^{order} s^n / n!. Relative precision is kept for negative s too, where the plain sum
 * cancels: there the series is exp(s) minus its remainder,
 *     T_N(-x) = e^-x + (-1)^N x^(N+1)/(N+1)! F,   F = e^-x sum_k x^k/k! (N+1)/(N+1+k),
 * all of whose terms are positive (Kummer's transformation of 1F1(1; N+2; -x)). Where x is much
 * larger than N the highest power dominates and the plain sum does not cancel. */
SR_EQUATION_FUNCTION double sr_taylor(double s, int order) {
    double x = -s;
    if (x < 1.0 || x > 4.0 * order || order == 0) {
        double sum = 1.0;
        for (int n = order; n > 0; n--)
            sum = 1.0 + s / n * sum;
        return sum;
    }
    double leading = 1.0;
    for (int n = 1; n <= order + 1; n++)
        leading *= x / n;
    double term = exp(-x), remainder = 0.0;
    for (int k = 0; k < 4 * order + 200; k++) {
        double part = term * (order + 1) / (order + 1 + k);
        remainder += part;
        if (k > x && part < 1e-17 * remainder)
            break;
        term *= x / (k + 1);
    }
    return exp(-x) + (order % 2 ? -1.0 : 1.0) * leading * remainder;
}

/* The largest x up to which the order-N series at sign * x is exp to the relative precision. */
SR_EQUATION_FUNCTION double sr_taylor_reach(int order, double sign, double precision) {
    double low = 0.0, high = 700.0;
    for (int step = 0; step < 60; step++) {
        double x = 0.5 * (low + high);
        /* remainder / exp(s), bounded by its first term times e^|s| on the negative side */
        double log_error = (order + 1) * log(x) - lgamma(order + 2.0) + (sign < 0.0 ? x : 0.0);
        if (log_error < log(precision))
            low = x;
        else
            high = x;
    }
    return low;
}

SR_EQUATION_FUNCTION double sr_power(double s, int order) {
    double result = 1.0;
    for (double square = s; order > 0; order >>= 1, square *= square)
        if (order & 1)
            result *= square;
    return result;
}

/* score(s) */
SR_EQUATION_FUNCTION double sr_score_value(srnn_score score, int order, double s) {
    switch (score) {
    case SRNN_SCORE_EXP:
        return exp(s);
    case SRNN_SCORE_LINEAR:
        return s;
    case SRNN_SCORE_TAYLOR:
        return sr_taylor(s, order);
    case SRNN_SCORE_POWER:
        return sr_power(s, order);
    case SRNN_SCORE_SIGMOID:
        return sr_sigmoid(s);
    }
    return NAN;
}

/* d score(s) / ds */
SR_EQUATION_FUNCTION double sr_score_slope(srnn_score score, int order, double s) {
    switch (score) {
    case SRNN_SCORE_EXP:
        return exp(s);
    case SRNN_SCORE_LINEAR:
        return 1.0;
    case SRNN_SCORE_TAYLOR:
        return order > 0 ? sr_taylor(s, order - 1) : 0.0;
    case SRNN_SCORE_POWER:
        return order * sr_power(s, order - 1);
    case SRNN_SCORE_SIGMOID:
        return sr_sigmoid(s) * sr_sigmoid(-s);
    }
    return NAN;
}

/* For scores other than exp: the logarithm of the divisor of a row's weights that keeps them and
 * their sums in the range of a float, from the largest |s| of the row; 0 if none is needed, minus
 * infinity if all weights are zero. Only for attention that is invariant to it
 * (sr_row_scale_invariant). Small high powers underflow as easily as large ones overflow. */
enum { SR_TAME_POWER = 8 };

SR_EQUATION_FUNCTION double sr_score_log_scale(srnn_score score, int order, double largest) {
    const double harmless = 60.0;
    double bound = 0.0;
    switch (score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_LINEAR:
    case SRNN_SCORE_SIGMOID:
        return 0.0;
    case SRNN_SCORE_TAYLOR: /* order + 1 terms, none larger than the last once s > order */
        bound = largest <= order ? largest
                                 : order * log(largest) - lgamma(order + 1.0) + log(order + 1.0);
        break;
    case SRNN_SCORE_POWER:
        bound = order * log(largest);
        if (order > SR_TAME_POWER)
            return bound;
        break;
    }
    return bound > harmless ? bound : 0.0;
}

/* feature(x) for elementwise features. */
SR_EQUATION_FUNCTION double sr_feature_value(srnn_feature feature, double x) {
    switch (feature) {
    case SRNN_FEATURE_RELU:
        return x < 0.0 ? 0.0 : x; /* written so that a NaN stays one */
    case SRNN_FEATURE_ELU1:
        return x > 0.0 ? x + 1.0 : exp(x);
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        break;
    }
    return x;
}

/* d feature(x) / dx for the same. */
SR_EQUATION_FUNCTION double sr_feature_slope(srnn_feature feature, double x) {
    switch (feature) {
    case SRNN_FEATURE_RELU:
        return x > 0.0 ? 1.0 : 0.0;
    case SRNN_FEATURE_ELU1:
        return x > 0.0 ? 1.0 : exp(x);
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        break;
    }
    return 1.0;
}

#endif
