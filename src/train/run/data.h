/* data.h: the rows of a run and their tokenizer. */
#ifndef SR_TRAIN_RUN_DATA_H
#define SR_TRAIN_RUN_DATA_H

#include "data/rows/source.h"
#include "train/run/settings.h"

/* Opens the rows and sets what they determine in `settings`: the row length, and for given batches
 * their rows and, if steps is 0, the number of steps. Fails if there are fewer batches than the
 * steps need. */
srnn_status sr_run_data_open(sr_source **source, sr_run_settings *settings);

/* If settings->tokenizer is "", sets it to the tokenizer of the data, else of settings->model,
 * which may also be a llama2.c .bin file; it stays "" if neither has one. Fails if the given
 * tokenizer cannot be loaded, or if the data is text, which is read as bytes, and the given or the
 * model's tokenizer is another. */
srnn_status sr_run_data_tokenizer(sr_run_settings *settings);

/* A checksum that changes when the data or its shuffle does: combines the checksums of all data and
 * a few rows. */
srnn_status sr_run_data_sum(int64_t *sum, const sr_source *source);

#endif
