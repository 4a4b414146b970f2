/* json.h (private): a model's shape from the members of config.json. */
#ifndef SR_MODEL_CONFIG_JSON_H
#define SR_MODEL_CONFIG_JSON_H

#include "model/config/family.h"

/* Fills *config, which is { 0 }; the caller frees it, also after a failure. `path` is for
 * messages. */
srnn_status sr_config_from_json(sr_model_config *config, const char *path, const json_t *root);

#endif
