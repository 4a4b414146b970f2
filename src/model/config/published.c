/* published.c: config.json of families of published models. */
#include "model/config/published.h"

#include "files/json.h"
#include "model/config/mlp.h"
#include "model/config/rope.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 768 };

/* ---- what is not supported */

static bool has_number(const json_t *root, const char *key) {
    return json_number_value(sr_config_value(root, key)) > 0;
}

static bool lists(const json_t *root, const char *key, int layer) {
    const json_t *list = sr_config_value(root, key), *value;
    size_t i;
    json_array_foreach(list, i, value) if (json_integer_value(value) == layer) return true;
    return false;
}

/* Whether the MLP of a layer is a mixture of experts, if the model has experts. */
static bool is_sparse(const json_t *root, int layer) {
    const json_t *kind = json_array_get(sr_config_value(root, "mlp_layer_types"), (size_t)layer);
    const json_int_t step = json_integer_value(sr_config_value(root, "decoder_sparse_step"));
    if (json_is_string(kind))
        return strcmp(json_string_value(kind), "dense") != 0;
    return !lists(root, "mlp_only_layers", layer) && (step < 1 || (layer + 1) % step == 0);
}

/* Whether the MLP of some layer is one. */
static bool has_experts(const json_t *root) {
    const json_int_t L = json_integer_value(sr_config_value(root, "num_hidden_layers"));
    if (!has_number(root, "num_experts") && !has_number(root, "num_local_experts") &&
        !has_number(root, "n_routed_experts") && !has_number(root, "moe_num_experts"))
        return false;
    for (int layer = 0; layer < L && layer < SR_LAYERS_MAX; layer++)
        if (is_sparse(root, layer))
            return true;
    return false;
}

/* transformers has two words for full attention. */
static const char *word_of_type(const json_t *type) {
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    return strcmp(word, "attention") == 0 ? "full_attention" : word;
}

static bool has_full_layer(const json_t *root) {
    const json_t *types = sr_config_value(root, "layer_types"), *type;
    size_t i;
    if (!types)
        return true;
    json_array_foreach(types, i,
                       type) if (strcmp(word_of_type(type), "full_attention") == 0) return true;
    return false;
}

srnn_status sr_published_missing(const json_t *root, const char *path, bool experts_are_read) {
    const struct {
        bool needed;
        const char *what;
    } parts[] = {
        {sr_config_value(root, "quantization_config"), "quantised weights (quantization_config)"},
        {sr_config_value(root, "per_layer_config"), "layers with members of their own "
                                                    "(per_layer_config)"},
        {!experts_are_read && has_experts(root), "mixture of experts"},
        {has_number(root, "kv_lora_rank") && has_full_layer(root), "multi-head latent attention"},
        {sr_config_value(root, "vision_config"), "images (vision_config)"},
        {sr_config_value(root, "audio_config"), "sound (audio_config)"},
        {json_is_true(sr_config_value(root, "use_bidirectional_attention")),
         "attention to later tokens (use_bidirectional_attention)"},
        {json_is_true(sr_config_value(root, "is_encoder_decoder")), "an encoder"},
        {has_number(root, "attention_chunk_size"), "attention within chunks"},
        {has_number(root, "decay_low_rank_dim"),
         "RWKV-7's MLP with a token shift, a norm of the embedding and paths of several ranks"},
        {json_is_true(sr_config_value(root, "alibi")), "ALiBi"},
        {has_number(root, "clip_qkv"), "clipped q, k and v (clip_qkv)"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].needed)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: this model needs %s, which is missing here",
                           path, parts[i].what);
    return SRNN_OK;
}

/* ---- members */

