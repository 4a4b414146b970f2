/* kinds.h (private): the different mixers of a model, each made once. */
#ifndef SR_MODEL_LAYER_KINDS_H
#define SR_MODEL_LAYER_KINDS_H

#include "model/layer/mixer.h"
#include "model/model.h"

typedef struct sr_layer_kinds {
    const sr_mixer **of_layer; /* (L): layers with one descriptor share one */
    sr_mixer *kinds;           /* (L), of which `count` are made; owned */
    int count;
} sr_layer_kinds;

/* `setup` without its attention, sizes and RoPE, which come from each layer of the model. */
srnn_status sr_layer_kinds_create(sr_layer_kinds *kinds, const sr_model *model,
                                  const sr_layer_setup *setup);

/* Numbers of a token's values that a layer leaves for later ones to mix in; 0: none does. */
int64_t sr_layer_kinds_first_values(const sr_model_config *config);

void sr_layer_kinds_free(sr_layer_kinds *kinds);

/* Bytes that the layers hold. */
size_t sr_layer_kinds_bytes(const sr_layer_kinds *kinds);

#endif
