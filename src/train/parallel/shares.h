/* shares.h: shards a model's parameters among ranks and sums the gradients of a step's batches.
 *
 * Batch j of a step is computed by rank j modulo the number of ranks, and its gradient g_j starts
 * from zero. Every element of the sum is ((g_0 + g_1) + g_2) + .., whichever rank computed the
 * terms: the same bits with any number of ranks. Ranks exchange pieces, the end of the arena first,
 * because the last layer's gradient is ready first. Each piece is divided among the ranks in units,
 * and each rank sums its part. */
#ifndef SR_TRAIN_PARALLEL_SHARES_H
#define SR_TRAIN_PARALLEL_SHARES_H

#include "model/model.h"
#include "ranks/ranks.h"

/* The intersection of two shares: `first` is its offset in a's array, `at` in b's. Count 0: they do
 * not overlap. */
sr_share sr_share_common(const sr_share *a, const sr_share *b);

typedef struct sr_shares sr_shares;

typedef struct sr_shares_setup {
    sr_ranks *ranks;
    bool split; /* each rank has only its part of the sum; else each receives all of it */
    const float *gradient; /* (numbers): of the batch that this rank computes, host memory */
} sr_shares_setup;

/* Allocates all memory. The model must outlive it. */
srnn_status sr_shares_create(sr_shares **shares, const sr_model *model,
                             const sr_shares_setup *setup);
void sr_shares_free(sr_shares *shares);
size_t sr_shares_bytes(const sr_shares *shares);

/* This rank's shards, of the sum and of the moments; `at` is the offset in its own arrays. */
const sr_share *sr_shares_own(const sr_shares *shares, size_t *count);
int64_t sr_shares_own_numbers(const sr_shares *shares);
const float *sr_shares_sum(const sr_shares *shares); /* (own numbers) */

/* A round: ranks 0 .. active-1 compute one batch each. `first` starts a new sum, `last` completes
 * it. Ready is called while backward runs, as sr_pass_setup says, and only on active ranks. When
 * finish returns, the gradient buffer may be overwritten. */
srnn_status sr_shares_begin(sr_shares *shares, int active, bool first, bool last);
srnn_status sr_shares_ready(void *shares, int layer);
srnn_status sr_shares_finish(sr_shares *shares);

/* The sum of squares of the whole gradient, added in the order of the arena. */
srnn_status sr_shares_squares(sr_shares *shares, double *squares);

/* All-gather of an array (numbers), in which each rank has written its own shards, such as the
 * weights. No-op if each rank has all. */
srnn_status sr_shares_spread(sr_shares *shares, float *array);

/* All-gather of an array of which rank r has computed [bounds[r], bounds[r + 1]); bounds
 * (ranks + 1). */
srnn_status sr_shares_exchange(sr_shares *shares, float *array, const int64_t *bounds);

#endif
