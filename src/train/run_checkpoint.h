/* run_checkpoint.h: the checkpoints of a run: a model's folder with the optimiser's state beside.
 *
 * RUN/checkpoints/step-000000500/ holds a model in Hugging Face layout, optimizer.safetensors and
 * run.json. It is written under another name, made durable and renamed, so that whatever has this
 * name is whole. */
#ifndef SR_TRAIN_RUN_CHECKPOINT_H
#define SR_TRAIN_RUN_CHECKPOINT_H

#include "files/path.h"
#include "train/trainer.h"

/* Where a run stands, beside weights and moments. */
typedef struct sr_progress {
    int64_t step; /* last one done */
    int64_t tokens;
    int64_t skipped, skipped_in_row;
    int64_t metrics_bytes, timings_bytes, events_bytes; /* lengths of the records then */
    int64_t data_sum; /* of the rows it was trained on, see sr_run_data_sum; 0: not known */
} sr_progress;

/* path = the folder of the last checkpoint of a run; "" if there is none. */
srnn_status sr_checkpoint_latest(char path[SR_PATH_BYTES], const char *run);

/* path = the folder of the model that `where` names: itself, or the last checkpoint of a run. */
srnn_status sr_checkpoint_model(char path[SR_PATH_BYTES], const char *where);

/* Writes the checkpoint of this progress, unless it is there. It receives the tokenizer in the run's
 * folder, if there is one. */
srnn_status sr_checkpoint_write(const char *run, sr_trainer *trainer, const sr_model *model,
                                const sr_progress *progress);

/* Removes the oldest checkpoints but `keep`. */
srnn_status sr_checkpoint_rotate(const char *run, int keep);

/* Reads weights, moments and progress into a model with the checkpoint's configuration and its
 * trainer. */
srnn_status sr_checkpoint_read(const char *checkpoint, sr_trainer *trainer, sr_model *model,
                               sr_progress *progress);

/* Removes what a crash left half written. */
srnn_status sr_checkpoint_tidy(const char *run);

#endif
