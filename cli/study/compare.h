/* compare.h: compared runs, and statistics over runs that differ only in their seed. */
#ifndef SR_CLI_STUDY_COMPARE_H
#define SR_CLI_STUDY_COMPARE_H

#include "cli/line/curve_plot.h"
#include "study/results/record.h"
#include "train/run/settings.h"

/* One run to be compared. */
typedef struct compared {
    const char *folder;
    sr_run_settings settings;
    sr_record record;
    curve curve;
} compared;

/* A mean over seeds and their standard deviation; NAN without a run; the deviation also with
 * one. */
typedef struct seed_mean {
    double mean, deviation;
} seed_mean;

/* Runs whose settings differ only in the seed. */
typedef struct seed_group {
    const compared *first;
    int seeds;
    seed_mean loss, validation, best,
        accuracy; /* training loss at the end; the others are of validation */
} seed_group;

/* Fills groups (capacity `count`), in the order of their first runs; returns their number. */
int compare_groups(seed_group *groups, const compared *runs, int count);

#endif
