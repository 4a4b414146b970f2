/* family.h: the families of models that config.json may name (model_type). */
#ifndef SR_MODEL_CONFIG_FAMILY_H
#define SR_MODEL_CONFIG_FAMILY_H

#include "model/config/config.h"

#include <jansson.h>

typedef enum sr_family_bias {
    SR_FAMILY_BIAS_MEMBER = 0, /* as attention_bias says */
    SR_FAMILY_BIAS_QKV,        /* on q, k and v, whatever the file says */
} sr_family_bias;

/* A family, and what transformers takes for members that its file leaves out. */
typedef struct sr_family {
    const char *model_type;
    const char *architecture;
    int key_heads;    /* num_key_value_heads; 0: num_attention_heads */
    int positions;    /* max_position_embeddings */
    const char *ends; /* eos_token_id, as JSON; NULL: none */
    bool null_ends;   /* they also stand for a null in the file */
    sr_family_bias bias;
    const struct sr_config_system *system; /* NULL: the file is a Llama's, or as the next says */
    const struct sr_published *published;  /* not for files that softrnn wrote */
    const char *loader;                    /* another program that loads such a folder, or NULL */
} sr_family;

/* The family a file names, Llama if it names none; NULL if it is none of these. */
const sr_family *sr_family_named(const json_t *model_type);

/* The family by number, NULL past the end. */
const sr_family *sr_family_at(size_t index);

/* The family that has our tensor names and that transformers computes alike: Llama or Qwen2. Other
 * models are "softrnn", which transformers refuses unless softrnn's package is there. */
const sr_family *sr_family_of(const sr_model_config *config);

/* The family whose files other programs load as the same model: one of the published systems where
 * it fits, else sr_family_of. */
srnn_status sr_model_config_public(const sr_family **family, const sr_model_config *config);

/* Writes config.json as files of this family are, which must fit. `dtype`: of the weights stored
 * with it. */
srnn_status sr_model_config_write(const sr_model_config *config, const sr_family *family,
                                  sr_dtype dtype, const char *path);

/* The tensor names of the family's files; NULL: softrnn's own. */
const sr_tensor_names *sr_family_tensor_names(const sr_family *family);

/* Their names, for a message: "llama, mistral, ...". */
void sr_family_names(char *text, size_t bytes);

#endif
