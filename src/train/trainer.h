/* trainer.h: one optimiser step of a model: gradients of a batch, clipping, AdamW or Muon. */
#ifndef SR_TRAIN_TRAINER_H
#define SR_TRAIN_TRAINER_H

#include "data/rows/source.h"
#include "model/pass.h"
#include "ranks/ranks.h"
#include "train/parallel/shares.h"
#include "train/schedule.h"

typedef enum sr_optimizer {
    SR_OPTIMIZER_ADAMW = 0,
    SR_OPTIMIZER_MUON, /* for the matrices of layers; AdamW for the rest. On CPUs */
} sr_optimizer;

typedef struct sr_trainer_settings {
    int B, T;
    int accumulate; /* batches of B rows in one step, of all ranks together */
    bool recompute;
    sr_optimizer optimizer;
    double learning_rate; /* the largest */
    double beta1, beta2, epsilon, weight_decay;
    double momentum; /* of Muon */
    bool decay_all;  /* weight decay also of tensors whose authors have none */
    double clip;     /* largest norm of the gradient; 0: none */
    sr_schedule schedule;
    sr_ranks *ranks; /* that share the batches of a step; NULL: none do. Must outlive the trainer */
    bool whole;      /* each of them keeps all moments, instead of its share; with Muon they do */
} sr_trainer_settings;

/* What one step did. */
typedef struct sr_step {
    double loss; /* mean over the targets */
    double gradient_norm;
    double learning_rate;
    int64_t targets; /* counted */
    bool applied;    /* false: loss or gradient was not finite, so nothing was changed */
} sr_step;

typedef struct sr_trainer sr_trainer;

/* The model must outlive the trainer. Where ranks on GPUs that compute in bf16 share moments, each
 * keeps only its part of the float masters too: the model's weights are then written after this,
 * and are room that a step overwrites. */
srnn_status sr_trainer_create(sr_trainer **trainer, sr_model *model,
                              const sr_trainer_settings *settings);
void sr_trainer_free(sr_trainer *trainer);

/* After the model's weights were written: this rank keeps its part. Before they are read: they are
 * whole until the next step; all ranks together. Nothing to do where a rank has them all. */
srnn_status sr_trainer_keep_weights(sr_trainer *trainer);
srnn_status sr_trainer_gather_weights(sr_trainer *trainer);

/* Step 1, 2, .. on its own rows of the source's training split. All ranks take it together, and
 * have the same result. */
srnn_status sr_trainer_step(sr_trainer *trainer, sr_step *result, const sr_source *source,
                            int64_t step);

/* How well a model predicts the first batches of the validation split. */
typedef struct sr_validation {
    int64_t batches;
    double *losses;  /* (batches), owned: the mean over each batch's targets */
    double loss;     /* mean over all targets */
    double accuracy; /* share of the targets that were the most probable token */
} sr_validation;

srnn_status sr_validation_create(sr_validation *validation, int64_t batches);
void sr_validation_free(sr_validation *validation);

/* Fills it for the model as it is. */
srnn_status sr_trainer_validate(sr_trainer *trainer, sr_validation *result,
                                const sr_source *source);

/* Bytes of weights, gradients, moments and activations. */
size_t sr_trainer_bytes(const sr_trainer *trainer);

/* What must be kept to go on: the moments, in backend memory, of the numbers that this rank keeps,
 * and how many updates they have seen. */
typedef struct sr_moments {
    float *mean, *square;
    int64_t updates;
} sr_moments;
sr_moments *sr_trainer_moments(sr_trainer *trainer);

/* Where the numbers of these arrays belong. */
const sr_share *sr_trainer_shares(const sr_trainer *trainer, size_t *count);

/* True if no rank keeps all of them. */
bool sr_trainer_splits(const sr_trainer *trainer);

#endif
