/* ring.h (private): attention without a recurrent state over parts of rows, with the same work for
 * every part. On the CPU.
 *
 * A part attends to its own keys, and then, with P parts, in steps 1 to P/2 to earlier parts. Part
 * p computes in step s its queries against the keys of part p - s, which visit it; where there is
 * no such part, the queries of part p + P - s, which visit it, against its own keys, and returns
 * their sums. In step P/2 of an even P both parts of a pair compute half of the queries. Gradients
 * go the same ways back. (DistFlashAttn, Li et al. 2024, with halves.) */
#ifndef SR_MODEL_LAYER_CONTEXT_RING_H
#define SR_MODEL_LAYER_CONTEXT_RING_H

#include "model/layer/attention_parts.h"

/* Numbers that all parts of a row send per row of the batch: forward, and backward, where what
 * forward sent is sent again. */
typedef struct sr_ring_numbers {
    double forward, backward;
} sr_ring_numbers;
sr_ring_numbers sr_ring_numbers_of(const srnn_problem *problem, int T, int parts);

/* The buffers of a layer's ring, which has its plan; layers that share the layer share them. */
srnn_status sr_ring_create(sr_layer_ring **ring, const sr_attention_layer *layer);
void sr_ring_free(sr_layer_ring *ring); /* accepts NULL */
size_t sr_ring_bytes(const sr_layer_ring *ring);

/* srnn_attention_forward over all parts of the rows, and backward. */
srnn_status sr_ring_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                           void *saved);
srnn_status sr_ring_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                srnn_tensor d_o, const srnn_operands *in, const void *saved);

#endif
