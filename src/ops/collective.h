/* collective.h: collectives between the GPUs of several ranks, by NCCL, which is loaded on first
 * use.
 *
 * Collectives run concurrently with the device's own work: between fork and join, and in the same
 * order on every rank. Calls are asynchronous, so that they can be captured in a graph. */
#ifndef SR_OPS_COLLECTIVE_H
#define SR_OPS_COLLECTIVE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SR_COLLECTIVE_ID = 128 };

typedef struct sr_collective sr_collective;

/* The identifier that rank 0 creates; every rank needs it to open. */
srnn_status sr_collective_id(char id[SR_COLLECTIVE_ID]);

/* Collective call, each rank with a different GPU. The device must outlive it. */
srnn_status sr_collective_open(sr_collective **collective, srnn_device *device,
                               const char id[SR_COLLECTIVE_ID], int rank, int count);
void sr_collective_close(sr_collective *collective); /* accepts NULL */

/* Progress of the device. */
typedef struct sr_collective_state {
    bool done;
    bool waits; /* it is at a join, waiting for other ranks */
} sr_collective_state;

/* Called before a step is launched: resets the progress. */
void sr_collective_begin(sr_collective *collective);

/* Fails if NCCL has detected that another rank, or the connection to it, is gone: no more
 * collectives can be started then. */
srnn_status sr_collective_look(sr_collective *collective, sr_collective_state *state);

/* Collectives that follow wait for all work launched on the device so far. */
srnn_status sr_collective_fork(sr_collective *collective);
/* Work launched on the device from now on waits for the collectives started so far. */
srnn_status sr_collective_join(sr_collective *collective);

/* An array sharded over the ranks: `each` numbers per rank, in order of rank, then `rest`, which
 * also belong to the last rank. */
typedef struct sr_divided {
    int64_t each, rest;
} sr_divided;

/* Reduce-scatter: own = this rank's shard of the sum of all ranks' `all`. */
srnn_status sr_collective_scatter(sr_collective *collective, float *own, const float *all,
                                  sr_divided divided);

/* All-gather: every rank's shard of `all` is copied to all ranks. */
srnn_status sr_collective_gather(sr_collective *collective, void *all, srnn_dtype dtype,
                                 sr_divided divided);

/* All-gather of shards of any size: rank r has [bounds[r], bounds[r + 1]) of `all`. */
srnn_status sr_collective_exchange(sr_collective *collective, float *all, const int64_t *bounds);

/* All-reduce: sums over the ranks, in place. */
srnn_status sr_collective_sum(sr_collective *collective, float *numbers, int64_t count);
srnn_status sr_collective_sum_doubles(sr_collective *collective, double *numbers, int64_t count);
srnn_status sr_collective_sum_integers(sr_collective *collective, int64_t *numbers, int64_t count);

/* Messages between two ranks, which wait for each other; those of one rank to another are received
 * in the order in which they were sent. */
srnn_status sr_collective_send(sr_collective *collective, const void *data, size_t bytes, int to);
srnn_status sr_collective_receive(sr_collective *collective, void *data, size_t bytes, int from);
/* Messages between begin and end are exchanged at the same time. */
srnn_status sr_collective_begin_messages(sr_collective *collective);
srnn_status sr_collective_end_messages(sr_collective *collective);

#ifdef __cplusplus
}
#endif

#endif
