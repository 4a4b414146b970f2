/* learning.h (private): which numbers of a model learn, and which are frozen. */
#ifndef SR_TRAIN_LEARNING_H
#define SR_TRAIN_LEARNING_H

#include "model/model.h"

/* Numbers of the arena whose gradient is final together: behind the last layer L, in a layer, or
 * -1, the embedding. */
typedef struct sr_frozen_range {
    int64_t first, count;
    int layer;
} sr_frozen_range;

/* { 0 }: everything learns. */
typedef struct sr_learning {
    sr_share *learns; /* (learns_count), in order; `at` is `first` */
    size_t learns_count;
    sr_frozen_range *frozen; /* (frozen_count) */
    size_t frozen_count;
} sr_learning;

/* The attention of these layers (L) learns, nothing else. Fails if that is nothing. */
srnn_status sr_learning_create(sr_learning *learning, const sr_model *model, const bool *layers);
void sr_learning_free(sr_learning *learning); /* leaves { 0 } */

/* Zeroes the frozen part of a gradient that is final (sr_pass_setup's ready). */
srnn_status sr_learning_clear(const sr_learning *learning, sr_backend *backend, float *gradient,
                              int layer);

/* The next piece of the share, from *index (0 at first) on, that learns; false: none is left. */
bool sr_learning_next(const sr_learning *learning, sr_share *piece, const sr_share *share,
                      size_t *index);

#endif
