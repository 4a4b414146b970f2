/* progress.h: where a run stands, beside weights and moments: run.json in a checkpoint. */
#ifndef SR_TRAIN_RUN_PROGRESS_H
#define SR_TRAIN_RUN_PROGRESS_H

#include "files/file_sums.h"
#include "train/run/settings.h"

#include <stdbool.h>
#include <stdint.h>

/* How the files of a checkpoint begin that a model does without. */
#define SR_OPTIMIZER_STEM "optimizer"
bool sr_progress_is_optimizer(const char *name);

typedef struct sr_progress {
    int64_t step;    /* last one done */
    int64_t updates; /* steps that changed the weights: the others were skipped */
    int64_t tokens;
    int64_t skipped, skipped_in_row;
    int64_t metrics_bytes, timings_bytes, events_bytes; /* lengths of the records then */
    int64_t data_sum;   /* of the rows it is trained on, see sr_run_data_sum */
    int64_t data_stamp; /* of their files, see sr_source */
} sr_progress;

/* Writes run.json into the folder of a checkpoint: whose it is, the progress, and the sizes and
 * checksums of the files that are there, which are read for it but for those that are known
 * (count). */
srnn_status sr_progress_write(const sr_progress *progress, const char *identity, const char *folder,
                              const sr_file_sum *known, size_t count);

/* Reads run.json, and fails if it does not belong to the run of these settings, to this step, or if
 * its numbers do not fit each other: they are believed nowhere else. */
srnn_status sr_progress_read(sr_progress *progress, const sr_run_settings *settings, int64_t step,
                             const char *folder);

/* True if the folder has a run.json, as checkpoints have and other models do not. */
bool sr_progress_is_there(const char *folder);

/* Fails if the files of a checkpoint are not those that run.json lists, or if it has none. */
srnn_status sr_progress_check_files(const char *folder, const sr_file_sums_part *part);

/* True if run.json says that the checkpoint is of the run with this identity. */
bool sr_progress_is_of(const char *folder, const char *identity);

#endif
