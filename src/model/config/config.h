/* config.h: the shape of a Llama, as Hugging Face's config.json says it, with any attention. */
#ifndef SR_MODEL_CONFIG_CONFIG_H
#define SR_MODEL_CONFIG_CONFIG_H

#include "equation/facts.h"
#include "files/tensor.h"
#include "model/avey/avey.h"
#include "model/files/tensor_names.h"
#include "model/layer/rope.h"
#include "model/layer/sizes.h"
#include "ops/backend.h"

typedef enum sr_mlp {
    SR_MLP_SWIGLU = 0, /* down(silu(gate(x)) * up(x)) */
    SR_MLP_GELU,       /* down(gelu(up(x))): the reference's plain MLP */
    SR_MLP_NONE,       /* a layer is its attention alone, as in Mamba-2's models */
    SR_MLP_GATED,      /* down(activation(gate(x)) * up(x)) */
    SR_MLP_PLAIN,      /* down(activation(up(x))) */
} sr_mlp;

/* How far sizes may go: far beyond use, near enough to keep products in 64 bits. */
enum { SR_LAYERS_MAX = 4096, SR_WIDTH_MAX = 1 << 20, SR_VOCAB_MAX = 1 << 24 };
enum { SR_POSITIONS_MAX = 1 << 24, SR_OTHER_ENDS = 15 };

typedef struct sr_model_config {
    int V;         /* vocab_size */
    int C;         /* hidden_size */
    int F;         /* intermediate_size */
    int L;         /* num_hidden_layers */
    int H, Hkv, D; /* num_attention_heads, num_key_value_heads, head_dim */
    int positions; /* max_position_embeddings */
    sr_mlp mlp;
    sr_activation activation; /* of SR_MLP_GATED and SR_MLP_PLAIN */
    double norm_epsilon;      /* rms_norm_eps */
    bool layer_norm;          /* norms are LayerNorm with a bias, not RMS */
    bool norm_is_minus_one;   /* weights of norms are stored as w - 1 */
    double embedding_multiplier, residual_multiplier, logit_multiplier; /* 0: 1 */
    double logit_cap; /* c of logits = c tanh(logits / c); 0: none */
    double rope_theta;
    sr_rope_scaling rope_scaling;
    bool tied;             /* tie_word_embeddings: the head is the embedding */
    bool qkv_bias, o_bias; /* attention_bias */
    bool linear_unbiased;  /* which layers with a recurrent form of their own do not have */
    bool mlp_bias;
    int bos, eos;                                   /* token ids, -1: none */
    int other_ends[SR_OTHER_ENDS], other_end_count; /* further tokens that end a text */
    int stops[SR_OTHER_ENDS + 1], stop_count;       /* those of generation_config.json */
    bool head_kept; /* the file says tied, but a head that differs lies beside it and is used */
    bool reference; /* the file names the attention as the reference does, without a text form */
    const sr_tensor_names *names; /* that the files beside config.json have; NULL: those of here */
    char *source; /* config.json of the family that the model came from, owned; NULL: none */

    sr_layer_sizes given; /* for sr_model_config_attention, see sr_layer_sizes_usual */

    bool is_avey; /* blocks of Avey in place of attention and MLP, which then mean nothing */
    sr_avey avey;

    srnn_attention *attention; /* (L), owned */
    sr_layer_sizes *sizes;     /* (L), owned */
} sr_model_config;

/* Leaves { 0 }, which may be freed again. */
void sr_model_config_free(sr_model_config *config);

/* *to = a copy of *from, to be freed. */
srnn_status sr_model_config_copy(sr_model_config *to, const sr_model_config *from);

/* SRNN_OK if the sizes that all layers have in common make a model: attention is not set yet. */
srnn_status sr_model_config_check_common(const sr_model_config *config);

/* SRNN_OK if the sizes make a model. */
srnn_status sr_model_config_check(const sr_model_config *config);

/* Sets the attention of all L layers (config->L is set) from a text: one variant for all; variants
 * by layers, "0-3:norm,4-:order:2", that name every layer once; or a pattern that is repeated,
 * "3*gated_delta_net,1*softmax"; and their sizes, from the other members. */
srnn_status sr_model_config_attention(sr_model_config *config, const char *text);

/* *several: the text gives variants by layers. Then *config has as many layers as it names, with
 * their attention and heads of one number: what can be said before a model's sizes are known. Free
 * it. */
srnn_status sr_attention_by_layers(sr_model_config *config, bool *several, const char *text);

/* *text = what sr_model_config_attention reads back; free() it. */
srnn_status sr_model_config_attention_text(char **text, const sr_model_config *config);

/* Empty tokens in front of every sequence: as many as the layer that wants most. */
int sr_model_config_prefix_tokens(const sr_model_config *config);

/* True if blocks have an MLP after their mixer. */
static inline bool sr_model_config_has_mlp(const sr_model_config *config) {
    return !config->is_avey && config->mlp != SR_MLP_NONE;
}

/* True if the model says of this token that it ends a text. */
bool sr_model_config_ends(const sr_model_config *config, int32_t token);

/* The sizes of one attention layer. */
sr_layer_dims sr_model_config_dims(const sr_model_config *config, int layer);

/* True if every layer is softmax attention with the heads of the model, which is what others call a
 * Llama's. */
bool sr_model_config_is_softmax(const sr_model_config *config);

/* A model without parts that a Llama of any attention does not have. */
bool sr_model_config_is_plain(const sr_model_config *config);

/* The angles of a layer: the width that RoPE rotates, 0 where the layer has none; the theta and
 * scaling it uses. */
typedef struct sr_rope_angles_of {
    int width;
    double theta;
    sr_rope_scaling scaling;
} sr_rope_angles_of;

sr_rope_angles_of sr_model_config_rope(const sr_model_config *config, int layer);

/* The first layer with the same angles; `layer` itself if none is earlier. */
int sr_model_config_rope_first(const sr_model_config *config, int layer);

/* Adds the tokens that generation_config.json at `path` names as ends; nothing if there is none. */
srnn_status sr_model_config_read_stops(sr_model_config *config, const char *path);

/* Reads config.json. Unknown keys are ignored; known keys with values that this program does not
 * have are refused. */
srnn_status sr_model_config_read(sr_model_config *config, const char *path);

#endif
