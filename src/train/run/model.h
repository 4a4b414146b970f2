/* model.h: the model that a run trains, and its initial weights. */
#ifndef SR_TRAIN_RUN_MODEL_H
#define SR_TRAIN_RUN_MODEL_H

#include "model/model.h"
#include "train/run/settings.h"

/* The model's shape: that of the checkpoint if it is not "", else of the folder settings->model if
 * that is not "", else from the settings, for data of `vocab` tokens. Settings that were not given
 * receive the model's values; given ones that differ are refused, except the attention of
 * settings->model, which is replaced. Free with sr_model_config_free. */
srnn_status sr_run_model_config(sr_model_config *config, sr_run_settings *settings,
                                const char *checkpoint, int vocab);

/* The initial weights of a model with that configuration; *fresh receives the number of tensors
 * that were newly initialised because settings->model lacks them or has another shape. */
srnn_status sr_run_model_begin(sr_model *model, size_t *fresh, const sr_run_settings *settings);

#endif
