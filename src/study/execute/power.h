/* power.h: the number of seeds a study needs to detect a difference, from the scatter of the runs
 * in its folder: those of its first seeds, or else those of its tuning. */
#ifndef SR_STUDY_EXECUTE_POWER_H
#define SR_STUDY_EXECUTE_POWER_H

#include "study/plan/study.h"

/* One variant against the baseline, in one task, size and learning rate. */
typedef struct sr_power_row {
    size_t task, size, variant;
    double learning_rate; /* NaN: tuned */
    size_t pairs;         /* pairs of runs with the same seed */
    double deviation;     /* standard deviation of their differences, of the measure `of` */
    double degrees;       /* degrees of freedom of the deviation */
    sr_measure of;
    double seeds;      /* needed */
    double seeds_most; /* with the largest deviation consistent with these few pairs */
} sr_power_row;

/* *rows (*count), free() them. Fails, saying what to run first, if there is no scatter yet.
 * Read-only. */
srnn_status sr_study_power(sr_power_row **rows, size_t *count, const sr_study *study,
                           const char *folder, double difference);

#endif
