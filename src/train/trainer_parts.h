/* trainer_parts.h (private): a trainer from within: what its files share. */
#ifndef SR_TRAIN_TRAINER_PARTS_H
#define SR_TRAIN_TRAINER_PARTS_H

#include "train/adapters.h"
#include "train/learning.h"
#include "train/muon.h"
#include "train/parallel/context.h"
#include "train/parallel/masters.h"
#include "train/qk_clip.h"
#include "train/trainer.h"

/* The losses of one batch of a step, or of this rank's part of one. */
typedef struct sr_batch_stats {
    double loss;
    int64_t targets, hits;
    double kl; /* of validation with a teacher: summed over targets */
} sr_batch_stats;

/* Tokens of a batch, in host memory. T is that of this rank's part of the rows, but there is room
 * for whole ones. */
typedef struct token_batch {
    int32_t *ids, *targets; /* (B, T) */
    int64_t *offsets;       /* (B*T + 1): of whole rows */
    int64_t documents;
    const sr_source *source; /* set if this is training batch `number` of the source; else NULL */
    int64_t number;
} token_batch;

struct sr_trainer {
    sr_model *model;
    sr_backend *backend;
    sr_trainer_settings settings;
    sr_pass *pass;
    sr_ranks *ranks;
    sr_context context;
    /* NULL: a step is one batch of one rank, or the device accumulates batches itself */
    sr_shares *shares;
    sr_device_shares *device_shares; /* of ranks on GPUs; else NULL */
    sr_masters *masters;             /* NULL: the model has its own master weights */
    sr_muon *muon;                   /* NULL: AdamW updates everything */
    sr_qk_clip *qk_clip;             /* NULL: scores may be of any size */
    sr_learning learning;            /* { 0 }: everything learns */
    sr_adapters *adapters;           /* NULL: the model's own numbers learn */
    sr_share all;                    /* this rank's shard without either */
    sr_step_stats *decided;          /* device memory, for updates in several parts; else NULL */
    sr_batch_stats *batches;         /* (ranks, rounds), for shares: of units */
    sr_moments moments;
    token_batch batch;          /* the current batch */
    token_batch next;           /* read ahead while a GPU computes */
    float *losses;              /* (B, T), for validation */
    sr_step_stats *stats;       /* device memory */
    sr_graph update;            /* updates the weights */
    sr_number_range *undecayed; /* (undecayed_count): parameters without weight decay */
    size_t undecayed_count;
};

/* Units of this many batches (sr_context), and rounds in each of which a rank computes at most one
 * unit. */
static inline int64_t sr_trainer_units(const sr_trainer *trainer, int64_t batches) {
    return batches * trainer->context.count;
}

static inline int64_t sr_trainer_rounds(const sr_trainer *trainer, int64_t batches) {
    const int64_t units = sr_trainer_units(trainer, batches), count = trainer->ranks->count;
    return units / count + (units % count != 0);
}

/* Where the result of a unit is in an array (ranks, rounds). */
static inline size_t sr_trainer_unit_at(const sr_trainer *trainer, int64_t unit, int64_t rounds) {
    const int64_t count = trainer->ranks->count;
    return (size_t)(unit % count * rounds + unit / count);
}

/* Reads a batch of the source, unless it was read ahead, and gives the pass its documents. */
srnn_status sr_trainer_read(sr_trainer *trainer, const sr_source *source, sr_split split,
                            int64_t number);

#endif
