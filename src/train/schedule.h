/* schedule.h: the learning rate of every step, as Hugging Face's schedules have it. */
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
    int64_t steps;  /* where the decay ends: step `steps` is the last before the floor */
    int64_t warmup; /* steps of straight growth: the first has the rate 0, the one after them 1 */
    int64_t decay;  /* STABLE: steps of the decay, which begins after the warm-up at the earliest */
    double floor;   /* where the decay ends, as a share of the largest rate */
} sr_schedule;

/* The rate of step 1, 2, .. as a share of the largest: LINEAR, COSINE and CONSTANT with floor 0 are
 * get_linear_, get_cosine_ and get_constant_schedule_with_warmup at step - 1. */
double sr_schedule_rate(const sr_schedule *schedule, int64_t step);

#endif