/* Members of which null says nothing, where a family has a default. */
static bool is_required(const char *key) {
    static const char *const keys[] = {"vocab_size",        "hidden_size",         "rms_norm_eps",
                                       "intermediate_size", "num_hidden_layers",   "layer_norm_eps",
                                       "hidden_act",        "num_attention_heads", "norm_eps",
                                       "hidden_activation", "rope_parameters"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

static void take_unless_known(json_t *root, const json_t *file, const char *key) {
    if (json_object_get(file, key) && !json_object_get(root, key))
        sr_json_set(root, key, json_incref(json_object_get(file, key)));
}

/* What the family knows: the file's members over transformers' defaults; free with json_decref. */
static json_t *merged(const json_t *file, const sr_published *family) {
    const sr_published_experts *experts = family->experts;
    json_t *root = json_loads(family->defaults, 0, NULL), *value;
    const char *key;
    void *next;
    json_object_foreach_safe(root, next, key, value) {
        json_t *own = json_object_get(file, key);
        if (own && !(json_is_null(own) && is_required(key)))
            sr_json_set(root, key, json_incref(own));
    }
    const char *other = experts ? experts->other_count : NULL;
    if (other && json_object_get(file, other) && !json_object_get(file, experts->count))
        sr_json_set(root, experts->count, json_incref(json_object_get(file, other)));
    /* Members of every family. */
    static const char *const common[] = {"bos_token_id",    "eos_token_id",
                                         "rope_theta",      "rope_scaling",
                                         "rope_parameters", "quantization_config",
                                         "per_layer_config"};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        take_unless_known(root, file, common[i]);
    /* An object for each type of layer has its own. */
    if (!family->rope_by_type)
        take_unless_known(root, file, "original_max_position_embeddings");
    return root;
}

static bool flag(sr_config_reader *r, const char *key) {
    return key && sr_config_flag(r, r->root, key, false);
}

static void read_mlp(sr_config_reader *r, const sr_published *f, sr_model_config *c) {
    const char *key = f->activation ? f->activation : "hidden_act";
    const char *word = sr_config_word(r, r->root, key, "silu");
    if (f->gelu_is_tanh && strcmp(word, "gelu") == 0)
        word = "gelu_pytorch_tanh";
    sr_config_mlp_set(r, c, key, word, !f->plain_mlp);
    c->F = sr_config_integer(r, "intermediate_size", 0);
    c->mlp_bias = flag(r, f->mlp_bias);
}

static void read_experts(sr_config_reader *r, const sr_published *f, sr_model_config *c) {
    const sr_published_experts *members = f->experts;
    sr_experts *e = &c->experts;
    if (!members)
        return;
    const int count = sr_config_integer(r, members->count, 0);
    if (count < 0)
        sr_config_refuse(r, members->count, "is below 0");
    if (!has_experts(r->root))
        return;
    e->count = count;
    e->chosen = sr_config_integer(r, members->chosen, 0);
    e->width = sr_config_integer(r, members->width, 0);
    e->shared_width = members->shared_width ? sr_config_integer(r, members->shared_width, 0) : 0;
    e->renormalised = !members->renormalised || flag(r, members->renormalised);
    e->router_bias = c->mlp_bias = members->biased;
    for (int layer = 0; layer < c->L && layer < SR_LAYERS_MAX; layer++)
        if (!is_sparse(r->root, layer))
            sr_experts_set_plain(e, layer);
    if (!members->clamped)
        return;
    c->mlp = SR_MLP_GATED;
    c->activation = SR_ACTIVATION_SILU_CLAMPED;
    c->activation_limit = sr_config_real(r, r->root, "swiglu_limit", 0);
    c->activation_sharpness = sr_config_real(r, r->root, "swiglu_alpha", 0);
}

/* 0 if the member is not there; else a number above 0. */
static double multiplier(sr_config_reader *r, const char *key) {
    const double number = sr_config_real(r, r->root, key, 1);
    if (!(number > 0))
        sr_config_refuse(r, key, "is not above 0");
    return sr_config_value(r->root, key) ? number : 0;
}

static void read_multipliers(sr_config_reader *r, const sr_published *f, sr_model_config *c) {
    c->embedding_multiplier =
        f->embedding_root ? (double)sqrtf((float)c->C) : multiplier(r, "embedding_multiplier");
    c->residual_multiplier = multiplier(r, "residual_multiplier");
    const double divisor = multiplier(r, "logits_scaling");
    c->logit_multiplier = divisor != 0 ? 1 / divisor : 0;
    c->logit_cap = multiplier(r, "final_logit_softcapping");
}

/* As many factors as `count`, from a list. */
static void read_factors(sr_config_reader *r, const char *key, double *factors, size_t count) {
    const json_t *list = sr_config_value(r->root, key);
    if (list && json_array_size(list) != count)
        sr_config_refuse(r, key, "is not a list of as many numbers as it needs");
    for (size_t i = 0; list && i < count; i++) {
        factors[i] = json_number_value(json_array_get(list, i));
        if (!(factors[i] > 0))
            sr_config_refuse(r, key, "has something other than numbers above 0");
    }
}

/* What Falcon-H1 has in the model around its mixers. */
static void read_mamba_model(sr_config_reader *r, sr_model_config *c) {
    c->factors[SR_FACTOR_IN] = multiplier(r, "attention_in_multiplier");
    c->factors[SR_FACTOR_OUT] = multiplier(r, "attention_out_multiplier");
    c->factors[SR_FACTOR_PARALLEL_IN] = multiplier(r, "ssm_in_multiplier");
    c->factors[SR_FACTOR_PARALLEL_OUT] = multiplier(r, "ssm_out_multiplier");
    read_factors(r, "ssm_multipliers", c->factors + SR_FACTOR_PARTS, SR_PART_FACTORS);
    read_factors(r, "mlp_multipliers", c->factors + SR_FACTOR_GATE, 2);
    c->logit_multiplier = multiplier(r, "lm_head_multiplier");
    c->parallel_bias = flag(r, "mamba_proj_bias");
    c->parallel_o_bias = flag(r, "projectors_bias");
    c->conv_unbiased = !flag(r, "mamba_conv_bias");
}

static void read_model(sr_config_reader *r, const sr_published *f, sr_model_config *c) {
    c->names = &f->names;
    c->layer_norm = f->layer_norm;
    c->norm_is_minus_one = f->norm_is_minus_one;
    c->H = sr_config_integer(r, "num_attention_heads", 0);
    c->Hkv = sr_config_integer(r, "num_key_value_heads", c->H);
    const int even = c->H > 0 ? c->C / c->H : 0;
    c->D = f->own_head_size ? even : sr_config_integer(r, "head_dim", even);
    c->positions = sr_config_integer(r, "max_position_embeddings",
                                     sr_config_integer(r, "model_max_length", 2048));
    c->norm_epsilon = sr_config_real(r, r->root, f->epsilon ? f->epsilon : "rms_norm_eps", 1e-6);
    c->qkv_bias = flag(r, f->qkv_bias);
    c->o_bias = flag(r, f->o_bias);
    c->conv_layer_bias = flag(r, f->conv_bias);
    c->linear_unbiased = f->linear && (c->qkv_bias || c->o_bias);
    read_mlp(r, f, c);
    read_experts(r, f, c);
    read_multipliers(r, f, c);
    if (f->mamba)
        read_mamba_model(r, c);
}

/* ---- position */

typedef struct positions {
    double part;  /* of a head; 1: all */
    double local; /* theta of windowed layers; 0: as the others */
    bool none;    /* nowhere */
} positions;

/* Some families have one object for each type of layer. */
static const json_t *rope_of(const json_t *parameters, const char *type) {
    const json_t *own = sr_config_value(parameters, type);
    return json_is_object(own) ? own : NULL;
}

static void check_local(sr_config_reader *r, const json_t *local) {
    const char *kind = sr_config_word(r, local, "rope_type", "default");
    if (strcmp(kind, "default") != 0 && r->status == SRNN_OK)
        r->status = SR_FAIL(SRNN_ERR_UNSUPPORTED,
                            "%s: rope_parameters: this model needs scaled RoPE in windowed layers, "
                            "which is missing here",
                            r->path);
}

/* HunYuan's dynamic scaling with a fixed alpha is another theta. */
static void read_alpha(sr_config_reader *r, const json_t *all, sr_model_config *c) {
    const double alpha = sr_config_real(r, all, "alpha", 0);
    const char *kind = sr_config_rope_kind(r, all);
    if (alpha > 0 && c->D > 2 && strcmp(kind, "dynamic") == 0)
        c->rope_theta *= pow(alpha, (double)c->D / (c->D - 2));
}

/* The kind of scaling; Phi-3 has only LongRoPE, under names that mean others elsewhere. */
static const char *scaling_kind(sr_config_reader *r, const sr_published *f, const json_t *all) {
    const char *kind = sr_config_rope_kind(r, all);
    if (!f->rope_long || strcmp(kind, "default") == 0)
        return kind;
    if (strcmp(kind, "longrope") != 0 && strcmp(kind, "su") != 0 && strcmp(kind, "yarn") != 0)
        sr_config_refuse(r, "rope_scaling", "must be longrope in this family");
    return "longrope";
}

static positions read_positions(sr_config_reader *r, const sr_published *f, sr_model_config *c) {
    const json_t *parameters = sr_config_value(r->root, "rope_parameters");
    const json_t *object = sr_config_rope_object(r);
    const json_t *full = rope_of(parameters, "full_attention");
    const json_t *local = rope_of(parameters, "sliding_attention");
    const bool by_type = object == parameters && (full || f->rope_by_type);
    const json_t *all = by_type ? full : object;
    positions p = {.local = sr_config_real(r, r->root, "rope_local_base_freq", f->window_theta)};
    p.part = sr_config_real(r, all, "partial_rotary_factor",
                            sr_config_real(r, r->root, "partial_rotary_factor", 1));
    if (!sr_config_value(r->root, "partial_rotary_factor"))
        p.part = 1; /* the family does not know it */
    c->rope_theta = sr_config_real(r, all, "rope_theta",
                                   sr_config_real(r, full, "rope_theta",
                                                  sr_config_real(r, r->root, "rope_theta", 10000)));
    if (local) {
        check_local(r, local);
        p.local = sr_config_real(r, local, "rope_theta", p.local);
    }
    const int width = p.part > 0 && p.part <= 1 ? (int)(c->D * p.part) : 0;
    if (all)
        sr_config_rope_set(r, c, all, f->rope_by_type ? parameters : all, scaling_kind(r, f, all),
                           width);
    if (f->rope_alpha)
        read_alpha(r, all, c);
    /* A file that says null of both, or of theta among the parameters, has no position at all. */
    p.none = json_is_null(json_object_get(all, "rope_theta")) ||
             (json_is_null(json_object_get(r->root, "rope_parameters")) &&
              json_is_null(json_object_get(r->root, "rope_theta")));
    return p;
}

/* ---- layers */

/* Whether layers below `max_window_layers` have no window. */
static bool below_windows(sr_config_reader *r, int layer) {
    return layer < sr_config_integer(r, "max_window_layers", 0);
}

static const char *type_of(sr_config_reader *r, const sr_published *f, int layer, int L,
                           bool windows, bool rope) {
    const json_t *types = sr_config_value(r->root, "layer_types");
    const json_t *type = json_array_get(types, (size_t)layer);
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)L))
        sr_config_refuse(r, "layer_types", "is not a list of one word for each layer");
    if (types)
        return word_of_type(type);
    const int interval =
        f->interval_member ? sr_config_integer(r, f->interval_member, f->interval) : f->interval;
    const bool only_full = f->some_full && L < interval && layer == L - 1;
    if (interval > 0)
        return (layer + 1) % interval && !only_full ? f->between : "full_attention";
    if (json_object_get(r->root, "max_window_layers"))
        return windows && !below_windows(r, layer) ? "sliding_attention" : "full_attention";
    if (json_object_get(r->root, "no_rope_layers"))
        return windows && !rope ? "sliding_attention" : "full_attention";
    return windows && f->window_everywhere ? "sliding_attention" : "full_attention";
}

