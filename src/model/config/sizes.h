/* sizes.h (private): the sizes of layers in config.json, member "softrnn_sizes". */
#ifndef SR_MODEL_CONFIG_SIZES_H
#define SR_MODEL_CONFIG_SIZES_H

#include "model/config/config.h"
#include "model/config/member.h"

/* Sets the sizes that the file has: one object for all layers, or a list of one for each. Also
 * n_groups, as Mamba-2's own files say it. */
void sr_config_sizes_read(sr_config_reader *reader, sr_model_config *config);

/* The member, or NULL where the other members say it all. */
json_t *sr_config_sizes_json(const sr_model_config *config);

/* Those of the second mixers, a list of one object for each layer; found NULL: nothing. */
void sr_config_parallel_sizes_read(sr_config_reader *reader, sr_model_config *config,
                                   const json_t *found);
json_t *sr_config_parallel_sizes_json(const sr_model_config *config);

#endif
