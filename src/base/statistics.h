/* statistics.h: means, spreads and confidence intervals of differences.
 *
 * Intervals are Student's, two-sided. docs/RECORDS.md has their assumptions. */
#ifndef SR_BASE_STATISTICS_H
#define SR_BASE_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

#define SR_CONFIDENCE 0.95

/* NaN for none. */
double sr_mean(const double *values, size_t count);

/* Of a sample: divided by count - 1. NaN for fewer than two. */
double sr_standard_deviation(const double *values, size_t count);

/* The median; reorders the values. NaN for none. */
double sr_median(double *values, size_t count);

/* t such that Student's distribution has probability `confidence` between -t and t. */
double sr_student_t(double degrees, double confidence);

/* The probability that Fisher's ratio of two variances with these degrees of freedom exceeds
 * `ratio`; a million degrees stand for a known variance. */
double sr_fisher_above(double ratio, double upper_degrees, double lower_degrees);

typedef struct sr_interval {
    double mean, low, high;
    double degrees; /* 0: there is no interval, low and high are NaN */
} sr_interval;

/* True if the interval excludes 0. */
bool sr_interval_decides(const sr_interval *interval);

/* The mean of differences d_s. */
sr_interval sr_interval_of(const double *differences, size_t count, double confidence);

/* The mean of `count` differences whose standard deviation was estimated with `degrees` degrees of
 * freedom. */
sr_interval sr_interval_around(double mean, double deviation, size_t count, double degrees,
                               double confidence);

#endif
