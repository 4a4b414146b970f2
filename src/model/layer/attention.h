/* attention.h: one attention layer: projections, gates, short convolution, position, the
 * equation, output projection; forward and backward. */
#ifndef SR_MODEL_LAYER_ATTENTION_H
#define SR_MODEL_LAYER_ATTENTION_H

#include "model/layer/context/documents.h"
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

    /* Batch rows are parts of longer ones; T is that of the part. NULL: they are whole. Copied. */
    const sr_row_part *part;

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

/* Other documents from now on. Takes no memory. */
srnn_status sr_attention_layer_documents(sr_attention_layer *layer, const sr_documents *documents);

/* Other positions (B*T) than those of the setup from now on. */
void sr_attention_layer_place(sr_attention_layer *layer, const int32_t *positions);

/* Bytes of backend memory: what forward leaves for backward, and backward's scratch memory. */
size_t sr_attention_layer_saved_bytes(const sr_attention_layer *layer);
size_t sr_attention_layer_scratch_bytes(const sr_attention_layer *layer);

/* Bytes that the layer itself holds. */
size_t sr_attention_layer_own_bytes(const sr_attention_layer *layer);

/* What crosses the ends of a part of a row, kept from forward to backward. */
typedef struct sr_layer_crossing {
    void *memory; /* sr_attention_layer_crossing_bytes, zeros at first; NULL: rows are whole */
    bool known;   /* forward runs again: what came from the part before is there */
} sr_layer_crossing;

size_t sr_attention_layer_crossing_bytes(const sr_attention_layer *layer);

/* Whether x of that many rows may be SR_HANDED_CODES. */
bool sr_attention_layer_takes_codes(const sr_attention_layer *layer,
                                    const sr_layer_weights *weights, int64_t rows);

/* The same of d_y. */
bool sr_attention_layer_takes_gradient_codes(const sr_attention_layer *layer,
                                             const sr_layer_weights *weights, int64_t rows);

/* Forward in two halves: from x (B*T, C) to the equation's output o, in `saved`; from o to y (B*T,
 * C) = the layer's output + addend, whose data may be NULL. */
srnn_status sr_attention_layer_attend(sr_attention_layer *layer, sr_matrix x,
                                      const sr_layer_weights *weights, void *saved,
                                      const sr_layer_crossing *crossing);
srnn_status sr_attention_layer_finish(sr_attention_layer *layer, sr_matrix y, sr_matrix addend,
                                      sr_matrix x, const sr_layer_weights *weights, void *saved);

/* Between them: what the equation read (q, k, v and gates after convolution and position), and *o
 * what it made of it. */
srnn_operands sr_attention_layer_operands(const sr_attention_layer *layer, srnn_tensor *o,
                                          const sr_layer_weights *weights, void *saved);

/* Rows of a projection's weight, and of its bias, that make the queries or the keys. */
typedef struct sr_head_rows {
    sr_layer_slot weight; /* the bias follows */
    int64_t row;          /* the first */
    int64_t heads, width;
} sr_head_rows;

/* Where the scores of a layer are products of two projections of its input, in proportion to the
 * weights of both, and go into exp. False: elsewhere, as with norms, features or convolutions. */
bool sr_attention_layer_heads(const sr_attention_layer *layer, sr_head_rows *q, sr_head_rows *k);

/* Between the two halves of forward, for such a layer: raises largest (H), device memory, to the
 * largest score of each head. */
srnn_status sr_attention_layer_largest(const sr_attention_layer *layer, float *largest,
                                       const sr_layer_weights *weights, void *saved);

/* Writes d_x and adds to every gradient, given the same x and weights and what forward saved. Its
 * parameters are forward's, and a gradient for each. */
srnn_status sr_attention_layer_backward(sr_attention_layer *layer, sr_matrix d_x,
                                        const sr_layer_pointers *gradients, sr_matrix d_y,
                                        sr_matrix x, const sr_layer_weights *weights, void *saved,
                                        void *scratch, const sr_layer_crossing *crossing);

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
size_t sr_layer_state_bytes(const sr_layer_state *state, int64_t position);

/* Into that many bytes of host memory, and out of them, which must be of a state at `position`. */
srnn_status sr_layer_state_save(const sr_layer_state *state, void *bytes);
srnn_status sr_layer_state_load(sr_layer_state *state, const void *bytes, int64_t position);

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
