/* ring.h (private): keys and values of the earlier parts of a row, block after block, for attention
 * without a recurrent state. A part hands its own block to the part after, and then those that it
 * receives itself; gradients of a block return the same way. On the CPU. */
#ifndef SR_MODEL_LAYER_CONTEXT_RING_H
#define SR_MODEL_LAYER_CONTEXT_RING_H

#include "model/layer/attention_parts.h"

/* Earlier parts of `tokens` tokens that a token of part `index` sees. */
int sr_ring_blocks(const srnn_attention *attention, int index, int tokens);

/* The buffers of a layer's ring, if it needs one; layers that share the layer share them. */
srnn_status sr_ring_create(sr_layer_ring **ring, const sr_attention_layer *layer);
void sr_ring_free(sr_layer_ring *ring); /* accepts NULL */
size_t sr_ring_bytes(const sr_layer_ring *ring);

/* srnn_attention_forward over all parts of the rows, and backward. */
srnn_status sr_ring_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                           void *saved);
srnn_status sr_ring_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                srnn_tensor d_o, const srnn_operands *in, const void *saved);

#endif
