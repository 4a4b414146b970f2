/* model_open.h: opens a model, and warns about its peculiarities. */
#ifndef SR_CLI_LINE_MODEL_OPEN_H
#define SR_CLI_LINE_MODEL_OPEN_H

#include "train/model_open.h"

/* As sr_model_open, or with `attention` sr_model_open_as, with the warnings of model_warn. */
srnn_status model_open(sr_model **model, sr_backend *backend, const char *where,
                       const char *attention);

/* The same for inference alone, in less memory where that loses nothing (sr_load_setup). */
srnn_status model_open_read_only(sr_model **model, sr_backend *backend, const char *where,
                                 const char *attention);

/* *T = tokens in a row: `requested`, or if that is 0 the number of the model's positions; more are
 * refused. */
srnn_status model_row_length(int *T, const sr_model *model, int requested);

/* Warns on stderr if a separate LM head was used although config.json ties it to the embedding, if
 * the model is not causal, or if a delta rule may diverge. */
void model_warn(const sr_model_config *config, const char *where);

/* Warns on stderr that Avey as published is not causal, for commands that show its losses
 * (sr_mixer_leaks). */
void model_warn_leak(void);

#endif
