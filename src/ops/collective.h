/* collective.h: sums and copies between the GPUs of several ranks, by NCCL, which is loaded when it
 * is asked for.
 *
 * Everything is started beside what the device computes: between fork and join, and in the same
 * order on every rank. Calls start work and do not wait for it, so that they can be recorded. */
#ifndef SR_OPS_COLLECTIVE_H
#define SR_OPS_COLLECTIVE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SR_COLLECTIVE_ID = 128 };

typedef struct sr_collective sr_collective;

/* What rank 0 makes and everybody must know to open. */
srnn_status sr_collective_id(char id[SR_COLLECTIVE_ID]);

/* All ranks call it together, each for a GPU of its own. The device must outlive it. */
srnn_status sr_collective_open(sr_collective **collective, srnn_device *device,
                               const char id[SR_COLLECTIVE_ID], int rank, int count);
void sr_collective_close(sr_collective *collective); /* accepts NULL */

/* How far the device has come with what it was given. */
typedef struct sr_collective_state {
    bool done;
    bool waits; /* it has done its own part, and is at a join: other ranks are what it waits for */
} sr_collective_state;

/* Before the device is given a step: it does not wait yet. */
void sr_collective_begin(sr_collective *collective);

/* Fails if NCCL has found that another rank, or the way to it, is gone: nothing more can be started
 * here then. */
srnn_status sr_collective_look(sr_collective *collective, sr_collective_state *state);

/* What follows waits for what the device was given so far. */
srnn_status sr_collective_fork(sr_collective *collective);
/* What the device is given from now on waits for what was started here. */
srnn_status sr_collective_join(sr_collective *collective);

/* An array that is divided among the ranks: `each` numbers for every one, in their order, and
 * `rest` behind them, which are the last one's too. */
typedef struct sr_divided {
    int64_t each, rest;
} sr_divided;

/* own = this rank's part of the sum of everybody's `all`. */
srnn_status sr_collective_scatter(sr_collective *collective, float *own, const float *all,
                                  sr_divided divided);

/* Everybody's own part of `all` becomes known to everybody. */
srnn_status sr_collective_gather(sr_collective *collective, void *all, srnn_dtype dtype,
                                 sr_divided divided);

/* Sums of what everybody has, in place of it. */
srnn_status sr_collective_sum(sr_collective *collective, float *numbers, int64_t count);
srnn_status sr_collective_sum_doubles(sr_collective *collective, double *numbers, int64_t count);
srnn_status sr_collective_sum_integers(sr_collective *collective, int64_t *numbers, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
