/* samples.h (private): text that a finished run writes: samples.json. */
#ifndef SR_TRAIN_RUN_SAMPLES_H
#define SR_TRAIN_RUN_SAMPLES_H

#include "data/rows/source.h"
#include "model/model.h"
#include "train/run/settings.h"

/* Continues the beginnings of the first validation rows by settings->sample tokens, drawn at
 * temperature 0.8, and writes `folder`/samples.json. No-op if sample is 0 or the run has no
 * tokenizer: synthetic tasks have no text. Called by every rank, done by the first. */
srnn_status sr_run_samples_write(const sr_run_settings *settings, sr_model *model,
                                 const sr_source *source, const char *folder,
                                 const sr_ranks *ranks);

#endif
