/* block.h: one decoder layer: norm, attention, norm, MLP, each around a residual. */
#ifndef SR_MODEL_BLOCK_H
#define SR_MODEL_BLOCK_H

#include "model/attention_layer.h"
#include "model/model.h"

/* What forward leaves for backward, in backend memory. */
typedef struct sr_block_saved {
    float *x;          /* (rows, C) input of the layer */
    float *normed;     /* (rows, C) */
    float *rstd;       /* (rows) */
    void *attention;   /* sr_attention_layer_saved_bytes */
    float *middle;     /* (rows, C) after attention */
    float *mlp_normed; /* (rows, C) */
    float *mlp_rstd;   /* (rows) */
    float *gate;       /* (rows, F), swiglu only */
    float *up;         /* (rows, F) */
    float *activated;  /* (rows, F) */
} sr_block_saved;

/* What backward needs beside, shared by all layers. */
typedef struct sr_block_scratch {
    float *d_normed;    /* (rows, C) */
    float *d_activated; /* (rows, F) */
    float *d_gate;      /* (rows, F), swiglu only */
    float *parts;       /* (SR_ROW_PARTS, C) */
    void *attention;    /* sr_attention_layer_scratch_bytes */
} sr_block_scratch;

/* Sees what the equation reads in a layer and what it makes, in backend memory, and may change o
 * before the layer goes on. */
typedef struct sr_observer {
    srnn_status (*see)(void *context, int layer, const srnn_operands *in, srnn_tensor o);
    void *context;
} sr_observer;

/* One layer of a model. */
typedef struct sr_block {
    sr_backend *backend;
    const sr_model_config *config;
    sr_attention_layer *attention;
    const sr_block_pointers *weight;
    int64_t rows;
    int layer;            /* its number, for the observer */
    sr_observer observer; /* of sr_block_forward; { 0 }: nobody */
} sr_block;

/* Bytes of one saved, without x; and its arrays in that many bytes, x NULL. */
size_t sr_block_saved_bytes(const sr_block *block);
sr_block_saved sr_block_saved_at(const sr_block *block, void *memory);
size_t sr_block_scratch_bytes(const sr_block *block);
sr_block_scratch sr_block_scratch_at(const sr_block *block, void *memory);

/* out (rows, C) = the layer's output for saved->x; fills the rest of saved. out may be NULL: only
 * saved is wanted. */
srnn_status sr_block_forward(const sr_block *block, float *out, const sr_block_saved *saved);

/* d (rows, C): the gradient of the output turns into that of the input. Adds to the gradients. */
srnn_status sr_block_backward(const sr_block *block, float *d, const sr_block_pointers *gradient,
                              const sr_block_saved *saved, const sr_block_scratch *scratch);

/* x (rows, C), T tokens of every batch row, turns into the layer's output, with what came before in
 * `state`. saved is scratch; its x is not used. */
srnn_status sr_block_feed(const sr_block *block, float *x, sr_layer_state *state,
                          const sr_block_saved *saved, int T);

#endif
