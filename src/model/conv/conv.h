/* conv.h (private): a gated short convolution (LFM2, arXiv 2511.23404), a mixer without an
 * equation: y = (c * conv(b * x)) W with three projections b, c and x of the input and no other
 * memory than the last inputs of a depthwise causal convolution. */
#ifndef SR_MODEL_CONV_CONV_H
#define SR_MODEL_CONV_CONV_H

#include "model/layer/mixer.h"

/* True if a layer with this descriptor is one: layer=conv. */
bool sr_layer_is_conv(const srnn_attention *attention);

/* Appends its tensors, as sr_layer_tensors does. */
srnn_status sr_conv_tensors(sr_tensor_table *table, const char *prefix,
                            const srnn_attention *attention, const sr_layer_dims *dims);

/* *mixer = one. Only whole rows are mixed: setup->part must be NULL. */
srnn_status sr_mixer_of_conv(sr_mixer *mixer, sr_backend *backend, const sr_layer_setup *setup);

/* Inputs of a token that it keeps while it is fed by pieces. */
int64_t sr_conv_state_numbers(const srnn_attention *attention, int C);

#endif
