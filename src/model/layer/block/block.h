/* block.h: one decoder layer: norm, mixer, norm, MLP, each pair inside a residual; the norms may
 * also stand after mixer and MLP, and the MLP next to the mixer. A model of Avey has no MLPs. */
#ifndef SR_MODEL_LAYER_BLOCK_BLOCK_H
#define SR_MODEL_LAYER_BLOCK_BLOCK_H

#include "model/layer/mixer.h"
#include "model/model.h"

/* What backward computes again instead of reading what forward left: less memory, the same bits. */
typedef enum sr_recompute {
    SR_RECOMPUTE_NONE = 0,
    SR_RECOMPUTE_ATTENTION, /* the mixer's half; kept: x, and from `middle` on everything */
    SR_RECOMPUTE_BLOCK,     /* everything; kept: x */
} sr_recompute;

/* What forward leaves for backward, in device memory; void: of the backend's number type. Its
 * mixer's half lies between x and middle (normed, rstd, mixer, mixed, post_normed), its MLP's half
 * is the rest, which is NULL without an MLP. */
typedef struct sr_block_saved {
    /* Whether normed, mlp_normed and activated are SR_HANDED_CODES where the layers that read them
     * take that; the notes of norms. */
    bool codes;
    sr_matrix_note *normed_note, *mlp_normed_note;

    float *x;         /* (rows, C) input of the layer */
    void *normed;     /* (rows, C) */
    float *rstd;      /* (rows) */
    void *mixer;      /* sr_mixer_saved_bytes */
    float *middle;    /* (rows, C) after the mixer */
    void *mlp_normed; /* (rows, C) */
    float *mlp_rstd;  /* (rows) */
    void *up;         /* (rows, inner): gate and up side by side, or up alone */
    void *activated;  /* (rows, F) */

    /* Of a mixture of experts; up, activated, expert_in and expert_out of one expert at a time. */
    void *router;      /* (rows, experts): logits */
    float *weights;    /* (rows, experts) */
    void *expert_in;   /* (rows, C) */
    float *expert_out; /* (rows, C) */
    int32_t *places;   /* (rows) */

    /* Of blocks with norms after mixer and MLP, or with a multiplier of the residual; else NULL. */
    float *mixed;       /* (rows, C): what the mixer made */
    float *transformed; /* (rows, C): what the MLP made */
    void *post_normed;  /* (rows, C): the norm of one of them; not read by backward */

    sr_layer_crossing crossing; /* of the mixer; each layer has memory of its own */
} sr_block_saved;

/* Scratch memory of backward, shared by all layers. `parts` comes first, at the same place in all
 * of them. Unless it is codes, the gradient of `up` is written over it where there is a gate, else
 * over d_activated. */
typedef struct sr_block_scratch {
    float *parts;      /* (SR_ROW_PARTS, 2C) */
    void *d_normed;    /* (rows, C) */
    void *d_branch;    /* (rows, C): of what mixer or MLP made, where `mixed` is saved */
    void *d_parallel;  /* (rows, C): d_normed from the MLP, where it stands next to the mixer */
    void *mixer;       /* sr_mixer_scratch_bytes; the same memory as what follows */
    void *d_activated; /* (rows, F) */
    void *d_up;        /* (rows, inner): the gradient of `up` in SR_HANDED_CODES; else NULL */
    sr_matrix_note *d_activated_note, *d_up_note;

    /* Of a mixture of experts. */
    void *d_expert;   /* (rows, C): of the output of one */
    float *d_wide;    /* (rows, C): of what all of them read */
    float *d_weights; /* (rows, experts) */
    void *d_router;   /* (rows, experts): of the logits */
} sr_block_scratch;

/* The gradient of the residual stream, (rows, C): in float, and a copy in the number type. */
typedef struct sr_block_gradient {
    float *wide;
    void *narrow;             /* `wide` where the number type is float */
    sr_matrix_note *measured; /* not NULL: norms before the layers measure `narrow`, */
    bool codes;               /* or write it as SR_HANDED_CODES: where all layers take that */
} sr_block_gradient;

