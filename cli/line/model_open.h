/* model_open.h: opening a model, and saying what a user should know of it. */
#ifndef SR_CLI_LINE_MODEL_OPEN_H
#define SR_CLI_LINE_MODEL_OPEN_H

#include "train/model_open.h"

/* As sr_model_open, or with `attention` sr_model_open_as, with what model_tell says. */
srnn_status model_open(sr_model **model, sr_backend *backend, const char *where,
                       const char *attention);

/* *T = tokens in a row: those asked for, or, if that is 0, as many as the model has positions; more
 * are refused. */
srnn_status model_row_length(int *T, const sr_model *model, int asked);

/* Says on stderr what a user must know: that a head was kept which config.json calls the embedding,
 * that later tokens reach earlier ones, that a delta rule may diverge. */
void model_tell(const sr_model_config *config, const char *where);

/* Says on stderr what Avey as published does, for whoever shows its losses (sr_avey_leaks). */
void model_tell_leak(void);

#endif
