/* clock.h: how much time has passed. */
#ifndef SR_BASE_CLOCK_H
#define SR_BASE_CLOCK_H

/* Seconds of a clock that only goes forward; only differences mean anything. */
double sr_clock_seconds(void);

#endif
