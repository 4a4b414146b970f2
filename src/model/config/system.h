/* system.h (private): members of config.json that only models of one neighbouring system have, as
 * transformers (Mamba-2) and flash-linear-attention (GLA, DeltaNet, Gated DeltaNet) write them. */
#ifndef SR_MODEL_CONFIG_SYSTEM_H
#define SR_MODEL_CONFIG_SYSTEM_H

#include "model/config/config.h"
#include "model/config/member.h"

typedef struct sr_config_system sr_config_system;

extern const sr_config_system sr_system_mamba2, sr_system_gla, sr_system_delta_net,
    sr_system_gated_delta_net;

/* Sets all but V, C, L, tied and tokens, which are known. SRNN_ERR_UNSUPPORTED, naming the member
 * and the reason, for what this program would compute otherwise. */
srnn_status sr_config_system_read(sr_config_reader *reader, const sr_config_system *system,
                                  sr_model_config *config);

/* Adds the same members to `root`. Only what reads back as the same model may be written. */
void sr_config_system_set(json_t *root, const sr_config_system *system,
                          const sr_model_config *config);

const sr_tensor_names *sr_config_system_names(const sr_config_system *system);

#endif
