/* device_shares.h (private): shards a model's parameters among ranks on GPUs and sums their
 * gradients with NCCL, without the host.
 *
 * Each rank accumulates the gradients of its own batches; NCCL sums over ranks. The bits are the
 * same in every run with the same number of ranks, but differ between numbers of ranks. */
#ifndef SR_TRAIN_PARALLEL_DEVICE_SHARES_H
#define SR_TRAIN_PARALLEL_DEVICE_SHARES_H

#include "ops/collective.h"
#include "train/parallel/shares.h"

typedef struct sr_device_shares sr_device_shares;

typedef struct sr_device_shares_setup {
    sr_ranks *ranks;
    bool split;      /* reduce-scatter: each rank has only its part of the sum; else all-reduce */
    bool early;      /* a step is one batch per rank: pieces are sent while its backward runs */
    float *gradient; /* (numbers), device memory */
    sr_collective *context; /* of context ranks, which a step waits for too; NULL: none */
} sr_device_shares_setup;

/* Collective: called by all ranks. The model must outlive it. */
srnn_status sr_device_shares_create(sr_device_shares **shares, const sr_model *model,
                                    const sr_device_shares_setup *setup);
void sr_device_shares_free(sr_device_shares *shares);
size_t sr_device_shares_bytes(const sr_device_shares *shares);

/* As in shares.h; the sum is in device memory. */
const sr_share *sr_device_shares_own(const sr_device_shares *shares, size_t *count);
int64_t sr_device_shares_own_numbers(const sr_device_shares *shares);
const float *sr_device_shares_sum(const sr_device_shares *shares);

/* `begin` before and `wait` after queueing work that needs the other ranks. `wait` waits for the
 * device, and names the rank whose process or GPU hangs when the ranks' patience ends or NCCL
 * reports an error. */
void sr_device_shares_begin(sr_device_shares *shares);
srnn_status sr_device_shares_wait(sr_device_shares *shares);

/* Backward has passed this layer: sends the pieces that are ready, if `early`. */
srnn_status sr_device_shares_ready(sr_device_shares *shares, int layer);

/* This rank's gradient is complete: sends the remaining pieces; later work on the device waits for
 * the sum. Every rank calls it, even without a batch. */
srnn_status sr_device_shares_finish(sr_device_shares *shares);

/* Replaces losses, targets, hits and squares by their sums over all ranks; device memory. If each
 * rank has the whole sum, the squares are not summed again. */
srnn_status sr_device_shares_stats(sr_device_shares *shares, sr_step_stats *stats);

/* All-gather of `array` (numbers), device memory, in which each rank has written its own shards. */
srnn_status sr_device_shares_gather(sr_device_shares *shares, void *array, srnn_dtype dtype);

/* As sr_shares_exchange; device memory. */
srnn_status sr_device_shares_exchange(sr_device_shares *shares, float *array,
                                      const int64_t *bounds);

/* `numbers` (count, even), device memory: every element is taken from the one rank that has it; all
 * other ranks must hold zero bits there. */
srnn_status sr_device_shares_unite(sr_device_shares *shares, float *numbers, size_t count);

#endif
