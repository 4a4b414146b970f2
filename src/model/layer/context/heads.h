/* heads.h (private): attention over parts of rows whose heads change places: each part computes
 * some heads of some rows, but these over all tokens, by the ordinary calls. For what neither a
 * state nor a ring of keys carries from part to part.
 *
 * A part sends what its tokens give to a head to the part that computes the head, and receives the
 * outputs; gradients go the same ways back. (DeepSpeed-Ulysses, Jacobs et al. 2023.) With more
 * parts than heads of keys, or heads that depend on each other, parts share the batch's rows, and
 * where there are too few of these as well, some parts compute none. */
#ifndef SR_MODEL_LAYER_CONTEXT_HEADS_H
#define SR_MODEL_LAYER_CONTEXT_HEADS_H

#include "model/layer/attention_parts.h"

/* Numbers that all parts send for a batch; as many forward as backward. */
double sr_heads_numbers_of(const srnn_problem *problem, int T, int parts);

/* The plan of the part's heads and their buffers; layers that share the layer share them. */
srnn_status sr_heads_create(sr_layer_heads **heads, const sr_attention_layer *layer);
void sr_heads_free(sr_layer_heads *heads); /* accepts NULL */

/* Bytes of what forward keeps for backward, and of what the heads hold. */
size_t sr_heads_saved_bytes(const sr_layer_heads *heads);
size_t sr_heads_bytes(const sr_layer_heads *heads);

srnn_status sr_heads_documents(sr_layer_heads *heads, const sr_documents *documents);

/* srnn_attention_forward over all parts of the rows, and backward, which writes gradients of what
 * is learned for this part's heads, and zeros. */
srnn_status sr_heads_attend(const sr_attention_layer *layer, srnn_tensor o, const srnn_operands *in,
                            void *saved);
srnn_status sr_heads_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                 srnn_tensor d_o, const srnn_operands *in, void *saved);

#endif
