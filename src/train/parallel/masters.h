/* masters.h (private): float master weights of a model that computes in a narrower type, sharded
 * among ranks on GPUs: each rank has those that it updates.
 *
 * To be read or written as a whole they are gathered into the gradient's buffer, which is free
 * between steps. */
#ifndef SR_TRAIN_PARALLEL_MASTERS_H
#define SR_TRAIN_PARALLEL_MASTERS_H

#include "train/parallel/device_shares.h"

typedef struct sr_masters sr_masters;

/* Call sr_model_drop_masters before. The model's `weights` point to `gradient` (numbers),
 * device memory, from now on. */
srnn_status sr_masters_create(sr_masters **masters, sr_model *model, sr_device_shares *shares,
                              float *gradient);
void sr_masters_free(sr_masters *masters);

/* Device memory; offsets as in sr_device_shares_own. */
float *sr_masters_own(const sr_masters *masters); /* (own numbers) */

/* Copies this rank's shards out of the model's weights, after they were written, and fills the wide
 * tensors. */
srnn_status sr_masters_store(sr_masters *masters);

/* All-gather: the model's weights are complete until the next step begins. Collective. */
srnn_status sr_masters_gather(sr_masters *masters);

/* Updates the model's wide tensors from the masters. Collective; can be captured. */
srnn_status sr_masters_widen(sr_masters *masters);

#endif
