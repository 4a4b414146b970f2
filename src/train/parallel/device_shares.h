/* device_shares.h (private): how the numbers of a model are divided among ranks that compute on
 * GPUs, and how their gradients become one sum, there: NCCL adds and copies them without the host.
 *
 * Each rank adds up the gradients of its own batches; the sum over ranks is NCCL's, which gives the
 * same bits run after run with as many ranks, and not those of another number of them. */
#ifndef SR_TRAIN_PARALLEL_DEVICE_SHARES_H
#define SR_TRAIN_PARALLEL_DEVICE_SHARES_H

#include "train/parallel/shares.h"

typedef struct sr_device_shares sr_device_shares;

typedef struct sr_device_shares_setup {
    sr_ranks *ranks;
    bool split;      /* each rank keeps only its part of the sum; else each receives all of it */
    bool early;      /* a step is one batch of each rank: pieces leave while its backward runs */
    float *gradient; /* (numbers), device memory */
} sr_device_shares_setup;

/* All ranks together. The model must outlive it. */
srnn_status sr_device_shares_create(sr_device_shares **shares, const sr_model *model,
                                    const sr_device_shares_setup *setup);
void sr_device_shares_free(sr_device_shares *shares);
size_t sr_device_shares_bytes(const sr_device_shares *shares);

/* As in shares.h; the sum is in device memory. */
const sr_share *sr_device_shares_own(const sr_device_shares *shares, size_t *count);
int64_t sr_device_shares_own_numbers(const sr_device_shares *shares);
const float *sr_device_shares_sum(const sr_device_shares *shares);

/* Before the device is given something that needs the other ranks, and after it was: waits for it,
 * and names the rank whose process or GPU does not go on, when the ranks' patience ends or NCCL has
 * noticed. */
void sr_device_shares_begin(sr_device_shares *shares);
srnn_status sr_device_shares_wait(sr_device_shares *shares);

/* Backward has passed this layer. Pieces that are ready leave, where that may be early. */
srnn_status sr_device_shares_ready(sr_device_shares *shares, int layer);

/* This rank's gradient is whole: what has not left leaves, and what the device does next waits for
 * the sum. On every rank, also on those without a batch. */
srnn_status sr_device_shares_finish(sr_device_shares *shares);

/* Losses, targets, hits and squares of all ranks, in place of this one's; device memory. Where each
 * rank has the whole sum, the squares are known already. */
srnn_status sr_device_shares_stats(sr_device_shares *shares, sr_step_stats *stats);

/* array (numbers), device memory, of which each rank has written its own, becomes the same
 * everywhere. */
srnn_status sr_device_shares_gather(sr_device_shares *shares, void *array, srnn_dtype dtype);

/* numbers (count, even), device memory: every number becomes what one rank has there, all others
 * having zero bits. */
srnn_status sr_device_shares_unite(sr_device_shares *shares, float *numbers, size_t count);

#endif
