/* row_equation.h (private): a layer's output from one row's weights, in double: the equation of
 * softrnn.h from the weights on. */
#ifndef SR_ANALYSIS_TRUNCATED_ROW_EQUATION_H
#define SR_ANALYSIS_TRUNCATED_ROW_EQUATION_H

#include "equation/epilogue.h"

/* A query of a layer, besides its logits and values. */
typedef struct sr_row_facts {
    const srnn_attention *attention;
    int count, D;       /* keys that the query sees; width of a value */
    double gate;        /* its output gate, before any function; 0 if there is none */
    double gate_sum;    /* sum of exp(output gate) over the positions up to here */
    const float *gates; /* (D), the output gate where it has one number per channel; or NULL */
    const float *norm_weight, *norm_bias; /* (D), or NULL */
} sr_row_facts;

/* The denominator of the row's weights, given their sum. */
double sr_row_denominator(const sr_row_facts *facts, double row_sum);

/* o (D) holds sum_j w_j v_j and turns into the row's output. */
void sr_row_finish(double *o, const sr_row_facts *facts, double row_sum);

/* w of a logit, as in the layer: exp(min(s, clamp)), divided by exp(`shift`). */
double sr_row_weight(const srnn_attention *attention, double s, double shift);

#endif
