/* config_family.h: the kinds of model that config.json may name, which are Llamas here. */
#ifndef SR_MODEL_CONFIG_FAMILY_H
#define SR_MODEL_CONFIG_FAMILY_H

#include "model/config.h"

#include <jansson.h>

typedef enum sr_family_bias {
    SR_FAMILY_BIAS_MEMBER = 0, /* as attention_bias says */
    SR_FAMILY_BIAS_NONE,
    SR_FAMILY_BIAS_QKV, /* on q, k and v, whatever the file says */
} sr_family_bias;

typedef enum sr_family_window {
    SR_FAMILY_WINDOW_OFFERED = 0, /* counts unless use_sliding_window is false */
    SR_FAMILY_WINDOW_ASKED,       /* counts only if use_sliding_window is true */
    SR_FAMILY_WINDOW_ALWAYS,
} sr_family_window;

/* A family, and what transformers takes for members that its file leaves out. */
typedef struct sr_family {
    const char *model_type;
    const char *architecture;
    int key_heads; /* num_key_value_heads; 0: num_attention_heads */
    int positions; /* max_position_embeddings */
    int window;    /* sliding_window; 0: none */
    sr_family_window window_use;
    sr_family_bias bias;
} sr_family;

/* The family a file names, Llama if it names none; NULL if it is none of these. */
const sr_family *sr_family_named(const json_t *model_type);

/* The family under which transformers computes what this program computes: Llama or Qwen2, and for
 * all that they are not "softrnn", which a transformers without softrnn refuses. */
const sr_family *sr_family_of(const sr_model_config *config);

/* True if transformers has the family; false for "softrnn". */
bool sr_family_in_transformers(const sr_family *family);

/* Their names, for a message: "llama, mistral, ...". */
void sr_family_names(char *text, size_t bytes);

#endif
