/* config.h: the shape of a decoder model, as in Hugging Face's config.json, with any attention. */
#ifndef SR_MODEL_CONFIG_CONFIG_H
#define SR_MODEL_CONFIG_CONFIG_H

#include "equation/facts.h"
#include "files/tensor.h"
#include "model/avey/avey.h"
#include "model/files/tensor_names.h"
#include "model/layer/rope.h"
#include "model/layer/sizes.h"
#include "ops/backend.h"

/* Limits of sizes: larger than any model in use, small enough that products fit 64 bits. */
enum { SR_LAYERS_MAX = 4096, SR_WIDTH_MAX = 1 << 20, SR_VOCAB_MAX = 1 << 24 };
enum { SR_POSITIONS_MAX = 1 << 24, SR_OTHER_ENDS = 15 };

typedef enum sr_mlp {
    SR_MLP_SWIGLU = 0, /* down(silu(gate(x)) * up(x)) */
    SR_MLP_GELU,       /* down(gelu(up(x))): the reference's plain MLP */
    SR_MLP_NONE,       /* a layer is its attention alone, as in Mamba-2's models */
    SR_MLP_GATED,      /* down(activation(gate(x)) * up(x)) */
    SR_MLP_PLAIN,      /* down(activation(up(x))) */
} sr_mlp;

/* MLPs that are a mixture of experts, in the layers that have no plain one. */
typedef struct sr_experts {
    int count, chosen; /* how many, and of them for a token; 0: every MLP is plain */
    int width;         /* of one, as F of a plain MLP */
    int shared_width;  /* of one more that every token sees, behind a gate; 0: none */
    bool renormalised; /* the weights of the chosen add up to 1 */
    bool router_bias;
    unsigned char plain[SR_LAYERS_MAX / 8]; /* one bit for each layer that has a plain MLP */
} sr_experts;

static inline void sr_experts_set_plain(sr_experts *experts, int layer) {
    experts->plain[layer / 8] |= (unsigned char)(1u << layer % 8);
}

/* What mixes the tokens in the blocks of a model; model/mixers.h says what follows from it. */
typedef enum sr_mixer_kind {
    SR_MIXER_ATTENTION = 0,
    SR_MIXER_AVEY, /* blocks of Avey in place of attention and MLP */
} sr_mixer_kind;

/* Numbers that multiply what passes inside a layer (Falcon-H1). */
typedef enum sr_factor {
    SR_FACTOR_IN, /* what the first mixer reads, and what it makes */
    SR_FACTOR_OUT,
    SR_FACTOR_PARALLEL_IN, /* the second */
    SR_FACTOR_PARALLEL_OUT,
    SR_FACTOR_PARTS,                                    /* of the second's projection */
    SR_FACTOR_GATE = SR_FACTOR_PARTS + SR_PART_FACTORS, /* the MLP's gate before its activation */
    SR_FACTOR_MLP,                                      /* what the MLP makes */
    SR_FACTORS,
} sr_factor;

