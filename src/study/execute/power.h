/* power.h: how many seeds a study needs to see a difference, from the scatter of the runs that its
 * folder has: those of its first seeds, or else those of its tuning. */
#ifndef SR_STUDY_EXECUTE_POWER_H
#define SR_STUDY_EXECUTE_POWER_H

#include "study/plan/study.h"

/* One variant against the baseline, in one task, size and learning rate. */
typedef struct sr_power_row {
    size_t task, size, variant;
    double learning_rate; /* NaN: tuned */
    size_t pairs;         /* of runs of the same seed */
    double deviation;     /* of their differences, in what `of` says */
    double degrees;       /* of freedom that it has */
    sr_measure of;
    double seeds;      /* needed */
    double seeds_most; /* if the deviation is as large as these few pairs allow */
} sr_power_row;

/* *rows (*count), free() them. Fails, saying what to run first, if nothing scatters yet. Writes
 * nothing. */
srnn_status sr_study_power(sr_power_row **rows, size_t *count, const sr_study *study,
                           const char *folder, double difference);

#endif
