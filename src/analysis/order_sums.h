/* order_sums.h (private): statistics of one head's logits, accumulated row by row: their
 * distribution, and the size of every order of the series of exp.
 *
 * Order n of exp(x) is x^n / n!. Its size over many pairs (query, key) can be defined in several
 * ways:
 *     log mean           log of the mean of |x|^n / n!        dominated by the largest terms
 *     mean log           mean of n log|x| - log n!            for a typical pair
 * each over all pairs equally, or with every pair weighted by its normalised attention weight (each
 * row counts 1; a clamp limits the weights, not the powers). Powers are summed after division by a
 * power of two, so that they neither overflow nor round unnecessarily; logarithms are taken once,
 * at the end. */
#ifndef SR_ANALYSIS_ORDER_SUMS_H
#define SR_ANALYSIS_ORDER_SUMS_H

#include "analysis/logit_histogram.h"
#include "equation/facts.h"

enum { SR_ORDERS = SR_TAYLOR_ORDER_MAX + 1 };

/* { 0 } is empty. */
typedef struct sr_order_sums {
    int64_t rows, pairs;
    double least, most;
    double mean, squares; /* of all logits; sum of squared deviations */
    sr_histogram histogram;

    int exponent;               /* |x| <= 2^exponent for every x so far */
    double plain[SR_ORDERS];    /* sum of (|x| / 2^exponent)^n, times a constant */
    double weighted[SR_ORDERS]; /* the same weighted by attention */
    double logs, weighted_logs; /* sums of log|x| */
} sr_order_sums;

/* Adds a row of logits x (count) whose weights are exp(min(x, clamp)), clamp 0: none. `scratch` has
 * sr_order_sums_scratch(count) elements. Adds orders 1 .. orders; pass the same `orders` for all
 * rows. */
void sr_order_sums_add(sr_order_sums *sums, const double *x, int count, double clamp, int orders,
                       double *scratch);
int sr_order_sums_scratch(int count);

double sr_order_sums_deviation(const sr_order_sums *sums);

/* The definitions of size. */
typedef enum sr_order_size {
    SR_SIZE_LOG_MEAN = 0,
    SR_SIZE_LOG_MEAN_WEIGHTED,
    SR_SIZE_MEAN_LOG,
    SR_SIZE_MEAN_LOG_WEIGHTED,
    SR_ORDER_SIZES,
} sr_order_size;

/* log of the size of order n; -inf if it is zero. */
double sr_order_size_of(const sr_order_sums *sums, sr_order_size size, int n);

/* The reference's definition of size, not its log: the mean over all queries times all keys, with
 * masked pairs counting as zero; order 1 keeps its sign; order 0 is 1. */
double sr_order_size_reference(const sr_order_sums *sums, int n, int64_t square_pairs);

/* The order with the largest size among 0 .. orders. */
int sr_order_dominant(const sr_order_sums *sums, sr_order_size size, int orders);

#endif
