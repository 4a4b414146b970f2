/* rope.h (private): rotary position in config.json. */
#ifndef SR_MODEL_CONFIG_ROPE_H
#define SR_MODEL_CONFIG_ROPE_H

#include "model/config/config.h"
#include "model/config/member.h"

/* The object with the RoPE settings: rope_scaling, else rope_parameters, which newer files have;
 * NULL if there is none. */
const json_t *sr_config_rope_object(sr_config_reader *reader);

/* The word for the scaling that an object says. */
const char *sr_config_rope_kind(sr_config_reader *reader, const json_t *scaling);

/* Sets theta and scaling; config->positions is set. */
void sr_config_rope_read(sr_config_reader *reader, sr_model_config *config);

/* Sets the scaling of this kind with the object's numbers, rope_theta being set. `outer`: the
 * object that YaRN's `truncate` is read from, another one where each type of layer has its own.
 * `width`: channels of a head that are rotated, for which LongRoPE has lists; 0: unknown. */
void sr_config_rope_set(sr_config_reader *reader, sr_model_config *config, const json_t *scaling,
                        const json_t *outer, const char *kind, int width);

/* A new reference to what rope_scaling is to say; NULL if there is no memory. */
json_t *sr_config_rope_json(const sr_rope_scaling *scaling);

#endif
