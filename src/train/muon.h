/* muon.h (private): Muon for the matrices of a model's layers: Jordan et al., "Muon: an optimizer
 * for hidden layers", 2024, with the step size and weight decay of Liu et al., "Muon is scalable
 * for LLM training", 2025, so that AdamW's learning rates can be used.
 *
 *     M = momentum M + (1 - momentum) G,   U = momentum M + (1 - momentum) G
 *     O = NewtonSchulz5(U),   W = (1 - lr wd) W - 0.2 sqrt(max(rows, columns)) lr O
 *
 * A step has three parts, so that ranks can share it: each finds the directions U of its shards of
 * the parameters; when these are gathered, each makes some of the matrices orthogonal; when these
 * are exchanged, each updates its shards. Everything is asynchronous and can be captured. */
#ifndef SR_TRAIN_MUON_H
#define SR_TRAIN_MUON_H

#include "model/model.h"
#include "train/learning.h"

typedef struct sr_muon sr_muon;

typedef struct sr_muon_settings {
    double momentum, weight_decay;
    bool decay_all;  /* weight decay for all tensors, also those that are usually exempt */
    int rank, ranks; /* 0, 1: one process */
} sr_muon_settings;

/* Allocates all memory, on the model's device. The model must outlive it. */
srnn_status sr_muon_create(sr_muon **muon, const sr_model *model, const sr_muon_settings *settings);
void sr_muon_free(sr_muon *muon);
size_t sr_muon_bytes(const sr_muon *muon);

/* The other parameters, which AdamW updates. */
const sr_learning *sr_muon_others(const sr_muon *muon);

/* (ranks + 1): rank r makes the matrices orthogonal that lie in [bounds[r], bounds[r + 1]) of the
 * arena; none lies across a bound. */
const int64_t *sr_muon_bounds(const sr_muon *muon);

/* The arrays of a step, in backend memory. */
typedef struct sr_muon_arrays {
    const sr_share *shares; /* (share_count): this rank's shards of mean, gradient and weight */
    size_t share_count;
    float *mean;           /* (own numbers) */
    const float *gradient; /* (own numbers) */
    float *weight;         /* (own numbers), at the shards' offsets; NULL: the model's weights */
    float *direction;      /* (numbers), laid out like the arena; may be the gradient */
    const sr_step_stats *stats; /* after AdamW has decided whether the step is applied */
} sr_muon_arrays;

srnn_status sr_muon_directions(const sr_muon *muon, const sr_muon_arrays *arrays);
srnn_status sr_muon_orthogonalise(sr_muon *muon, float *direction);
srnn_status sr_muon_update(const sr_muon *muon, const sr_muon_arrays *arrays);

#endif
