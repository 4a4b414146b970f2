/* layer_tensors.h: the tensors that an attention layer learns, derived from its descriptor. */
#ifndef SR_MODEL_LAYER_TENSORS_H
#define SR_MODEL_LAYER_TENSORS_H

#include "attention/attention.h"
#include "attention/operands.h"
#include "model/tensor_table.h"

/* The sizes of an attention layer. */
typedef struct sr_layer_dims {
    int C;      /* width of the model */
    int H, Hkv; /* query heads; key and value heads */
    int D;      /* width of a head */
    bool qkv_bias, o_bias;
} sr_layer_dims;

/* A size of an operand in a layer. */
int64_t sr_layer_extent(sr_extent extent, const srnn_attention *attention,
                        const sr_layer_dims *dims);

/* What a tensor is to its layer. */
typedef enum sr_layer_slot {
    SR_LAYER_Q_WEIGHT,
    SR_LAYER_Q_BIAS,
    SR_LAYER_K_WEIGHT,
    SR_LAYER_K_BIAS,
    SR_LAYER_V_WEIGHT,
    SR_LAYER_V_BIAS,
    SR_LAYER_QKV_WEIGHT,
    SR_LAYER_QKV_BIAS,
    SR_LAYER_CONV_WEIGHT,
    SR_LAYER_CONV_BIAS,
    SR_LAYER_O_WEIGHT,
    SR_LAYER_O_BIAS,
    SR_LAYER_OPERANDS, /* two for each: see sr_layer_operand_slot */
    SR_LAYER_SLOTS = SR_LAYER_OPERANDS + 2 * SR_OPERANDS,
} sr_layer_slot;

/* What is learned for an operand: itself, or the weight of its projection, whose bias follows. */
static inline sr_layer_slot sr_layer_operand_slot(sr_operand which) {
    return (sr_layer_slot)(SR_LAYER_OPERANDS + 2 * (int)which);
}

/* One pointer per slot, NULL where the layer has no such tensor. */
typedef struct sr_layer_pointers {
    void *slot[SR_LAYER_SLOTS];
} sr_layer_pointers;

/* A layer's weights: float masters, and the copy in the backend's number type from which products
 * read matrices (the masters themselves where that is float). */
typedef struct sr_layer_weights {
    const sr_layer_pointers *master, *working;
} sr_layer_weights;

/* Appends the layer's tensors, named as the reference names them after `prefix`
 * ("model.layers.0.self_attn."). */
srnn_status sr_layer_tensors(sr_tensor_table *table, const char *prefix,
                             const srnn_attention *attention, const sr_layer_dims *dims);

#endif
