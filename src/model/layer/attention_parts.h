/* attention_parts.h (private): what forward, backward and feeding by pieces share. */
#ifndef SR_MODEL_LAYER_ATTENTION_PARTS_H
#define SR_MODEL_LAYER_ATTENTION_PARTS_H

#include "model/layer/attention.h"

/* Bytes of what crosses a cut of all batch rows, in each direction. */
typedef struct sr_crossing_bytes {
    sr_context_way way; /* `state` is 0 unless it is the state */
    size_t state, shift, convs[SR_FORM_CONVS];
} sr_crossing_bytes;

/* Where it stands in the memory of a crossing, by sr_neighbour: what comes from the part before,
 * what the part after receives. In backward their gradients take the same places. */
typedef struct sr_crossing_layout {
    sr_crossing_bytes each;
    size_t state[2], shift[2], convs[2][SR_FORM_CONVS];
    size_t bytes; /* in all; 0: rows are whole */
} sr_crossing_layout;

/* Offsets in bytes of a layer's arrays. */
typedef struct sr_layer_layout {
    size_t projected, convolved, o, normed, wide, rstd, attention;
    size_t shifted, taps;        /* of token shifts */
    size_t learned[SR_OPERANDS]; /* what the equation learns itself */
    size_t share;                /* one gradient of columns that several read */
    size_t parts;                /* of the sums of norms */
    size_t state;                /* the gradient of a part's initial state */
    size_t bytes;                /* in all */
} sr_layer_layout;

/* The arrays themselves, or their gradients; matrices of the backend's number type. */
typedef struct sr_layer_arrays {
    sr_matrix projected; /* (rows, width): all projections side by side */
    sr_matrix convolved; /* (rows, channels): what convolutions make of some of them */
    sr_matrix o;         /* (rows, H * Dv) */
    sr_matrix shifted;   /* (rows, shifts * C): the input after each token shift */
    float *taps;         /* (shifts, C, 2): these as convolutions */
    sr_matrix normed;    /* (rows, C): the input after the layer's own norm, where it has one */
    float *wide;         /* (rows, C): the layer's input as that norm reads it, where it is bf16 */
    float *rstd;         /* (rows), as normed */
    void *attention;     /* what the equation saves */
    float *learned[SR_OPERANDS]; /* gradients only, as the next two */
    void *share;                 /* (rows, C or more) */
    float *parts;                /* (SR_ROW_PARTS, C), or as much as norms of q and k need */
    void *state;                 /* as srnn_states.d_initial */
} sr_layer_arrays;

/* Of layers whose states do not travel, see context/ring.h and context/heads.h. */
typedef struct sr_layer_ring sr_layer_ring;
typedef struct sr_layer_heads sr_layer_heads;

struct sr_attention_layer {
    sr_backend *backend;
    srnn_attention attention;
    sr_layer_dims dims;
    sr_layer_wiring wiring;
    int B, T;
    int64_t stride;         /* numbers from one row of `projected` to the next */
    int64_t shared_columns; /* the widest gradient that is added to another */
    const float *rope_table;
    int64_t rope_positions;
    const int32_t *positions;             /* (B*T) of each token in its document; not owned */
    float *first_values, *d_first_values; /* as in sr_layer_setup */
    int64_t first_columns;
    srnn_problem problem;
    srnn_plan *plan;
    sr_layer_layout saved, scratch;
    sr_row_part part;
    sr_crossing_layout crossing;
    sr_layer_ring *ring;   /* owned; NULL unless parts of rows exchange keys */
    sr_layer_heads *heads; /* owned; NULL unless they exchange heads; then there is no plan */
};

/* Some tokens of every batch row. */
typedef struct sr_layer_piece {
    int64_t rows; /* B*T */
    int64_t T;
    const int32_t *positions;          /* (rows) */
    const void *const *history;        /* of each convolution, or NULL */
    const void *shift_history;         /* of token shifts, or NULL */
    const sr_rmsnorm *norm;            /* x is room for this norm; NULL: x is there */
    const sr_layer_crossing *crossing; /* of parts of rows, or NULL */
    bool *rope_applied; /* not NULL: RoPE may be left out, and this says whether it was applied */
} sr_layer_piece;

sr_layer_arrays sr_layer_arrays_at(const sr_attention_layer *layer, const sr_layer_layout *layout,
                                   void *base, int64_t rows);

/* Products of the wiring from `first` on, as the backend multiplies them. */
void sr_layer_linears(sr_linear *linears, const sr_attention_layer *layer,
                      const sr_layer_weights *weights, int first, int count);

/* From x to everything that the equation reads, with convolution and position applied. */
srnn_status sr_layer_project(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                             const sr_layer_weights *weights, const sr_layer_piece *piece);

/* Multiplies columns of `projected`, or of its gradient, by the factors of their parts. */
srnn_status sr_layer_scale_parts(const sr_attention_layer *layer, const sr_layer_arrays *arrays);

/* What a projection with this number of a token shift reads: the shifted input, or x. */
sr_matrix sr_layer_shifted(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                           sr_matrix x, int shift);

/* What is projected: x, or what the layer's own norm makes of it. */
sr_matrix sr_layer_input(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                         sr_matrix x);
sr_rmsnorm sr_layer_own_norm(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                             sr_matrix x, const sr_layer_weights *weights);

/* x as a float array, for the layer's own norm and residual: x itself, or a copy in `wide`. */
float *sr_layer_input_as_float(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                               sr_matrix x);

/* The arrays as the equation takes them, for T tokens in each batch row. */
srnn_operands sr_layer_operands(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                const sr_layer_weights *weights, int64_t T);
srnn_tensor sr_layer_output(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            int64_t T);

/* The projection of what the equation makes, to N columns. */
sr_linear sr_layer_output_linear(const sr_layer_weights *weights, int64_t N);

/* Whether RoPE rotates whole heads in halves, last of all: what attention kernels can do
 * themselves. */
bool sr_layer_rope_is_plain(const sr_attention_layer *layer);

/* The norm of q (0) or k (1). */
sr_norm sr_layer_qk_norm(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                         const sr_layer_weights *weights, int which);

/* What q is multiplied by for softmax_scale; 1: nothing. */
float sr_layer_q_factor(const sr_attention_layer *layer);
sr_matrix sr_layer_q(const sr_attention_layer *layer, const sr_layer_arrays *arrays);

/* Turns the heads of q and k, or back. */
srnn_status sr_layer_rope(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                          const int32_t *positions, bool back);

/* One convolution of the wiring. */
sr_short_conv sr_layer_conv(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_weights *weights, const sr_layer_piece *piece,
                            int which);

#endif
