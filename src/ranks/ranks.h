/* ranks.h: the processes that share one job, and their communication.
 *
 * Started by mpirun or srun, the program is one of `count` ranks; otherwise it is alone. Waiting
 * for other ranks is limited by their patience; ranks that do not answer are named. */
#ifndef SR_RANKS_RANKS_H
#define SR_RANKS_RANKS_H

#include "base/status.h"
#include "ranks/link.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sr_ranks {
    int rank, count;             /* this one, 0 .. count-1, and their number */
    sr_link *link;               /* NULL: a single process */
    void *module;                /* of the link */
    char (*hosts)[SR_LINK_NAME]; /* (count), owned; NULL: a single process */
    int *counts, *starts;        /* (count) for sr_ranks_gather, owned */
    double patience;             /* seconds; 0: for ever */
    /* this rank's answer to a poll. 1: it waits for its own device, not for other ranks */
    char busy;
    /* communication failed or timed out, or this rank cannot complete a collective operation:
     * others may still wait for it, and the job must abort */
    bool broken;
} sr_ranks;

/* The ranks of this job, from the environment of this process: one, or several over MPI. Fails,
 * naming what is missing, if a launcher started several that cannot communicate. Call
 * sr_ranks_close in any case. */
srnn_status sr_ranks_open(sr_ranks *ranks);
void sr_ranks_close(sr_ranks *ranks);

/* This rank failed and the others may not have noticed yet: no function that waits for them may be
 * called any more. */
void sr_ranks_break(sr_ranks *ranks);

/* Ends all ranks immediately with this exit code; a single process ends only itself. */
_Noreturn void sr_ranks_abort(const sr_ranks *ranks, int exit_code);

/* A single process. */
sr_ranks *sr_ranks_alone(void);

/* The number of threads of a rank that was given `requested`; 0: its share of the cores. */
int sr_ranks_threads(const sr_ranks *ranks, int requested);

/* Waits until it is done. */
srnn_status sr_ranks_wait(sr_ranks *ranks, sr_link_request *request);

/* Polls `look` until it reports that an operation involving other ranks is done, sleeping at most
 * `longest_rest` seconds in between. On failure, the error names the ranks that do not answer. */
typedef srnn_status sr_ranks_look(void *context, bool *done);
srnn_status sr_ranks_wait_until(sr_ranks *ranks, sr_ranks_look *look, void *context,
                                double longest_rest);

/* True when it is done. */
srnn_status sr_ranks_test(sr_ranks *ranks, sr_link_request *request, bool *done);

srnn_status sr_ranks_send(sr_ranks *ranks, sr_link_request *request, int to, int tag,
                          const void *data, size_t bytes);
srnn_status sr_ranks_receive(sr_ranks *ranks, sr_link_request *request, int from, int tag,
                             void *data, size_t bytes);

/* The first tag for other uses; lower ones are reserved. */
enum { SR_RANKS_TAG = 16 };

/* All-gather: rank r contributes counts[r] bytes at all + starts[r]; both arrays must stay
 * unchanged until it is done. */
srnn_status sr_ranks_gather_parts(sr_ranks *ranks, sr_link_request *request, void *all,
                                  const int *counts, const int *starts);

/* All-gather of all (count, bytes), in which each rank has filled its own row. On failure, here and
 * in the next two functions, the buffer is not used any longer. */
srnn_status sr_ranks_gather(sr_ranks *ranks, void *all, size_t bytes);

/* Broadcast of rank 0's bytes. */
srnn_status sr_ranks_share(sr_ranks *ranks, void *data, size_t bytes);

/* Fails on all ranks if `status` is a failure on one of them, with its message; returns at once if
 * communication between ranks is broken. */
srnn_status sr_ranks_agree(sr_ranks *ranks, srnn_status status);

#endif
