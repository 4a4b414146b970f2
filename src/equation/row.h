/* row.h: the divisor and the gates of one row, in double, for the C and the CUDA compiler. */
#ifndef SR_EQUATION_ROW_H
#define SR_EQUATION_ROW_H

#include "equation/score.h"

/* The scalars of a row in addition to its numerator. */
typedef struct sr_query_row {
    double row_sum;  /* sum_j w_ij */
    double length;   /* keys that it sees */
    double gate;     /* its output gate, before the activation */
    double gate_sum; /* sum of exp(output gate) over the positions up to this one */
    double least;    /* the smallest normal number of row_sum's type */
    double sink;     /* to be added to the row sum (sr_row_sink) */
} sr_query_row;

/* The sink of a row whose weights were divided by e^maximum; `logit`: 0 or the learned number. The
 * exponent is limited to the range of e^x: beyond it the rest of the row vanishes. */
SR_EQUATION_FUNCTION double sr_row_sink(const srnn_attention *a, double logit, double maximum) {
    const double most = 700.0, x = logit - (maximum == -INFINITY ? 0.0 : maximum);
    return a->sink == SRNN_SINK_NONE ? 0.0 : exp(x > most ? most : x);
}

/* The divisor of the numerator. Infinity where it would be zero or too small to have an inverse: a
 * row whose weights are all zero, such as that of a zero query under a power, becomes a row of
 * zeros and passes no gradient. */
SR_EQUATION_FUNCTION double sr_row_normaliser(const srnn_attention *a, const sr_query_row *row) {
    const double whole = row->row_sum + row->sink + a->epsilon;
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        return fabs(whole) < row->least ? (double)INFINITY : whole;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return (row->row_sum < 1.0 ? 1.0 : row->row_sum) + a->epsilon;
    case SRNN_NORMALISER_ROW_LENGTH:
        return row->length + a->epsilon;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return (row->gate_sum < 1.0 ? 1.0 : row->gate_sum) + a->epsilon;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    return 1.0 + a->epsilon;
}

SR_EQUATION_FUNCTION double sr_row_output_gate(const srnn_attention *a, const sr_query_row *row) {
    switch (a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return sr_gate_value(a->gate_shape, row->gate);
    case SRNN_GATE_INVERSE_EXP:
        return exp(-row->gate);
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return 1.0 / row->gate_sum;
    }
    return 1.0;
}

/* The factors of a row before and after the norm. */
typedef struct sr_row_factors {
    double normaliser, gate, post;
} sr_row_factors;

SR_EQUATION_FUNCTION sr_row_factors sr_row_factors_of(const srnn_attention *a,
                                                      const sr_query_row *row) {
    sr_row_factors factors;
    factors.normaliser = sr_row_normaliser(a, row);
    factors.gate = sr_row_output_gate(a, row);
    factors.post = a->post_gate ? sr_gate_value(a->gate_shape, row->gate) : 1.0;
    return factors;
}

#endif