/* SmolLM3: 1 means with RoPE; without a list every n-th layer has none. */
static bool has_rope(sr_config_reader *r, int layer) {
    const json_t *list = sr_config_value(r->root, "no_rope_layers");
    const int interval = sr_config_integer(r, "no_rope_layer_interval", 0);
    if (list && !json_is_integer(json_array_get(list, (size_t)layer)))
        sr_config_refuse(r, "no_rope_layers", "is not a list of one whole number for each layer");
    if (list)
        return json_integer_value(json_array_get(list, (size_t)layer)) != 0;
    return interval < 1 || (layer + 1) % interval != 0;
}

/* Keys that a windowed layer sees; 0: all. In most families use_sliding_window says which layers
 * have a window, not whether those that layer_types lists do. */
static int window_of(sr_config_reader *r, const sr_published *f, const sr_model_config *c) {
    const json_t *use = json_object_get(r->root, "use_sliding_window");
    const bool listed = sr_config_value(r->root, "layer_types") && !f->window_by_flag;
    const int window = sr_config_integer(r, "sliding_window", 0);
    return (use && !json_is_true(use) && !listed) || window >= c->positions ? 0 : window;
}

static double scale_of(sr_config_reader *r, const sr_model_config *c) {
    const double scalar = multiplier(r, "query_pre_attn_scalar");
    const double keys = multiplier(r, "key_multiplier");
    if (keys > 0 && keys != 1)
        return keys / sqrt((double)c->D);
    return scalar > 0 ? 1 / sqrt(scalar) : multiplier(r, "attention_multiplier");
}

