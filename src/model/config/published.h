/* published.h (private): families of published models whose layers differ from a Llama's: one row
 * each, from which config.json and the names of tensors are read. */
#ifndef SR_MODEL_CONFIG_PUBLISHED_H
#define SR_MODEL_CONFIG_PUBLISHED_H

#include "model/config/family.h"
#include "model/config/member.h"

/* Members of a family with mixtures of experts. */
typedef struct sr_published_experts {
    const char *count, *chosen; /* how many; of them for a token */
    const char *other_count;    /* what some files have in place of count; NULL: nothing */
    const char *width;          /* of one */
    const char *shared_width;   /* of the shared one; NULL: there is none */
    const char *renormalised;   /* NULL: they always are */
    bool biased;                /* router and experts have biases */
    bool clamped;               /* their activation is gpt-oss's, with swiglu_limit and -_alpha */
} sr_published_experts;

/* A family: what is fixed, and what the members of its config.json mean. */
typedef struct sr_published {
    /* JSON: the members that the family knows, and what transformers takes where a file leaves them
     * out. Other members are not read. */
    const char *defaults;
    const char *layer;  /* of full and windowed attention, as text after "softmax"; NULL: nothing */
    const char *linear; /* layers of type linear_attention, as text; NULL: the family has none */
    const char *conv;   /* member: the taps of layers of type conv; NULL: the family has none */
    const char *conv_bias; /* member: whether these have biases */
    bool mamba; /* a Mamba-2 next to attention in every layer, and Falcon-H1's multipliers */
    const char *epsilon, *activation;         /* members; NULL: rms_norm_eps, hidden_act */
    const char *qkv_bias, *o_bias, *mlp_bias; /* members; NULL: no such biases */
    bool plain_mlp;                           /* without a gate */
    const sr_published_experts *experts;      /* NULL: MLPs are plain */
    bool layer_norm, norm_is_minus_one;       /* as in sr_model_config */
    bool embedding_root;                      /* embeddings are multiplied by sqrt(hidden_size) */
    bool own_head_size; /* head_dim is not read: hidden_size over num_attention_heads */
    bool gelu_is_tanh;  /* hidden_act "gelu" of old files means gelu_pytorch_tanh */
    bool rope_alpha;    /* dynamic RoPE may have a fixed alpha */
    bool rope_by_type;  /* rope_parameters has an object for each type of layer, or is ignored */
    /* RoPE's theta of windowed layers unless the file has an object for them; 0: the member
     * rope_local_base_freq, or as the other layers */
    double window_theta;
    bool rope_long;      /* the only scaling is LongRoPE; "su" and "yarn" of old files mean it */
    bool window_by_flag; /* no layer has a window without use_sliding_window */
    bool nope_if_window; /* where sliding_window is set, full layers have no position */

    /* Without layer_types: every n-th layer has full attention, n the member or else `interval`;
     * the others are `between`. 0: all are full, or windowed where sliding_window is set and
     * `window_everywhere`. */
    const char *interval_member;
    int interval;
    const char *between;
    bool some_full; /* with fewer layers than the interval the last one is full */
    bool window_everywhere;

    /* Adds to the merged members what the file says in another form; NULL: nothing. */
    void (*translate)(sr_config_reader *reader, json_t *merged, const json_t *file);

    sr_tensor_names names;
} sr_published;

extern const sr_published sr_published_qwen2;
extern const sr_family sr_published_families[];
extern const size_t sr_published_count;

/* Sets everything, from the file's root. SRNN_ERR_UNSUPPORTED, naming what is missing, for what
 * this program does not compute. */
srnn_status sr_published_read(sr_config_reader *reader, const sr_published *family,
                              sr_model_config *config);

/* SRNN_ERR_UNSUPPORTED naming what a model needs and softrnn does not support, by its members;
 * `experts_are_read`: its family may have them. */
srnn_status sr_published_missing(const json_t *root, const char *path, bool experts_are_read);

#endif
