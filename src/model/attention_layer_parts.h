/* attention_layer_parts.h (private): what forward, backward and feeding by pieces share. */
#ifndef SR_MODEL_ATTENTION_LAYER_PARTS_H
#define SR_MODEL_ATTENTION_LAYER_PARTS_H

#include "model/attention_layer.h"

/* Offsets in bytes of a layer's arrays. */
typedef struct sr_layer_layout {
    size_t projected, qkv, o, attention;
    size_t learned[SR_OPERANDS]; /* what the equation learns itself */
    size_t bytes;                /* in all */
} sr_layer_layout;

/* The arrays themselves, or their gradients; matrices of the backend's number type. */
typedef struct sr_layer_arrays {
    sr_matrix projected; /* (rows, width): all projections of x side by side */
    sr_matrix qkv;   /* (rows, channels): q, k, v as the equation takes them; the first columns of
                            `projected` unless there is a short convolution between them */
    sr_matrix o;     /* (rows, queries) */
    void *attention; /* what the equation saves */
    float *learned[SR_OPERANDS]; /* gradients only */
} sr_layer_arrays;

/* One projection of x: its weight, followed by its bias, and its columns of `projected`. */
typedef struct sr_projection {
    sr_layer_slot weight;
    int64_t first, columns;
} sr_projection;

struct sr_attention_layer {
    sr_backend *backend;
    srnn_attention attention;
    sr_layer_dims dims;
    int B, T;
    int queries, keys, channels; /* H*D, Hkv*D, and q, k, v together */
    sr_projection projections[SR_LINEAR_GROUP_MAX];
    int projection_count;
    int64_t width; /* columns of all projections; rows of them stand `stride` numbers apart */
    int64_t stride;
    const float *rope_table;
    int64_t rope_positions;
    const int32_t *positions; /* (B*T) of each token in its document; not owned */
    srnn_problem problem;
    srnn_plan *plan;
    sr_layer_layout saved, scratch;
};

/* Some tokens of every batch row. */
typedef struct sr_layer_piece {
    int64_t rows; /* B*T */
    int64_t T;
    const int32_t *positions; /* (rows) */
    const void *history;      /* of the short convolution, or NULL */
    const sr_rmsnorm *norm;   /* x is room for this norm; NULL: x is there */
} sr_layer_piece;

sr_layer_arrays sr_layer_arrays_at(const sr_attention_layer *layer, const sr_layer_layout *layout,
                                   void *base, int64_t rows);

/* The projections as the backend multiplies them, or their gradients. */
void sr_layer_linears(sr_linear *linears, const sr_attention_layer *layer,
                      const sr_layer_weights *weights);

/* The projection with this weight, or NULL if the layer has none. */
const sr_projection *sr_layer_projection(const sr_attention_layer *layer, sr_layer_slot weight);

/* From x to q, k, v and gates, with convolution and position applied. */
srnn_status sr_layer_project(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                             const sr_layer_weights *weights, const sr_layer_piece *piece);

/* The arrays as the equation takes them, for T tokens in each batch row. */
srnn_operands sr_layer_operands(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                const sr_layer_weights *weights, int64_t T);
srnn_tensor sr_layer_output(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            int64_t T);

sr_rope sr_layer_rope(const sr_attention_layer *layer, const int32_t *positions);
sr_short_conv sr_layer_conv(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_weights *weights, const sr_layer_piece *piece);

#endif
