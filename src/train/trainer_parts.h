/* trainer_parts.h (private): a trainer from within: what its files share. */
#ifndef SR_TRAIN_TRAINER_PARTS_H
#define SR_TRAIN_TRAINER_PARTS_H

#include "train/learning.h"
#include "train/muon.h"
#include "train/parallel/masters.h"
#include "train/trainer.h"

/* The losses of one batch of a step. */
typedef struct sr_batch_stats {
    double loss;
    int64_t targets, hits;
    double kl; /* of validation with a teacher: summed over targets */
} sr_batch_stats;

/* Tokens of a batch, in host memory. */
typedef struct token_batch {
    int32_t *ids, *targets; /* (B, T) */
    int64_t *offsets;       /* (B*T + 1) */
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
    /* NULL: a step is one batch of one rank, or the device accumulates batches itself */
    sr_shares *shares;
    sr_device_shares *device_shares; /* of ranks on GPUs; else NULL */
    sr_masters *masters;             /* NULL: the model has its own master weights */
    sr_muon *muon;                   /* NULL: AdamW updates everything */
    sr_learning learning;            /* { 0 }: everything learns */
    sr_share all;                    /* this rank's shard without either */
    sr_step_stats *decided;          /* device memory, for device_shares */
    sr_batch_stats *batches;         /* (ranks, rounds), for shares */
    sr_moments moments;
    token_batch batch;          /* the current batch */
    token_batch next;           /* read ahead while a GPU computes */
    float *losses;              /* (B, T), for validation */
    sr_step_stats *stats;       /* device memory */
    sr_graph update;            /* updates the weights */
    sr_number_range *undecayed; /* (undecayed_count): parameters without weight decay */
    size_t undecayed_count;
};

/* Reads a batch of the source, unless it was read ahead, and tells the pass its documents. */
srnn_status sr_trainer_read(sr_trainer *trainer, const sr_source *source, sr_split split,
                            int64_t number);

#endif
