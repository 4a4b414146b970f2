/* records.h (private): what a run writes down: metrics.jsonl, timings.jsonl and TensorBoard events.
 *
 * metrics.jsonl holds what depends on the run alone, so that a resumed run has the same bytes as an
 * unbroken one; seconds are in timings.jsonl. */
#ifndef SR_TRAIN_RUN_RECORDS_H
#define SR_TRAIN_RUN_RECORDS_H

#include "train/run/checkpoint.h"

typedef struct sr_run_records sr_run_records;

/* Opens the files of a run's folder and cuts them to the lengths in `progress`, where the record of
 * its step must end. */
srnn_status sr_run_records_open(sr_run_records **records, const char *folder,
                                const sr_progress *progress);
void sr_run_records_free(sr_run_records *records);

/* Shows a run's settings, the file `yaml`, to TensorBoard. */
srnn_status sr_run_records_settings(sr_run_records *records, const char *yaml);

/* One record of the step that `progress` has just counted; validation NULL: none. */
srnn_status sr_run_records_step(sr_run_records *records, const sr_progress *progress,
                                const sr_step *step, const sr_validation *validation,
                                double seconds);

/* Makes the files durable and puts their lengths into `progress`. */
srnn_status sr_run_records_sync(sr_run_records *records, sr_progress *progress);

#endif
