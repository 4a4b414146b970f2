/* tensors.h (private): the learned tensors of a whole model, by what mixes its tokens. */
#ifndef SR_MODEL_TENSORS_H
#define SR_MODEL_TENSORS_H

#include "model/model.h"

/* Slots of tensors outside the layers; those of layers come before. */
enum {
    SR_MODEL_EMBEDDING = SR_BLOCK_SLOTS,
    SR_MODEL_NORM,
    SR_MODEL_NORM_BIAS,
    SR_MODEL_HEAD,
};

srnn_status sr_attention_model_tensors(sr_tensor_table *table, const sr_model_config *config);
srnn_status sr_avey_model_tensors(sr_tensor_table *table, const sr_model_config *config);

#endif
