/* rwkv7.h (private): what RWKV-7's layer does besides projections: token shifts, activations inside
 * low-rank paths, keys and values made of what is projected. In float, on the CPU. */
#ifndef SR_MODEL_LAYER_RWKV7_H
#define SR_MODEL_LAYER_RWKV7_H

#include "model/layer/attention_parts.h"

/* Fails where the backend cannot run the wiring. */
srnn_status sr_rwkv7_check(const sr_attention_layer *layer);

/* arrays->taps from the vectors of token shifts; and what came of them back, added. */
void sr_rwkv7_taps(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                   const sr_layer_weights *weights);
void sr_rwkv7_taps_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                            const sr_layer_pointers *gradients);

/* The convolution that token shift `which` is, of x. */
sr_short_conv sr_rwkv7_shift(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                             sr_matrix x, const sr_layer_piece *piece, int which);

/* Columns of a projection through its activation, in place; and their gradient, where `y` holds
 * what that left. */
void sr_rwkv7_activate(sr_matrix y, sr_path_activation activation);
void sr_rwkv7_activate_backward(sr_matrix d, sr_matrix y, sr_path_activation activation);

/* k, v and the removal key from what is projected. The first layer leaves its values for the
 * others. */
void sr_rwkv7_make(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                   const sr_layer_weights *weights);
void sr_rwkv7_make_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                            const sr_layer_arrays *in, const sr_layer_weights *weights,
                            const sr_layer_pointers *gradients);

#endif
