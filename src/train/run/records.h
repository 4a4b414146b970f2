/* records.h (private): the records of a run: metrics.jsonl, timings.jsonl and TensorBoard events.
 *
 * metrics.jsonl has only what is deterministic, so that a resumed run writes the same bytes as an
 * uninterrupted one; times are in timings.jsonl. */
#ifndef SR_TRAIN_RUN_RECORDS_H
#define SR_TRAIN_RUN_RECORDS_H

#include "train/run/checkpoint.h"

typedef struct sr_run_records sr_run_records;

/* Opens the files in a run's folder and truncates them to the lengths in `progress`, where the
 * record of its step must end. */
srnn_status sr_run_records_open(sr_run_records **records, const char *folder,
                                const sr_progress *progress);
void sr_run_records_free(sr_run_records *records);

/* Adds a run's settings, the file `yaml`, to TensorBoard. */
srnn_status sr_run_records_settings(sr_run_records *records, const char *yaml);

/* Writes the record of the step in `progress`; validation NULL: none. */
srnn_status sr_run_records_step(sr_run_records *records, const sr_progress *progress,
                                const sr_step *step, const sr_validation *validation,
                                double seconds);

/* Syncs the files to disk and stores their lengths in `progress`. */
srnn_status sr_run_records_sync(sr_run_records *records, sr_progress *progress);

#endif
