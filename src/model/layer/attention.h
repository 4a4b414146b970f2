/* attention.h: one attention layer: projections, gates, short convolution, position, the
 * equation, output projection; forward and backward. */
#ifndef SR_MODEL_LAYER_ATTENTION_H
#define SR_MODEL_LAYER_ATTENTION_H

#include "model/layer/tensors.h"
#include "ops/backend.h"

typedef struct sr_layer_setup {
    srnn_attention attention;
    sr_layer_dims dims;
    int B, T; /* batch rows; tokens in each (when fed by pieces: the longest piece) */

    /* (B*T) of each token in its document, device memory that must outlive the layer; NULL if the
     * layer will only be fed by pieces. */
    const int32_t *positions;

    /* Packed documents as in srnn_problem; NULL: every row is one document. Copied. */
    const int64_t *offsets;
    int64_t documents;

    /* (rope_positions, the width that RoPE rotates), see sr_rope_table; backend memory that must
     * outlive the layer. Not read if the variant has no position. */
    const float *rope_table;
    int64_t rope_positions;
    double rope_theta; /* of rotations that the equation does itself; 0: 10000 */

    /* (B*T, first_columns), backend memory that must outlive the layer: where the first layer of a
     * model leaves its values for later ones to mix in (RWKV-7), and their gradient, zeros between
     * passes. NULL where no layer does; the gradient also where there is no backward. */
    float *first_values, *d_first_values;
    int64_t first_columns;

    /* As in srnn_problem. */
    srnn_form form;
    int chunk;
    const char *kernel;
    size_t state_limit;
} sr_layer_setup;

/* positions (rows), host memory: where each token stands in its document; offsets as in the
 * setup. */
void sr_layer_positions(int32_t *positions, int64_t rows, int T, const int64_t *offsets,
                        int64_t documents);

/* How a layer computes. It holds no weights and no activations, so that layers of one kind can
 * share it. */
typedef struct sr_attention_layer sr_attention_layer;

srnn_status sr_attention_layer_create(sr_attention_layer **layer, sr_backend *backend,
                                      const sr_layer_setup *setup);
void sr_attention_layer_free(sr_attention_layer *layer);

/* Other documents from now on, as in the setup. Takes no memory. */
srnn_status sr_attention_layer_documents(sr_attention_layer *layer, const int64_t *offsets,
                                         int64_t documents);

/* Bytes of backend memory: what forward leaves for backward, and what backward needs beside. */
size_t sr_attention_layer_saved_bytes(const sr_attention_layer *layer);
size_t sr_attention_layer_scratch_bytes(const sr_attention_layer *layer);

/* Bytes that the layer itself holds. */
size_t sr_attention_layer_own_bytes(const sr_attention_layer *layer);

/* Forward in two halves: from x (B*T, C) to the equation's output o, in `saved`; from o to y (B*T,
 * C) = the layer's output + addend, whose data may be NULL. */
srnn_status sr_attention_layer_attend(sr_attention_layer *layer, sr_matrix x,
                                      const sr_layer_weights *weights, void *saved);
srnn_status sr_attention_layer_finish(sr_attention_layer *layer, sr_matrix y, sr_matrix addend,
                                      sr_matrix x, const sr_layer_weights *weights, void *saved);

/* Between them: what the equation read (q, k, v and gates after convolution and position), and *o
 * what it made of it. */
srnn_operands sr_attention_layer_operands(const sr_attention_layer *layer, srnn_tensor *o,
                                          const sr_layer_weights *weights, void *saved);

/* Writes d_x and adds to every gradient, given the same x and weights and what forward saved. Its
 * parameters are forward's, and a gradient for each. */
srnn_status sr_attention_layer_backward(sr_attention_layer *layer, sr_matrix d_x,
                                        const sr_layer_pointers *gradients, sr_matrix d_y,
                                        sr_matrix x, const sr_layer_weights *weights, void *saved,
                                        void *scratch);

/* ---- the same layer fed by pieces */

/* Where a piece of T tokens of every batch row stands. */
typedef struct sr_layer_piece_place {
    int T;
    const int32_t *positions; /* (B*T) of each token in its sequence, device memory */
    void *saved;              /* scratch, sr_attention_layer_saved_bytes */
    const sr_rmsnorm *norm;   /* what x is the norm of, and room for it; NULL: x is there already */
} sr_layer_piece_place;

/* What one layer of a model remembers of the tokens fed so far. */
typedef struct sr_layer_state sr_layer_state;

srnn_status sr_layer_state_create(sr_layer_state **state, sr_attention_layer *layer);
void sr_layer_state_free(sr_layer_state *state);
srnn_status sr_layer_state_reset(sr_layer_state *state);

/* The equation's own state, for its size and kind. Owned by `state`. */
const srnn_state *sr_layer_state_attention(const sr_layer_state *state);

/* Bytes of it now, with what convolutions keep. */
size_t sr_layer_state_bytes(const sr_layer_state *state);

/* Reserves memory for this many tokens in all. */
srnn_status sr_layer_state_grow(sr_layer_state *state, int64_t tokens, bool *moved);

/* A feed in parts, as in device/attention_state.h: memory for T more tokens (at most the setup's T)
 * of every batch row; what can be recorded; the host's part. run adds to y (B*T, C), float;
 * positions (B*T) in device memory; `saved` (sr_attention_layer_saved_bytes) is scratch. */
srnn_status sr_layer_state_reserve(sr_layer_state *state, int T, bool *moved);
srnn_status sr_layer_state_run(sr_layer_state *state, sr_matrix y, sr_matrix x,
                               const sr_layer_weights *weights, const sr_layer_piece_place *place);
void sr_layer_state_advance(sr_layer_state *state, int T);

#endif
