/* masters.h (private): the float masters of a model that computes in a narrower type, divided among
 * ranks on GPUs: each keeps those that it updates.
 *
 * Where all of them are needed, because they are written or read, they lie in the room of the
 * gradient, which nobody uses between steps. */
#ifndef SR_TRAIN_PARALLEL_MASTERS_H
#define SR_TRAIN_PARALLEL_MASTERS_H

#include "train/parallel/device_shares.h"

typedef struct sr_masters sr_masters;

/* The model must have parted from its masters; it borrows `gradient` (numbers), device memory, for
 * `weights`. */
srnn_status sr_masters_create(sr_masters **masters, sr_model *model, sr_device_shares *shares,
                              float *gradient);
void sr_masters_free(sr_masters *masters);

/* Device memory, by the places of sr_device_shares_own. */
float *sr_masters_own(const sr_masters *masters); /* (own numbers) */

/* Keeps this rank's part of the model's weights, which somebody has written, and its wide
 * tensors. */
srnn_status sr_masters_keep(sr_masters *masters);

/* The model's weights are whole until the next step begins. All ranks together. */
srnn_status sr_masters_gather(sr_masters *masters);

/* The model's wide tensors become what the masters are. All ranks together; can be recorded. */
srnn_status sr_masters_widen(sr_masters *masters);

#endif
