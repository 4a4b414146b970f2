/* model.h: which model a run trains, and the weights it begins with. */
#ifndef SR_TRAIN_RUN_MODEL_H
#define SR_TRAIN_RUN_MODEL_H

#include "model/model.h"
#include "train/run/settings.h"

/* The model's shape: that of the checkpoint if it is not "", else of the folder settings->model if
 * that is not "", else as the settings say for data of `vocab` tokens. Settings that were not given
 * receive the model's values; others that it does not have are refused, but for the attention of
 * settings->model, which is replaced. Free with sr_model_config_free. */
srnn_status sr_run_model_config(sr_model_config *config, sr_run_settings *settings,
                                const char *checkpoint, int vocab);

/* The first weights of a model with that configuration; *fresh receives how many tensors have new
 * values where settings->model has others or none. */
srnn_status sr_run_model_begin(sr_model *model, size_t *fresh, const sr_run_settings *settings);

#endif
