/* checkpoint.h: the checkpoints of a run: a model's folder with the optimizer's state.
 *
 * RUN/checkpoints/step-000000500/ holds a model in Hugging Face layout, optimizer.safetensors (or
 * one file per rank) and run.json, which names the run and lists the checksums of the other files.
 * It is written under another name, synced, read back and renamed, so that a folder with this name
 * is always complete. */
#ifndef SR_TRAIN_RUN_CHECKPOINT_H
#define SR_TRAIN_RUN_CHECKPOINT_H

#include "files/path.h"
#include "train/run/progress.h"
#include "train/trainer.h"

/* A run whose checkpoints are written and read. */
typedef struct sr_checkpointed {
    const char *folder;              /* of the run */
    const sr_run_settings *settings; /* their identity is stored in each checkpoint */
    sr_trainer *trainer;
    sr_model *model;
    sr_ranks *ranks; /* write and read the checkpoints together */
} sr_checkpointed;

/* path = the folder of the last checkpoint of a run; "" if there is none. */
srnn_status sr_checkpoint_latest(char path[SR_PATH_BYTES], const char *run);

/* path = the folder of the model that `where` names: itself, or the last checkpoint of a run. Fails
 * if the files of a checkpoint do not match their checksums. */
srnn_status sr_checkpoint_model(char path[SR_PATH_BYTES], const char *where);

/* The same, if its tokenizer's files do: it is all that will be read. */
srnn_status sr_checkpoint_tokenizer(char path[SR_PATH_BYTES], const char *where);

/* Writes a checkpoint of this progress and reads it back before it is renamed to its final name.
 * The tokenizer in the run's folder, if any, is copied. Fails if the step has a checkpoint already;
 * a failure on one rank fails on all. */
srnn_status sr_checkpoint_write(const sr_checkpointed *run, const sr_progress *progress);

/* Removes all but the newest settings->keep checkpoints of this run. */
srnn_status sr_checkpoint_rotate(const char *run, const sr_run_settings *settings);

/* path = the last checkpoint of a run, "" if there is none, with its progress. Collective: all
 * ranks check the files together. Fails if the checkpoint is damaged or belongs to another run, and
 * names the newest older one that is undamaged. */
srnn_status sr_checkpoint_find(char path[SR_PATH_BYTES], sr_progress *progress, const char *run,
                               const sr_run_settings *settings, sr_ranks *ranks);

/* Reads the weights and moments of a checkpoint into a model with its configuration and into the
 * trainer. */
srnn_status sr_checkpoint_read(const char *checkpoint, const sr_checkpointed *run,
                               const sr_progress *progress);

/* Removes what a crash left partly written. */
srnn_status sr_checkpoint_tidy(const char *run);

#endif
