/* schedule.h: learning rate schedules, the same as Hugging Face's. */
#ifndef SR_TRAIN_SCHEDULE_H
#define SR_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum sr_schedule_kind {
    SR_SCHEDULE_LINEAR = 0, /* warm-up, then linear decay to the floor; the reference's */
    SR_SCHEDULE_COSINE,     /* warm-up, then a half cosine down to the floor */
    SR_SCHEDULE_STABLE,     /* warm-up, stable, then linear decay over the last steps */
    SR_SCHEDULE_CONSTANT,   /* warm-up, then stable */
} sr_schedule_kind;

typedef struct sr_schedule {
    sr_schedule_kind kind;
    int64_t steps;  /* end of the decay: step `steps` is the last before the floor */
    int64_t warmup; /* steps of linear warm-up: the first has rate 0, the first after them 1 */
    int64_t decay;  /* STABLE: steps of the decay, which begins after the warm-up */
    double floor;   /* end of the decay, as a fraction of the peak rate */
} sr_schedule;

/* The rate of step 1, 2, .. as a fraction of the peak rate: LINEAR, COSINE and CONSTANT with floor
 * 0 are get_linear_, get_cosine_ and get_constant_schedule_with_warmup at step - 1. */
double sr_schedule_rate(const sr_schedule *schedule, int64_t step);

#endif
