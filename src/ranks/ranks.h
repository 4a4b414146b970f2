/* ranks.h: the processes that share one job: who they are, and what they tell each other.
 *
 * Started by mpirun or srun, the program is one of `count` ranks; otherwise it is alone. Whatever
 * needs an answer from other ranks waits no longer than their patience, and names those that did
 * not give it. */
#ifndef SR_RANKS_RANKS_H
#define SR_RANKS_RANKS_H

#include "base/status.h"
#include "ranks/link.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sr_ranks {
    int rank, count;             /* this one, 0 .. count-1, and how many there are */
    sr_link *link;               /* NULL: it is alone */
    void *module;                /* of the link */
    char (*hosts)[SR_LINK_NAME]; /* (count), owned; NULL: it is alone */
    int *counts, *starts;        /* (count) of sr_ranks_gather, owned */
    double patience;             /* seconds; 0: for ever */
    /* what this rank answers those who call the roll: 1: it waits for its own device, not for
     * them */
    char busy;
    /* a message failed or was not waited for, or this rank cannot go on with what all have begun:
     * others may still wait for it, and all must end */
    bool broken;
} sr_ranks;

/* The ranks as the environment of this process tells: alone, or several by MPI. Fails, naming what
 * is missing, if a launcher started several and they cannot speak with each other. Close in any
 * case. */
srnn_status sr_ranks_open(sr_ranks *ranks);
void sr_ranks_close(sr_ranks *ranks);

/* This rank cannot go on, and the others may not know it yet: whatever waits for them must not be
 * called any more. */
void sr_ranks_break(sr_ranks *ranks);

/* Ends all ranks, whatever they do, with this exit code; of a rank that is alone only itself. */
_Noreturn void sr_ranks_abort(const sr_ranks *ranks, int exit_code);

/* One that is alone. */
sr_ranks *sr_ranks_alone(void);

/* How many threads a rank should use when it was asked for `requested`; 0: its share of the
 * cores. */
int sr_ranks_threads(const sr_ranks *ranks, int requested);

/* Waits until it is done. */
srnn_status sr_ranks_wait(sr_ranks *ranks, sr_link_request *request);

/* Waits until `look` says that something is done that needs the other ranks too, resting no longer
 * than so many seconds between two looks. If it fails, the ranks that do not answer then are named
 * with the failure. */
typedef srnn_status sr_ranks_look(void *context, bool *done);
srnn_status sr_ranks_wait_until(sr_ranks *ranks, sr_ranks_look *look, void *context,
                                double longest_rest);

/* True when it is done. */
srnn_status sr_ranks_test(sr_ranks *ranks, sr_link_request *request, bool *done);

srnn_status sr_ranks_send(sr_ranks *ranks, sr_link_request *request, int to, int tag,
                          const void *data, size_t bytes);
srnn_status sr_ranks_receive(sr_ranks *ranks, sr_link_request *request, int from, int tag,
                             void *data, size_t bytes);

/* The first tag for others: those below are the ranks' own. */
enum { SR_RANKS_TAG = 16 };

/* Rank r's counts[r] bytes at all + starts[r] become the same everywhere; both lists stay as they
 * are until it is done. */
srnn_status sr_ranks_gather_parts(sr_ranks *ranks, sr_link_request *request, void *all,
                                  const int *counts, const int *starts);

/* all (count, bytes), in which each rank has filled its own row, becomes the same everywhere. If it
 * fails, here and in the two below, the memory is the caller's again at once. */
srnn_status sr_ranks_gather(sr_ranks *ranks, void *all, size_t bytes);

/* Bytes of rank 0 for everybody. */
srnn_status sr_ranks_share(sr_ranks *ranks, void *data, size_t bytes);

/* Everybody's verdict: fails on all ranks if `status` is a failure on one of them, with its
 * message; at once if it is one because the ranks do not hear each other any more. */
srnn_status sr_ranks_agree(sr_ranks *ranks, srnn_status status);

#endif