typedef struct layer_reader {
    sr_config_reader *r;
    const sr_published *family;
    sr_model_config *config;
    positions positions;
    char text[TEXT];
    size_t length;
} layer_reader;

__attribute__((format(printf, 2, 3))) static void add(layer_reader *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length =
        vsnprintf(l->text + l->length, sizeof l->text - l->length, format, arguments);
    va_end(arguments);
    l->length += length > 0 ? (size_t)length : 0;
    l->length = l->length < sizeof l->text ? l->length : sizeof l->text - 1;
}

static const char *qk_norm_text(sr_config_reader *r) {
    const json_t *norm = json_object_get(r->root, "qk_layernorm");
    return json_is_true(norm) ? ",qk_norm=layer" : "";
}

/* A sliding layer whose window is as wide as the longest text has none, but its own theta. */
static void write_attention(layer_reader *l, bool sliding, int window, bool rope) {
    sr_config_reader *r = l->r;
    const double scale = scale_of(r, l->config), cap = multiplier(r, "attn_logit_softcapping");
    add(l, "softmax%s%s", l->family->layer ? l->family->layer : "", qk_norm_text(r));
    if (flag(r, "use_parallel_residual"))
        add(l, ",block_norm=parallel");
    if (!rope)
        add(l, ",position=none");
    if (rope && l->positions.part < 1)
        add(l, ",rope_part=%.17g", l->positions.part);
    if (rope && sliding && l->positions.local > 0)
        add(l, ",rope_theta=%.17g", l->positions.local);
    if (scale > 0)
        add(l, ",softmax_scale=%.17g", scale);
    if (cap > 0)
        add(l, ",cap=%.17g", cap);
    if (sliding && window)
        add(l, ",window=%d", window);
}

