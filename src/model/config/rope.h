/* rope.h (private): rotary position in config.json. */
#ifndef SR_MODEL_CONFIG_ROPE_H
#define SR_MODEL_CONFIG_ROPE_H

#include "model/config/config.h"
#include "model/config/member.h"

/* Sets theta and scaling; config->positions is set. */
void sr_config_rope_read(sr_config_reader *reader, sr_model_config *config);

/* Sets the scaling that an object says, rope_theta being set. */
void sr_config_rope_set(sr_config_reader *reader, sr_model_config *config, const json_t *scaling);

/* A new reference to what rope_scaling is to say; NULL if there is no memory. */
json_t *sr_config_rope_json(const sr_rope_scaling *scaling);

#endif
