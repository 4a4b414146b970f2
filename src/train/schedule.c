/* schedule.c: the learning rate schedules. */
#include "train/schedule.h"

#include <math.h>

/* Progress of a step from `first` to `last`, 0 to 1. */
static double progress(int64_t step, int64_t first, int64_t last) {
    if (step >= last)
        return 1.0;
    return step <= first ? 0.0 : (double)(step - first) / (double)(last - first);
}

/* Hugging Face counts completed steps: step 1 has the rate of step 0 there. */
double sr_schedule_rate(const sr_schedule *s, int64_t step) {
    const int64_t done = step - 1;
    const int64_t decay = s->decay < s->steps - s->warmup ? s->decay : s->steps - s->warmup;
    double left = 1.0;
    if (done < s->warmup)
        return (double)done / (double)s->warmup;
    switch (s->kind) {
    case SR_SCHEDULE_LINEAR:
        left = 1.0 - progress(done, s->warmup, s->steps);
        break;
    case SR_SCHEDULE_COSINE:
        left = 0.5 + 0.5 * cos(acos(-1.0) * progress(done, s->warmup, s->steps));
        break;
    case SR_SCHEDULE_STABLE:
        left = 1.0 - progress(done, s->steps - decay, s->steps);
        break;
    case SR_SCHEDULE_CONSTANT:
        break;
    }
    return s->floor + (1.0 - s->floor) * left;
}
