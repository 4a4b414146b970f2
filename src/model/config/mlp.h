/* mlp.h (private): activations in config.json. */
#ifndef SR_MODEL_CONFIG_MLP_H
#define SR_MODEL_CONFIG_MLP_H

#include "model/config/config.h"
#include "model/config/member.h"

/* Sets mlp and activation for a word of transformers; with the fast paths of SwiGLU and GELU. */
void sr_config_mlp_set(sr_config_reader *reader, sr_model_config *config, const char *key,
                       const char *word, bool gated);

/* The word of an activation. */
const char *sr_config_activation_word(sr_activation activation);

#endif
