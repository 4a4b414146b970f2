/* head.h (private): errors of one head's weights and outputs when the series of exp is truncated.
 *
 * If the layer divides by the sum of its weights, or by the length of their weighted sum, a
 * constant added to a row of logits changes nothing (sr_row_scale_invariant), so exp may be
 * expanded about any centre: with T_N the series up to order N, weights are T_N(s_ij - c) / sum_j
 * T_N(s_ij - c). A centre needs no additional state, since
 *     T_N(s - c) = sum_{n=0}^{N} s^n/n! T_{N-n}(-c):
 * it only changes the factor with which a query reads the state of each order. It may differ from
 * row to row if the query can compute it: the mean of a row is scale * q_i . (mean of k), which
 * needs D running sums. The middle of a row bounds what centres can save: T_N is accurate from
 * about -N to N, so N is at least half the range of the logits, but no finite state has the
 * extremes of a row.
 *
 * Otherwise zero is the only centre, and weights are compared after the layer's own division. A
 * clamp is not a power series: the truncated layer has none. */
#ifndef SR_ANALYSIS_TRUNCATED_HEAD_H
#define SR_ANALYSIS_TRUNCATED_HEAD_H

#include "analysis/truncated/row_equation.h"

typedef enum sr_centre {
    SR_CENTRE_ZERO = 0,    /* available to every state */
    SR_CENTRE_HEAD_MEAN,   /* mean of all logits of the head */
    SR_CENTRE_HEAD_MIDDLE, /* between its smallest and its largest logit */
    SR_CENTRE_ROW_MEAN,    /* mean of the row's logits */
    SR_CENTRE_ROW_MIDDLE,  /* between the row's smallest and largest: a bound, not implementable */
    SR_CENTRES,
} sr_centre;

/* "zero", "head mean", "head middle", ... Static text. */
const char *sr_centre_name(sr_centre centre);

/* The orders that are tried: 1, then even ones, which are positive everywhere: all to 32, every
 * second to 64, every fourth beyond. */
enum { SR_CUTS = 38 };
int sr_cut_order(int cut);
int sr_cut_count(int most_order);

/* Sums of squares over rows; { 0 } is empty. */
typedef struct sr_truncation {
    double weights[SR_CENTRES][SR_CUTS], outputs[SR_CENTRES][SR_CUTS]; /* of differences */
    double weights_size, outputs_size; /* of the untruncated layer */
} sr_truncation;

typedef struct sr_truncation_row {
    sr_row_facts facts;
    const double *s; /* (facts.count) logits */
    const double *v; /* (facts.count, D) values */
    double head_mean, head_middle;
} sr_truncation_row;

/* The centres that are tried in a layer: all, or zero alone (the first). */
int sr_centre_count(const srnn_attention *attention);

/* Adds a row with these centres and all cuts up to most_order. scratch:
 * sr_truncation_scratch(longest count, D, most_order) numbers. */
void sr_truncation_add(sr_truncation *sums, const sr_truncation_row *row, int most_order,
                       double *scratch);
size_t sr_truncation_scratch(int count, int D, int most_order);

/* out (D) = the row's output truncated at this order about this centre; not finite on overflow. The
 * same scratch. */
void sr_truncation_output(double *out, const sr_truncation_row *row, sr_centre centre, int order,
                          double *scratch);

/* The relative error sqrt(differences / size); 0 / 0 is 0. */
double sr_truncation_error(double differences, double size);

/* The first order from which on all errors (cuts) stay within the tolerance; -1: none up to the
 * last. */
int sr_order_needed(const double *errors, int cuts, double tolerance);

#endif
