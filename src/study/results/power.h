/* power.h: the number of seeds a comparison needs, from the scatter of its differences. */
#ifndef SR_STUDY_RESULTS_POWER_H
#define SR_STUDY_RESULTS_POWER_H

/* The probability with which a true difference should be detected. */
#define SR_POWER 0.8

/* The smallest number of seeds, two or more, with which the interval of a true difference of this
 * size excludes zero with that probability, if differences of single seeds have this standard
 * deviation. */
double sr_seeds_needed(double deviation, double difference, double confidence, double power);

/* An upper bound that the true standard deviation exceeds in one case of five, given an estimate
 * with these degrees of freedom. */
double sr_deviation_most(double deviation, double degrees);

#endif
