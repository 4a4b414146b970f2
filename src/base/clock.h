/* clock.h: monotonic time. */
#ifndef SR_BASE_CLOCK_H
#define SR_BASE_CLOCK_H

/* Seconds of a monotonic clock; only differences are meaningful. */
double sr_clock_seconds(void);

#endif
