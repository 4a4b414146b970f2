/* progress.h: the progress of a run besides weights and moments: run.json in a checkpoint. */
#ifndef SR_TRAIN_RUN_PROGRESS_H
#define SR_TRAIN_RUN_PROGRESS_H

#include "files/file_sums.h"
#include "train/run/settings.h"

#include <stdbool.h>
#include <stdint.h>

/* File name prefix in a checkpoint of what inference does not need. */
#define SR_OPTIMIZER_STEM "optimizer"
bool sr_progress_is_optimizer(const char *name);

typedef struct sr_progress {
    int64_t step;    /* last completed step */
    int64_t updates; /* steps that changed the weights; others were skipped */
    int64_t tokens;
    int64_t skipped, skipped_in_row;
    int64_t metrics_bytes, timings_bytes, events_bytes; /* file lengths at this step */
    int64_t data_sum;   /* checksum of the training rows, see sr_run_data_sum */
    int64_t data_stamp; /* stamp of their files, see sr_source */
} sr_progress;

/* Writes run.json into the folder of a checkpoint: the run's identity, the progress, and sizes and
 * checksums of its files. Files are read for their checksums, except those given in `known`
 * (count). */
srnn_status sr_progress_write(const sr_progress *progress, const char *identity, const char *folder,
                              const sr_file_sum *known, size_t count);

/* Reads run.json. Fails if it does not belong to the run of these settings or to this step, or if
 * its numbers contradict each other; no other code validates them. */
srnn_status sr_progress_read(sr_progress *progress, const sr_run_settings *settings, int64_t step,
                             const char *folder);

/* True if the folder has a run.json: it is a checkpoint, not another model. */
bool sr_progress_is_there(const char *folder);

/* Fails if the files of a checkpoint differ from those listed in run.json, or if it lists none. */
srnn_status sr_progress_check_files(const char *folder, const sr_file_sums_part *part);

/* True if run.json belongs to the run with this identity. */
bool sr_progress_is_of(const char *folder, const char *identity);

#endif
