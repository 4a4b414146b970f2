/* shrinkage.h (private): intervals of the differences of many variants, each variance shrunk
 * towards what the others have in common. docs/STUDY.md says what they assume and how often they
 * hold. */
#ifndef SR_STUDY_RESULTS_SHRINKAGE_H
#define SR_STUDY_RESULTS_SHRINKAGE_H

#include "study/results/statistics.h"

/* Differences that scatter less than this are taken to scatter by this: tables print four decimals,
 * and a variance of zero (all seeds at the ceiling of a task) says nothing. */
#define SR_RESOLUTION 1e-4

/* What the variances of a cell's variants have in common: each is drawn around `variance`, which is
 * worth as much as `degrees` more observations of it. */
typedef struct sr_prior {
    double degrees; /* 0: nothing in common */
    double variance;
} sr_prior;

/* From differences (variants, seeds) to the baseline; NaN where there is no pair. The moments of
 * the log variances say it (Smyth 2004, "Linear models and empirical Bayes methods for assessing
 * differential expression", 6.2); degrees are no more than all differences are worth, which share
 * the noise of the baseline. */
sr_prior sr_prior_of(const double *differences, size_t variants, size_t seeds);

/* The mean of differences. The prior counts for less the less likely it makes a variance as large
 * as theirs: a variant that scatters more than the others is judged by itself (as Phipson et al.
 * 2016 protect against hypervariable genes). */
sr_interval sr_interval_shrunk(const double *differences, size_t count, const sr_prior *prior,
                               double confidence);

double sr_digamma(double x);          /* x > 0 */
double sr_trigamma(double x);         /* x > 0 */
double sr_trigamma_inverse(double y); /* y > 0 */

#endif