/* Sees what the equation reads in a layer and what it makes, as floats in host memory, and may
 * change o before the layer continues. */
typedef struct sr_observer {
    srnn_status (*see)(void *context, int layer, const srnn_operands *in, srnn_tensor o);
    void *context;
} sr_observer;

/* One layer of a model. */
typedef struct sr_block {
    sr_backend *backend;
    const sr_model_config *config;
    const sr_mixer *mixer;
    const sr_block_pointers *master, *worker;
    bool narrow; /* as in sr_model */
    int64_t rows;
    int layer;            /* its number, for the observer */
    sr_observer observer; /* of sr_block_forward; { 0 }: none */
    float *largest;       /* (H): see sr_pass_watch_scores; NULL: not wanted */

    /* Where saved->codes, the note of `activated`, in memory that no other layer writes, so that it
     * is there when this layer, or the next one, is computed again; and that of the layer before;
     * NULL: this is the first. */
    sr_matrix_note *activated_note, *activated_before;
} sr_block;

/* Whether its norms are RMS norms of what mixer and MLP read, with their weights as they are, and
 * the mixer's, if it multiplies in 8 bits, may be SR_HANDED_CODES. */
bool sr_block_takes_codes(const sr_block *block);

/* Whether, then, the gradient of the residual may be SR_HANDED_CODES: all that reads `narrow` are
 * layers that multiply in 8 bits. */
bool sr_block_takes_gradient_codes(const sr_block *block);

/* Bytes of one saved, without x; and its arrays in that many bytes, x NULL. */
size_t sr_block_saved_bytes(const sr_block *block);
sr_block_saved sr_block_saved_at(const sr_block *block, void *memory);

/* The same in two pieces of memory. */
size_t sr_block_mixer_half_bytes(const sr_block *block);
size_t sr_block_mlp_half_bytes(const sr_block *block);
sr_block_saved sr_block_saved_split(const sr_block *block, void *mixer_half, void *mlp_half);

size_t sr_block_scratch_bytes(const sr_block *block);
size_t sr_block_parts_bytes(const sr_block *block); /* of `parts`, at its beginning */
sr_block_scratch sr_block_scratch_at(const sr_block *block, void *memory);

/* out (rows, C) = the layer's output for saved->x; fills the rest of saved. out may be NULL: only
 * saved is wanted. */
srnn_status sr_block_forward(const sr_block *block, float *out, const sr_block_saved *saved);

/* The first half of it alone: out (rows, C) = saved->x + what the mixer adds; fills the mixer's
 * half of saved. And its backward pass, for what the mixer and the norm after it learn only:
 * adds to their gradients, given d_out (rows, C), number type. */
srnn_status sr_block_mix(const sr_block *block, float *out, const sr_block_saved *saved);
srnn_status sr_block_mix_backward(const sr_block *block, void *d_out,
                                  const sr_block_pointers *gradient, const sr_block_saved *saved,
                                  const sr_block_scratch *scratch);

/* Recomputes what the choice does not keep, from saved->x. */
srnn_status sr_block_recompute(const sr_block *block, const sr_block_saved *saved,
                               sr_recompute what);

/* d: the gradient of the output turns into that of the input. Adds to the gradients. Overwrites
 * saved->up. */
srnn_status sr_block_backward(const sr_block *block, sr_block_gradient d,
                              const sr_block_pointers *gradient, const sr_block_saved *saved,
                              const sr_block_scratch *scratch);

/* x (rows, C), a piece of every batch row, turns into the layer's output, with what came before in
 * `state`. saved is scratch; its x is not used, place->saved neither. */
srnn_status sr_block_feed(const sr_block *block, float *x, sr_mixer_state *state,
                          const sr_block_saved *saved, const sr_layer_piece_place *place);

#endif
