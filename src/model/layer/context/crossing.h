/* crossing.h (private): what crosses the ends of a part of a row (part.h) in one layer: recurrent
 * states, the last inputs of convolutions and token shifts, and the gradients of both. */
#ifndef SR_MODEL_LAYER_CONTEXT_CROSSING_H
#define SR_MODEL_LAYER_CONTEXT_CROSSING_H

#include "model/layer/attention_parts.h"

/* Whole rows, and how many parts they have. */
typedef struct sr_crossing_rows {
    int T, parts;
} sr_crossing_rows;

/* What crosses a cut, for a problem with B, the number type and the device; C is the model's width.
 * A state that no kernel of the device takes does not travel. */
void sr_crossing_measure(sr_crossing_bytes *bytes, const srnn_problem *problem,
                         const sr_layer_wiring *wiring, int C, sr_crossing_rows rows);

/* Of the states alone. Fails where there are none. */
srnn_status sr_crossing_state_bytes(size_t *bytes, const srnn_problem *problem);

/* Fails where the layer cannot compute a part of a row. */
srnn_status sr_crossing_lay_out(sr_attention_layer *layer);

/* Makes the layer's plan, or that of the heads that the part computes. */
srnn_status sr_crossing_open(sr_attention_layer *layer);

/* The layer's tokens as one piece of every batch row; `history` is room for its pointers. */
sr_layer_piece sr_crossing_piece(const sr_attention_layer *layer, const sr_layer_crossing *crossing,
                                 int64_t rows, const void *history[SR_FORM_CONVS]);

/* Forward, before token shifts of x and before convolutions of what is projected: the part after
 * receives the last inputs, and those of the part before arrive. */
srnn_status sr_crossing_shift(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                              sr_matrix x, const sr_layer_piece *piece);
srnn_status sr_crossing_convs(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                              const sr_layer_weights *weights, const sr_layer_piece *piece);

/* srnn_attention_forward with the state of the part before. */
srnn_status sr_crossing_attend(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                               const srnn_operands *in, const sr_layer_piece *piece);

/* srnn_attention_backward with the gradients of both states; d is the scratch of backward. */
srnn_status sr_crossing_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                    const sr_layer_arrays *d, const srnn_operands *in,
                                    const sr_layer_arrays *saved, const sr_layer_piece *piece);

/* After short_conv_backward of convolution `which` of the wiring, with the d_out that it left: the
 * part after read the last inputs too, whose gradient is in d_x, and this part read the last inputs
 * of the part before. */
srnn_status sr_crossing_conv_back(const sr_attention_layer *layer, sr_matrix d_x, sr_matrix d_out,
                                  const sr_short_conv *conv, const sr_layer_piece *piece,
                                  int which);

/* The same for token shifts, all of which read the same inputs: before the first, after each, and
 * after the last, when d_x has the gradients of all. */
srnn_status sr_crossing_shifts_begin(const sr_attention_layer *layer, const sr_layer_piece *piece);
srnn_status sr_crossing_shift_back(const sr_attention_layer *layer, sr_matrix d_out,
                                   const sr_short_conv *shift, const sr_layer_piece *piece);
srnn_status sr_crossing_shifts_end(const sr_attention_layer *layer, sr_matrix d_x,
                                   const sr_layer_piece *piece);

#endif
