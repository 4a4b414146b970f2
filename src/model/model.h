/* model.h: a model's weights: one arena laid out by one table. */
#ifndef SR_MODEL_MODEL_H
#define SR_MODEL_MODEL_H

#include "model/config/config.h"
#include "ops/backend.h"

/* The tensors of a decoder layer around its mixers, numbered after theirs: those of the second
 * mixer from SR_LAYER_SLOTS on. */
typedef enum sr_block_slot {
    SR_BLOCK_INPUT_NORM = SR_MIXER_SLOTS, /* norms have a weight, and a bias after it */
    SR_BLOCK_MLP_NORM = SR_BLOCK_INPUT_NORM + 2,
    SR_BLOCK_MIXER_POST_NORM = SR_BLOCK_MLP_NORM + 2, /* of what the mixer made */
    SR_BLOCK_MLP_POST_NORM = SR_BLOCK_MIXER_POST_NORM + 2,
    SR_BLOCK_ALPHA = SR_BLOCK_MLP_POST_NORM + 2, /* alpha_p and alpha_n of xIELU */
    SR_BLOCK_GATE_WEIGHT = SR_BLOCK_ALPHA + 2,
    SR_BLOCK_GATE_BIAS,
    SR_BLOCK_UP_WEIGHT,
    SR_BLOCK_UP_BIAS,
    SR_BLOCK_DOWN_WEIGHT,
    SR_BLOCK_DOWN_BIAS,
    /* Where the MLP is a mixture of experts, those above have the experts' one after the other. */
    SR_BLOCK_ROUTER_WEIGHT,
    SR_BLOCK_ROUTER_BIAS,
    SR_BLOCK_SHARED_ROUTER_WEIGHT,
    SR_BLOCK_SHARED_GATE_WEIGHT = SR_BLOCK_SHARED_ROUTER_WEIGHT + 2,
    SR_BLOCK_SHARED_UP_WEIGHT = SR_BLOCK_SHARED_GATE_WEIGHT + 2,
    SR_BLOCK_SHARED_DOWN_WEIGHT = SR_BLOCK_SHARED_UP_WEIGHT + 2,
    SR_BLOCK_SLOTS = SR_BLOCK_SHARED_DOWN_WEIGHT + 2,
} sr_block_slot;

/* One decoder layer's tensors in an arena, NULL where it has none. */
typedef struct sr_block_pointers {
    sr_layer_pointers mixers[2];
    void *slot[SR_BLOCK_SLOTS - SR_MIXER_SLOTS];
} sr_block_pointers;

static inline void *sr_block_at(const sr_block_pointers *block, sr_block_slot slot) {
    return block->slot[slot - SR_BLOCK_INPUT_NORM];
}

/* A whole model's tensors in an arena: of weights or of gradients. */
typedef struct sr_model_pointers {
    void *embedding;          /* (V, C) */
    void *head;               /* (V, C); the embedding if tied */
    void *norm;               /* (C) */
    void *norm_bias;          /* (C), of LayerNorm */
    sr_block_pointers *block; /* (L), owned */
} sr_model_pointers;

/* Numbers from `first` of the arena on that lie at `at` of another array. */
typedef struct sr_share {
    int64_t first, at, count;
} sr_share;

typedef struct sr_model {
    sr_backend *backend;
    sr_model_config config;
    sr_tensor_table table;
    float *weights;    /* (table.numbers), device memory: the masters; see sr_model_drop_masters */
    void *working;     /* the same in the backend's number type; the masters where that is float */
    size_t code_bytes; /* of codes of the working copy that the backend holds */
    sr_model_pointers master, worker; /* into weights, or wide; into working */
    /* (L) of tables (config.positions, the width that RoPE rotates), device memory, NULL where a
     * layer has no RoPE; layers with the same angles share one, owned by the first. */
    float **rope_tables;

    /* The working copy is bf16 though the backend's numbers are float: of a model to be read on a
     * CPU. */
    bool narrow;
    bool read_only; /* made by sr_model_create_read_only */

    /* Of a model without its masters (sr_model_drop_masters): the tensors used as floats. */
    float *wide; /* (wide_numbers), device memory; NULL: it has its masters */
    size_t wide_numbers, wide_count;
    sr_share *wide_parts; /* (wide_count), owned: where each of them lies in wide */
} sr_model;

/* A model with weights that are all zero; the backend must outlive it. */
srnn_status sr_model_create(sr_model **model, sr_backend *backend, const sr_model_config *config);
void sr_model_free(sr_model *model);

/* A model for inference alone, on a backend whose products are bf16: matrices and embedding are
 * bf16, the other tensors float (sr_model_drop_masters), and there is no float copy. The numbers
 * are not set; sr_model_place says where each tensor's belong. */
srnn_status sr_model_create_read_only(sr_model **model, sr_backend *backend,
                                      const sr_model_config *config);

/* Where the numbers of a tensor lie, device memory, and of which type: its master, or what a model
 * without masters has. */
sr_matrix sr_model_place(const sr_model *model, const sr_tensor_spec *spec);

/* The embedding (V, C), and the head's product. */
sr_matrix sr_model_embedding(const sr_model *model);
sr_linear sr_model_head(const sr_model *model);

/* Sets the weights to their initial values for this seed; `range`: the standard deviation of
 * matrices, Hugging Face's initializer_range. */
srnn_status sr_model_initialise(sr_model *model, double range, uint64_t seed);

/* One tensor of the table; call sr_model_narrow after the last. */
srnn_status sr_model_initialise_tensor(sr_model *model, size_t index, double range, uint64_t seed);

/* The table of a configuration's tensors; free with sr_tensor_table_free. */
srnn_status sr_model_tensors(sr_tensor_table *table, const sr_model_config *config);

/* Updates the working copy after the masters were written by anything but the optimizer. */
srnn_status sr_model_narrow(sr_model *model);

/* Frees the masters, where the working copy is another array and the masters are stored elsewhere.
 * Products read the working copy; every other tensor gets its own place in `wide`. From now on
 * `weights` is borrowed memory, not freed with the model. Numbers are lost: they are written
 * afterwards. */
srnn_status sr_model_drop_masters(sr_model *model);

/* Finds every tensor of `model` in an arena of such numbers laid out by its table; free with
 * sr_model_pointers_free. */
srnn_status sr_model_pointers_make(sr_model_pointers *pointers, const sr_model *model, void *arena,
                                   srnn_dtype dtype);
void sr_model_pointers_free(sr_model_pointers *pointers);

/* Bytes of the tables of RoPE. */
size_t sr_model_rope_bytes(const sr_model_config *config);

/* Weights that multiply every token, embedding not counted: the N of 6 N FLOPs per token. */
size_t sr_model_multiplying(const sr_model *model);

#endif