/* Heads or channels of layers of linear attention. */
static int linear_size(sr_config_reader *r, const char *key, const char *other, int otherwise) {
    const int size = sr_config_integer(r, key, sr_config_integer(r, other, otherwise));
    if (size >= 0 && size <= SR_WIDTH_MAX)
        return size;
    sr_config_refuse(r, key, "makes no sense");
    return 0;
}

static sr_layer_sizes write_linear(layer_reader *l) {
    sr_config_reader *r = l->r;
    const sr_model_config *c = l->config;
    sr_layer_sizes s = {.Hkv = linear_size(r, "linear_num_key_heads", "linear_num_heads", c->H)};
    s.H = linear_size(r, "linear_num_value_heads", "linear_num_heads", c->H);
    const int usual = s.Hkv > 0 ? (int)(0.75 * c->C / s.Hkv) : 0;
    s.D = linear_size(r, "linear_key_head_dim", "linear_head_dim", usual);
    s.Dv = linear_size(r, "linear_value_head_dim", "linear_head_dim", 2 * s.D);
    if (c->mlp != SR_MLP_SWIGLU && r->status == SRNN_OK)
        r->status = SR_FAIL(SRNN_ERR_UNSUPPORTED,
                            "%s: hidden_act is \"%s\"; layers of linear attention are computed "
                            "with silu alone",
                            r->path, sr_config_word(r, r->root, "hidden_act", ""));
    add(l, "%s,short_conv=%d", l->family->linear,
        sr_config_integer(r, "linear_conv_kernel_dim", 4));
    if (!strstr(l->family->linear, "norm_epsilon"))
        add(l, ",norm_epsilon=%.17g", c->norm_epsilon);
    if (s.H != s.Hkv)
        add(l, ",share=qk");
    if (flag(r, "linear_allow_neg_eigval"))
        add(l, ",write_range=2");
    return s;
}