typedef struct sr_model_config {
    int V;         /* vocab_size */
    int C;         /* hidden_size */
    int F;         /* intermediate_size */
    int L;         /* num_hidden_layers */
    int H, Hkv, D; /* num_attention_heads, num_key_value_heads, head_dim */
    int positions; /* max_position_embeddings */
    sr_mlp mlp;
    sr_activation activation;                      /* of SR_MLP_GATED and SR_MLP_PLAIN */
    double activation_limit, activation_sharpness; /* of SR_ACTIVATION_SILU_CLAMPED */
    sr_experts experts;
    double norm_epsilon;    /* rms_norm_eps */
    bool layer_norm;        /* norms are LayerNorm with a bias, not RMS */
    bool norm_is_minus_one; /* weights of norms are stored as w - 1 */
    double embedding_multiplier, residual_multiplier, logit_multiplier; /* 0: 1 */
    double factors[SR_FACTORS];                                         /* 0: 1 */
    double logit_cap; /* c of logits = c tanh(logits / c); 0: none */
    double rope_theta;
    sr_rope_scaling rope_scaling;
    bool tied;             /* tie_word_embeddings: the head is the embedding */
    bool qkv_bias, o_bias; /* attention_bias */
    bool linear_unbiased;  /* linear-attention layers have no such biases */
    bool conv_unbiased;    /* Mamba-2's convolutions have no bias */
    bool conv_layer_bias;  /* layer=conv has biases; the two above are not about it */
    bool mlp_bias;
    int bos, eos;                                   /* token ids, -1: none */
    int other_ends[SR_OTHER_ENDS], other_end_count; /* further tokens that end a text */
    int stops[SR_OTHER_ENDS + 1], stop_count;       /* those of generation_config.json */
    bool head_kept; /* the file says tied, but has a head that differs, which is used */
    bool reference; /* the file names the attention by the reference's name, without a text form */
    const sr_tensor_names *names; /* of the tensors in the files; NULL: softrnn's own */
    char *source; /* config.json of the family that the model came from, owned; NULL: none */

    sr_layer_sizes given; /* for sr_model_config_attention, see sr_layer_sizes_usual */

    sr_mixer_kind mixer;
    sr_avey avey; /* of SR_MIXER_AVEY */

    srnn_attention *attention; /* (L), owned */
    sr_layer_sizes *sizes;     /* (L), owned */

    /* Of a second mixer next to the first in every layer, without RoPE; NULL: there is none. */
    srnn_attention *parallel;       /* (L), owned */
    sr_layer_sizes *parallel_sizes; /* (L), owned */
    bool parallel_bias, parallel_o_bias;
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
 * "3*gated_delta_net,1*softmax"; and their sizes, from the other members. "A+B" is a layer with two
 * mixers side by side, of which the second has no RoPE. */
srnn_status sr_model_config_attention(sr_model_config *config, const char *text);

/* *several: the text gives variants by layers, or two mixers of each. Then *config has as many
 * layers as it names, with their attention and heads of one number: what can be said before a
 * model's sizes are known. Free it. */
srnn_status sr_attention_by_layers(sr_model_config *config, bool *several, const char *text);

/* *text = what sr_model_config_attention reads back; free() it. */
srnn_status sr_model_config_attention_text(char **text, const sr_model_config *config);

/* Empty tokens in front of every sequence: the largest number that a layer needs. */
int sr_model_config_prefix_tokens(const sr_model_config *config);

/* The longest sequence that can be fed: only RoPE limits it. */
int64_t sr_model_config_most_positions(const sr_model_config *config);

/* L if attention mixes the tokens, else 0: the layers that have a descriptor and sizes. */
int sr_model_config_attention_layers(const sr_model_config *config);

/* True if blocks have an MLP after their mixer. */
bool sr_model_config_has_mlp(const sr_model_config *config);

/* True if the MLP of this layer is a mixture of experts. */
bool sr_model_config_has_experts(const sr_model_config *config, int layer);

/* Where the blocks of a layer have their norms. */
srnn_block_norm sr_model_config_block_norm(const sr_model_config *config, int layer);

/* True if the model's configuration lists this token as an end of text. */
bool sr_model_config_ends(const sr_model_config *config, int32_t token);

/* The sizes of one attention layer, and of the second mixer next to it. */
sr_layer_dims sr_model_config_dims(const sr_model_config *config, int layer);
sr_layer_dims sr_model_config_parallel_dims(const sr_model_config *config, int layer);

/* The number, 1 where it is left out. */
float sr_model_config_factor(const sr_model_config *config, sr_factor which);

/* True if every layer is softmax attention with the heads of the model, as in a
 * Llama. */
bool sr_model_config_is_softmax(const sr_model_config *config);

/* True if the model is a Llama apart from its attention. */
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

/* Reads config.json. Unknown keys are ignored; known keys with unsupported values are
 * refused. */
srnn_status sr_model_config_read(sr_model_config *config, const char *path);

#endif
