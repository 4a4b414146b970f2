/* trainer.h: one optimizer step of a model: gradients of a batch, clipping, AdamW or Muon. */
#ifndef SR_TRAIN_TRAINER_H
#define SR_TRAIN_TRAINER_H

#include "data/rows/source.h"
#include "model/pass.h"
#include "ranks/ranks.h"
#include "train/parallel/shares.h"
#include "train/schedule.h"

typedef enum sr_optimizer {
    SR_OPTIMIZER_ADAMW = 0,
    SR_OPTIMIZER_MUON, /* for the matrices of layers; AdamW for the rest */
} sr_optimizer;

typedef struct sr_trainer_settings {
    int B, T;
    int accumulate; /* batches of B rows in one step, of all ranks together */
    sr_recompute recompute;
    sr_optimizer optimizer;
    double learning_rate; /* the peak */
    double beta1, beta2, epsilon, weight_decay;
    double momentum; /* of Muon */
    bool decay_all;  /* weight decay for all tensors, also those that are usually exempt */
    double clip;     /* largest gradient norm; 0: no clipping */
    double qk_clip;  /* largest score of attention, see train/qk_clip.h; 0: any */
    sr_schedule schedule;
    sr_lesson lesson; /* what is learned; its teacher must outlive the trainer */
    /* (L), borrowed: only the attention of these layers learns, everything else stays as it is, to
     * the bit. NULL: everything learns. Not with Muon */
    const bool *attention_of;
    /* Above 0: only adapters of this rank learn, of the matrices of all layers, or of that
     * attention (train/adapters.h). In float, with AdamW */
    int adapter_rank;
    int context_ranks; /* of them that share each row; 0: 1 */
    sr_ranks *ranks; /* share the batches of a step; NULL: one process. Must outlive the trainer */
    bool whole;      /* each rank stores all moments, instead of its shard; always where only some
                      * tensors, or adapters, learn */
} sr_trainer_settings;

/* The outcome of one step. */
typedef struct sr_step {
    double loss; /* mean over the targets */
    double gradient_norm;
    double learning_rate;
    int64_t targets; /* number of targets */
    bool applied;    /* false: loss or gradient was not finite, and the step was skipped */
} sr_step;

typedef struct sr_trainer sr_trainer;

/* The model must outlive the trainer. If ranks on GPUs shard the moments and compute in bf16, the
 * float master weights are sharded too: write the model's weights only after this call, into a
 * buffer that each step overwrites. */
srnn_status sr_trainer_create(sr_trainer **trainer, sr_model *model,
                              const sr_trainer_settings *settings);
void sr_trainer_free(sr_trainer *trainer);

/* Of a trainer with adapters, after the model's weights were written: they are what the adapters
 * are added to. Sets the adapters to their initial values. A no-op without. */
srnn_status sr_trainer_begin_adapters(sr_trainer *trainer, double range, uint64_t seed);

/* Adapters apart from the model, in a checkpoint's folder. Reading adds them to what the model held
 * in sr_trainer_begin_adapters. No-ops without. */
srnn_status sr_trainer_write_adapters(const sr_trainer *trainer, const char *folder);
srnn_status sr_trainer_read_adapters(sr_trainer *trainer, const char *folder);
bool sr_trainer_has_adapters(const sr_trainer *trainer);

/* Whether tensor `index` of the model's table has an adapter. */
bool sr_trainer_adapts(const sr_trainer *trainer, size_t index);

/* The tensors that the moments belong to: the model's, or its adapters'. */
const sr_tensor_table *sr_trainer_table(const sr_trainer *trainer);

/* scatter_weights: after the model's weights were written, stores this rank's shard.
 * gather_weights: before they are read, makes them complete until the next step; collective. Both
 * are no-ops if each rank has all weights. */
srnn_status sr_trainer_scatter_weights(sr_trainer *trainer);
srnn_status sr_trainer_gather_weights(sr_trainer *trainer);

/* Step 1, 2, .. on its rows of the source's training split. Collective; all ranks have the same
 * result. */
srnn_status sr_trainer_step(sr_trainer *trainer, sr_step *result, const sr_source *source,
                            int64_t step);

/* Loss and accuracy on the first batches of the validation split; NaN: of no targets. */
typedef struct sr_validation {
    int64_t batches;
    double *losses;  /* (batches), owned: the mean over each batch's targets */
    double loss;     /* mean over all targets */
    double accuracy; /* fraction of the targets that were the most probable token */

    /* With a teacher. */
    double kl;              /* mean over all targets of KL(teacher, student); NaN: no teacher */
    sr_layer_error *errors; /* (layers), owned: means over all targets, where layers are learned */
    int layers;             /* 0: they are not */
} sr_validation;

/* `layers` of the model if the lesson compares layers, else 0. */
srnn_status sr_validation_create(sr_validation *validation, int64_t batches, int layers);
void sr_validation_free(sr_validation *validation);

/* Validates the current model. Reduces the batches to those that the split has. */
srnn_status sr_trainer_validate(sr_trainer *trainer, sr_validation *result,
                                const sr_source *source);

/* Bytes of weights, gradients, moments and activations, the teacher's weights included. */
size_t sr_trainer_bytes(const sr_trainer *trainer);

/* The optimizer's state in a checkpoint: this rank's moments, in backend memory, and the number of
 * updates they include. */
typedef struct sr_moments {
    float *mean, *square;
    int64_t updates;
} sr_moments;
sr_moments *sr_trainer_moments(sr_trainer *trainer);

/* The shards of these arrays. */
const sr_share *sr_trainer_shares(const sr_trainer *trainer, size_t *count);

/* True if the moments are sharded. */
bool sr_trainer_splits(const sr_trainer *trainer);

#endif