static void write_conv(layer_reader *l) {
    add(l, "layer=conv,position=none,conv_activation=none,short_conv=%d",
        sr_config_integer(l->r, l->family->conv, 3));
}

/* Mamba-2 next to attention, whose activation after the convolution is the MLP's. */
static sr_layer_sizes write_mamba(layer_reader *l) {
    sr_config_reader *r = l->r;
    const sr_model_config *c = l->config;
    const int expand = sr_config_integer(r, "mamba_expand", 2);
    const int64_t inner =
        sr_config_integer(r, "mamba_d_ssm", expand > 0 && expand <= 64 ? expand * c->C : 0);
    const bool is_auto = json_is_string(sr_config_value(r->root, "mamba_d_head"));
    sr_layer_sizes s = {.H = linear_size(r, "mamba_n_heads", "", 128),
                        .Hkv = linear_size(r, "mamba_n_groups", "", 1),
                        .D = linear_size(r, "mamba_d_state", "", 256)};
    const int even = s.H > 0 ? (int)(inner / s.H) : 0;
    s.Dv = is_auto ? even : linear_size(r, "mamba_d_head", "", even);
    if ((int64_t)s.H * s.Dv != inner)
        sr_config_refuse(r, "mamba_d_ssm", "is not mamba_n_heads times mamba_d_head");
    if (c->mlp != SR_MLP_SWIGLU)
        sr_config_refuse(r, "hidden_act",
                         "must be silu: other functions after the convolution of "
                         "Mamba-2 are missing here");
    sr_config_check_time_steps(r, "time_step_limit");
    add(l, "mamba2,short_conv=%d", sr_config_integer(r, "mamba_d_conv", 4));
    if (!flag(r, "mamba_rms_norm"))
        add(l, ",norm=none");
    else if (flag(r, "mamba_norm_before_gate"))
        add(l, ",output_gate=none,post_gate");
    add(l, ",norm_epsilon=%.17g", c->norm_epsilon);
    return s;
}

static srnn_status read_second(layer_reader *l, int layer) {
    sr_model_config *c = l->config;
    l->length = 0;
    c->parallel_sizes[layer] = write_mamba(l);
    SR_TRY(l->r->status);
    return srnn_attention_parse(&c->parallel[layer], l->text);
}

