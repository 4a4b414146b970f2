/* shares.h: how the numbers of a model are divided among ranks, and how the gradients of a step's
 * batches become one sum.
 *
 * Batch j of a step is computed by rank j modulo the number of ranks, and its gradient g_j comes
 * from zero. The sum is ((g_0 + g_1) + g_2) + .. for every number, whoever computed them: the same
 * bits with any number of ranks. Numbers travel in pieces, the end of the arena first, because the
 * last layer's gradient is ready first; each piece is divided among the ranks in units, and a rank
 * sums its part. */
#ifndef SR_TRAIN_PARALLEL_SHARES_H
#define SR_TRAIN_PARALLEL_SHARES_H

#include "model/model.h"
#include "ranks/ranks.h"

/* What two shares have in common, by its places in their arrays: `first` in a's, `at` in b's. A
 * count of 0: nothing. */
sr_share sr_share_common(const sr_share *a, const sr_share *b);

typedef struct sr_shares sr_shares;

typedef struct sr_shares_setup {
    sr_ranks *ranks;
    bool split; /* each rank keeps only its part of the sum; else each receives all of it */
    const float *gradient; /* (numbers): of the batch that this rank computes, host memory */
} sr_shares_setup;

/* Takes all memory. The model must outlive it. */
srnn_status sr_shares_create(sr_shares **shares, const sr_model *model,
                             const sr_shares_setup *setup);
void sr_shares_free(sr_shares *shares);
size_t sr_shares_bytes(const sr_shares *shares);

/* What this rank keeps: of the sum, and of the moments; `at` is the place in its own arrays. */
const sr_share *sr_shares_own(const sr_shares *shares, size_t *count);
int64_t sr_shares_own_numbers(const sr_shares *shares);
const float *sr_shares_sum(const sr_shares *shares); /* (own numbers) */

/* A round: ranks 0 .. active-1 compute a batch each. The first one begins the sum anew, the last
 * one ends it. Ready is called while backward runs, as sr_pass_setup says, and only on active
 * ranks. When finish returns, the gradient may be written again. */
srnn_status sr_shares_begin(sr_shares *shares, int active, bool first, bool last);
srnn_status sr_shares_ready(void *shares, int layer);
srnn_status sr_shares_finish(sr_shares *shares);

/* The squares of the whole sum, added in the order of the arena. */
srnn_status sr_shares_squares(sr_shares *shares, double *squares);

/* weights (numbers), in which each rank has changed its own, become the same everywhere. Nothing to
 * do where each rank keeps all. */
srnn_status sr_shares_spread(sr_shares *shares, float *weights);

#endif
