/* moderated.h: intervals of the differences of many variants, each variance shrunk towards what the
 * others have in common. docs/STUDY.md says what they assume and how often they hold. */
#ifndef SR_STUDY_MODERATED_H
#define SR_STUDY_MODERATED_H

#include "study/statistics.h"

/* Differences that scatter less than this are taken to scatter by this: tables print four decimals,
 * and a variance of zero (all seeds at the ceiling of a task) says nothing. */
#define SR_RESOLUTION 1e-4

/* What the variances of several samples have in common: each is drawn around `variance`, which is
 * worth as much as `degrees` more observations of it. */
typedef struct sr_prior {
    double degrees; /* 0: nothing; INFINITY: all samples have one variance */
    double variance;
    double most_degrees; /* that all samples together are worth */
} sr_prior;

/* The empirical-Bayes prior of Smyth (2004), "Linear models and empirical Bayes methods", 6.2: the
 * moments of log variances. Samples with degrees < 1 are left out. */
sr_prior sr_prior_of(const double *variances, const double *degrees, size_t count);

/* The mean of differences, with the variance of these and of the prior. */
sr_interval sr_interval_moderated(const double *differences, size_t count, const sr_prior *prior,
                                  double confidence);

double sr_digamma(double x);          /* x > 0 */
double sr_trigamma(double x);         /* x > 0 */
double sr_trigamma_inverse(double y); /* y > 0 */

#endif
