/* power.h: how many seeds a comparison needs, from how much its differences scatter. */
#ifndef SR_STUDY_RESULTS_POWER_H
#define SR_STUDY_RESULTS_POWER_H

/* How often a difference that is there is to be seen. */
#define SR_POWER 0.8

/* The fewest seeds, two or more, with which the interval of a true difference of this size excludes
 * zero that often, where differences of one seed have this standard deviation. */
double sr_seeds_needed(double deviation, double difference, double confidence, double power);

/* A standard deviation that the true one exceeds in one case of five, given one from so many
 * degrees of freedom. */
double sr_deviation_most(double deviation, double degrees);

#endif
