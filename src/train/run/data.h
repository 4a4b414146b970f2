/* data.h: what a run reads: its rows and the tokenizer they were made with. */
#ifndef SR_TRAIN_RUN_DATA_H
#define SR_TRAIN_RUN_DATA_H

#include "data/rows/source.h"
#include "train/run/settings.h"

/* Opens the rows. Settings receive what these fix: the length of a row, and of given batches their
 * rows and, if steps is 0, their steps. Fails if there are fewer batches than the steps need. */
srnn_status sr_run_data_open(sr_source **source, sr_run_settings *settings);

/* Sets settings->tokenizer, if it is "", to that of the data, else of settings->model; "" if
 * neither has one. Fails if the one given cannot be loaded, and if the data is text, which is read
 * as bytes, where the one given or the model's is another. settings->model may be a llama2.c .bin
 * file, too. */
srnn_status sr_run_data_tokenizer(sr_run_settings *settings);

/* A number that changes when the data or the order of its rows does: made from the checksums of all
 * of it, and a few rows. */
srnn_status sr_run_data_sum(int64_t *sum, const sr_source *source);

#endif
