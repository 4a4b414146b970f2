/* checkpoint.h: the checkpoints of a run: a model's folder with the optimiser's state beside.
 *
 * RUN/checkpoints/step-000000500/ holds a model in Hugging Face layout, optimizer.safetensors (or
 * one file of each rank) and run.json, which says whose it is and what the other files must be. It
 * is written under another name, made durable, read back and renamed, so that whatever has this
 * name is whole. */
#ifndef SR_TRAIN_RUN_CHECKPOINT_H
#define SR_TRAIN_RUN_CHECKPOINT_H

#include "files/path.h"
#include "train/run/progress.h"
#include "train/trainer.h"

/* A run whose checkpoints are written and read. */
typedef struct sr_checkpointed {
    const char *folder;              /* of the run */
    const sr_run_settings *settings; /* whose identity its checkpoints carry */
    sr_trainer *trainer;
    sr_model *model;
    sr_ranks *ranks; /* that write and read them together */
} sr_checkpointed;

/* path = the folder of the last checkpoint of a run; "" if there is none. */
srnn_status sr_checkpoint_latest(char path[SR_PATH_BYTES], const char *run);

/* path = the folder of the model that `where` names: itself, or the last checkpoint of a run. Fails
 * if it is a checkpoint whose files are not those that were written. */
srnn_status sr_checkpoint_model(char path[SR_PATH_BYTES], const char *where);

/* Writes the checkpoint of this progress, and reads it back before it gets its name. It receives
 * the tokenizer in the run's folder, if there is one. Fails if there is one of this step; on all
 * ranks if it fails on one. */
srnn_status sr_checkpoint_write(const sr_checkpointed *run, const sr_progress *progress);

/* Removes the oldest checkpoints of this run but settings->keep. */
srnn_status sr_checkpoint_rotate(const char *run, const sr_run_settings *settings);

/* path = the last checkpoint of a run, "" if there is none, and the progress it holds, on all
 * ranks, which read its files together. Fails if it is damaged or of another run, and says which
 * older one is not. */
srnn_status sr_checkpoint_find(char path[SR_PATH_BYTES], sr_progress *progress, const char *run,
                               const sr_run_settings *settings, sr_ranks *ranks);

/* Reads weights and moments of a checkpoint that was found into a model with its configuration and
 * the trainer. */
srnn_status sr_checkpoint_read(const char *checkpoint, const sr_checkpointed *run,
                               const sr_progress *progress);

/* Removes what a crash left half written. */
srnn_status sr_checkpoint_tidy(const char *run);

#endif
