/* qk_clip.h (private): keeps attention scores small: after each step, weights of heads whose
 * largest score of that step was above a limit are scaled down, so that it would have been at the
 * limit (Kimi K2, arXiv 2507.20534). Queries and keys take the square root of the factor each;
 * where several heads share keys, the queries take all of it. */
#ifndef SR_TRAIN_QK_CLIP_H
#define SR_TRAIN_QK_CLIP_H

#include "model/pass.h"

typedef struct sr_qk_clip sr_qk_clip;

/* Watches the pass from now on. `rank` of `ranks`: 0, 1: one process. */
srnn_status sr_qk_clip_create(sr_qk_clip **clip, const sr_model *model, sr_pass *pass, double limit,
                              int rank, int ranks);
void sr_qk_clip_free(sr_qk_clip *clip);

/* At the start of a step. */
srnn_status sr_qk_clip_reset(const sr_qk_clip *clip);

/* (ranks, layers, heads), device memory: each rank fills its own row, which is exchanged before the
 * update; bounds (ranks + 1) of these rows. */
float *sr_qk_clip_scores(const sr_qk_clip *clip);
const int64_t *sr_qk_clip_bounds(const sr_qk_clip *clip);

/* Scales this rank's shards of the weights, in `weight` at the shards' offsets; NULL: the model's.
 * The stats (device memory) say whether the step was applied. */
srnn_status sr_qk_clip_update(const sr_qk_clip *clip, const sr_step_stats *stats, float *weight,
                              const sr_share *shares, size_t count);

#endif