static srnn_status refuse_type(layer_reader *l, const char *type) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "%s: this model needs layers of type \"%s\", which are missing here", l->r->path,
                   type);
}

static srnn_status read_layer(layer_reader *l, int layer) {
    sr_model_config *c = l->config;
    const int window = window_of(l->r, l->family, c);
    const bool listed = has_rope(l->r, layer) && !l->positions.none;
    const char *type = type_of(l->r, l->family, layer, c->L, window > 0, listed);
    sr_layer_sizes *sizes = &c->sizes[layer];
    l->length = 0;
    *sizes = (sr_layer_sizes){.H = c->H, .Hkv = c->Hkv, .D = c->D, .Dv = c->D};
    const bool sliding = strcmp(type, "sliding_attention") == 0;
    if (sliding && l->family->window_by_flag && !flag(l->r, "use_sliding_window"))
        sr_config_refuse(l->r, "layer_types",
                         "has sliding_attention, which this family needs use_sliding_window for");
    SR_TRY(l->r->status);
    if (sliding)
        write_attention(l, true, window, listed);
    else if (strcmp(type, "full_attention") == 0)
        write_attention(l, false, 0,
                        listed && !(l->family->nope_if_window &&
                                    sr_config_value(l->r->root, "sliding_window")));
    else if (strcmp(type, "linear_attention") == 0 && l->family->linear)
        *sizes = write_linear(l);
    else if (strcmp(type, "conv") == 0 && l->family->conv)
        write_conv(l);
    else
        return refuse_type(l, type);
    SR_TRY(l->r->status);
    SR_TRY(srnn_attention_parse(&c->attention[layer], l->text));
    /* what no member says */
    sizes->rank =
        sr_layer_sizes_usual(&c->attention[layer], sizes->H, sizes->Hkv, sizes->D, sizes).rank;
    return SRNN_OK;
}

static srnn_status read_layers(layer_reader *l) {
    SR_TRY(sr_model_config_attention(l->config, l->family->mamba ? "softmax+mamba2" : "softmax"));
    for (int layer = 0; layer < l->config->L; layer++) {
        SR_TRY(read_layer(l, layer));
        if (l->family->mamba)
            SR_TRY(read_second(l, layer));
    }
    return SRNN_OK;
}

/* What the family's own file said, to be written again. */
static srnn_status keep_source(sr_model_config *config, const json_t *file, const char *path) {
    return sr_json_dump(&config->source, file, JSON_COMPACT | JSON_REAL_PRECISION(17), path);
}

srnn_status sr_published_read(sr_config_reader *reader, const sr_published *family,
                              sr_model_config *config) {
    json_t *root = merged(reader->root, family);
    sr_config_reader r = {.root = root, .path = reader->path};
    if (family->translate)
        family->translate(&r, root, reader->root);
    SR_TRY(sr_json_complete(root, reader->path));
    layer_reader layers = {.r = &r, .family = family, .config = config};
    config->tied = sr_config_flag(&r, root, "tie_word_embeddings", false);
    config->V = sr_config_integer(&r, "vocab_size", 0);
    config->C = sr_config_integer(&r, "hidden_size", 0);
    config->L = sr_config_integer(&r, "num_hidden_layers", 0);
    srnn_status status = sr_published_missing(root, reader->path, family->experts);
    if (status == SRNN_OK) {
        read_model(&r, family, config);
        layers.positions = read_positions(&r, family, config);
        status = r.status;
    }
    if (status == SRNN_OK)
        status = sr_model_config_check_common(config);
    if (status == SRNN_OK)
        status = read_layers(&layers);
    if (status == SRNN_OK)
        status = r.status;
    if (status == SRNN_OK)
        status = keep_source(config, reader->root, reader->path);
    json_decref(root);
    return status;
}
