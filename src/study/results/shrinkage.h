/* shrinkage.h (private): confidence intervals of the differences of many variants, with each
 * variance shrunk towards a common prior. docs/STUDY.md has the assumptions and the measured
 * coverage. */
#ifndef SR_STUDY_RESULTS_SHRINKAGE_H
#define SR_STUDY_RESULTS_SHRINKAGE_H

#include "base/statistics.h"

/* Lower bound of the standard deviation of differences: tables print four decimals, and a variance
 * of zero (all seeds at the ceiling of a task) carries no information. */
#define SR_RESOLUTION 1e-4

/* The prior of the variances of a cell's variants: each is drawn around `variance`, which is worth
 * `degrees` additional observations. */
typedef struct sr_prior {
    double degrees; /* 0: no prior */
    double variance;
} sr_prior;

/* From differences (variants, seeds) to the baseline; NaN where there is no pair. Fitted by the
 * moments of the log variances (Smyth 2004, "Linear models and empirical Bayes methods for
 * assessing differential expression", 6.2); `degrees` is limited to the effective number of
 * differences, which share the noise of the baseline. */
sr_prior sr_prior_of(const double *differences, size_t variants, size_t seeds);

/* The mean of differences. The prior's weight falls with the probability of a variance as large as
 * theirs: a variant that scatters more than the others is judged by its own variance (as Phipson et
 * al. 2016 protect against hypervariable genes). */
sr_interval sr_interval_shrunk(const double *differences, size_t count, const sr_prior *prior,
                               double confidence);

double sr_digamma(double x);          /* x > 0 */
double sr_trigamma(double x);         /* x > 0 */
double sr_trigamma_inverse(double y); /* y > 0 */

#endif
