/* schedule.h: the learning rate of every step. */
#ifndef SR_TRAIN_SCHEDULE_H
#define SR_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum sr_schedule_kind {
    SR_SCHEDULE_LINEAR = 0, /* warm-up, then straight down to the floor: the reference */
    SR_SCHEDULE_COSINE,     /* warm-up, then half a cosine down to the floor */
    SR_SCHEDULE_STABLE,     /* warm-up, stable, then straight down over the last steps */
    SR_SCHEDULE_CONSTANT,   /* warm-up, then stable */
} sr_schedule_kind;

typedef struct sr_schedule {
    sr_schedule_kind kind;
    int64_t steps;  /* where the decay ends */
    int64_t warmup; /* steps of straight growth from 0 */
    int64_t decay;  /* STABLE: steps of the decay */
    double floor;   /* the last rate as a share of the largest */
} sr_schedule;

/* The rate of step 1, 2, .. as a share of the largest. */
double sr_schedule_rate(const sr_schedule *schedule, int64_t step);

#endif
