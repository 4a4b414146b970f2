/* tensors.h: the tensors that an attention layer learns, derived from its descriptor. */
#ifndef SR_MODEL_LAYER_TENSORS_H
#define SR_MODEL_LAYER_TENSORS_H

#include "equation/facts.h"
#include "model/layer/wiring.h"
#include "model/tensor_table.h"

/* Slots of both mixers that a block may have. */
enum { SR_MIXER_SLOTS = 2 * SR_LAYER_SLOTS };

/* One pointer per slot, NULL where the layer has no such tensor. */
typedef struct sr_layer_pointers {
    void *slot[SR_LAYER_SLOTS];
} sr_layer_pointers;

/* A layer's weights: float masters, and the copy in the backend's number type from which products
 * read matrices (the masters themselves where that is float). */
typedef struct sr_layer_weights {
    const sr_layer_pointers *master, *working;
    bool narrow; /* working is bf16 and the backend's numbers are float, see sr_linear */
} sr_layer_weights;

/* Appends the layer's tensors, named as the public code of the variant names them after `prefix`
 * ("model.layers.0.self_attn."). */
srnn_status sr_layer_tensors(sr_tensor_table *table, const char *prefix,
                             const srnn_attention *attention, const sr_layer_dims *dims);

#endif
