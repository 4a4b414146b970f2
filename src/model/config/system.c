/* system.c: members of config.json that only models of one neighbouring system have. */
#include "model/config/system.h"

#include "files/json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUIRED = 8, ATTENTION_BYTES = 256 };

/* A member that must be this JSON, or be left out. */
typedef struct required {
    const char *name, *value, *why;
} required;

/* What a file says of its layers, all of which are alike. */
typedef struct system_layer {
    char attention[ATTENTION_BYTES]; /* text form, but for the epsilon of the norm */
    sr_layer_sizes sizes;
} system_layer;

struct sr_config_system {
    sr_tensor_names names;
    sr_mlp mlp;
    const char *epsilon; /* the member, of all norms */
    double usual_epsilon;
    required own[REQUIRED];
    void (*read)(sr_config_reader *reader, system_layer *layer, sr_model_config *config);
    void (*set)(json_t *root, const sr_model_config *config);
};

/* ---- members that must have one value */

static const required common[] = {
    {"attn", "null", "layers of another attention between them are not read"},
    {"attnres_block_size", "null", "attention over earlier layers is not here"},
    {"quantization_config", "null", "quantised weights are not read"},
    {"per_layer_config", "null", "all layers are equal here"},
};

/* A word of JSON, a text in its quotes or a number. */
static bool is_json(const json_t *value, const char *text) {
    const char *own = json_string_value(value);
    if (*text == '"')
        return own && strlen(own) + 2 == strlen(text) && strncmp(own, text + 1, strlen(own)) == 0;
    if (json_is_number(value))
        return isdigit((unsigned char)*text) && json_number_value(value) == strtod(text, NULL);
    return (json_is_true(value) && strcmp(text, "true") == 0) ||
           (json_is_false(value) && strcmp(text, "false") == 0);
}

static void require(sr_config_reader *r, const required *rule) {
    const json_t *value = sr_config_value(r->root, rule->name);
    if (r->status != SRNN_OK || !value || is_json(value, rule->value))
        return;
    r->status = SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: %s must be %s: %s", r->path, rule->name,
                        rule->value, rule->why);
}

static void require_all(sr_config_reader *r, const required *rules, size_t count) {
    for (size_t i = 0; i < count && rules[i].name; i++)
        require(r, &rules[i]);
}

/* ---- sizes */

/* int(product), as Python has it, of a number that `key` gave. */
static int whole_width(sr_config_reader *r, const char *key, double product) {
    if (product >= 1 && product <= SR_WIDTH_MAX)
        return (int)product;
    sr_config_refuse(r, key, "makes no sense");
    return 1;
}

/* int(width * factor) */
static int expanded(sr_config_reader *r, const char *key, double otherwise, int width) {
    return whole_width(r, key, width * sr_config_real(r, r->root, key, otherwise));
}

/* What `expanded` makes `width` of the other width with. */
static double expansion_of(int64_t width, int64_t of) {
    const double factor = (double)width / (double)of;
    return (int64_t)((double)of * factor) < width ? nextafter(factor, INFINITY) : factor;
}

static int per_head(sr_config_reader *r, const char *key, int width, int heads) {
    if (heads > 0 && width % heads == 0)
        return width / heads;
    sr_config_refuse(r, key, "gives a width that is not a multiple of num_heads");
    return 1;
}

/* The MLP of flash-linear-attention: a multiple of 256 where the file does not say. */
static int mlp_width(sr_config_reader *r, int C) {
    enum { STEP = 256 };
    if (sr_config_value(r->root, "intermediate_size"))
        return sr_config_integer(r, "intermediate_size", 0);
    const double ratio = sr_config_real(r, r->root, "hidden_ratio", 4);
    const int width = whole_width(r, "hidden_ratio", C * ratio * 2 / 3);
    return (width + STEP - 1) / STEP * STEP;
}

static void set_mlp(json_t *root, const sr_model_config *c) {
    sr_json_set(root, "intermediate_size", json_integer(c->F));
    sr_json_set(root, "hidden_act", json_string("swish"));
    sr_json_set(root, "max_position_embeddings", json_integer(c->positions));
}

/* ---- Mamba-2, of transformers */

static void read_mamba2(sr_config_reader *r, system_layer *layer, sr_model_config *c) {
    sr_layer_sizes *s = &layer->sizes;
    *s = (sr_layer_sizes){.H = sr_config_integer(r, "num_heads", 128),
                          .Hkv = sr_config_integer(r, "n_groups", 8),
                          .D = sr_config_integer(r, "state_size", 128),
                          .Dv = sr_config_integer(r, "head_dim", 64)};
    if (expanded(r, "expand", 2, c->C) != (int64_t)s->H * s->Dv)
        sr_config_refuse(r, "expand", "times hidden_size is not num_heads times head_dim");
    sr_config_check_time_steps(r, "time_step_limit");
    sr_config_check_time_steps(r, "dt_limit"); /* as flash-linear-attention's Mamba-2 names it */
    c->qkv_bias = c->o_bias = sr_config_flag(r, r->root, "use_bias", false);
    c->conv_unbiased = !sr_config_flag(r, r->root, "use_conv_bias", true);
    snprintf(layer->attention, sizeof layer->attention, "mamba2,short_conv=%d",
             sr_config_integer(r, "conv_kernel", 4));
}

static void set_mamba2(json_t *root, const sr_model_config *c) {
    const sr_layer_sizes *s = &c->sizes[0];
    sr_json_set(root, "num_heads", json_integer(s->H));
    sr_json_set(root, "head_dim", json_integer(s->Dv));
    sr_json_set(root, "state_size", json_integer(s->D));
    sr_json_set(root, "conv_kernel", json_integer(c->attention[0].wiring.short_conv));
    sr_json_set(root, "n_groups", json_integer(s->Hkv));
    const int64_t inner = (int64_t)s->H * s->Dv;
    sr_json_set(root, "expand",
                inner % c->C ? json_real(expansion_of(inner, c->C))
                             : json_integer((json_int_t)(inner / c->C)));
    sr_json_set(root, "use_bias", json_boolean(c->qkv_bias));
    sr_json_set(root, "use_conv_bias", json_boolean(!c->conv_unbiased));
    sr_json_set(root, "hidden_act", json_string("silu"));
}

const sr_config_system sr_system_mamba2 = {
    .names = {.root = "backbone.",
              .whole = {{"embed_tokens.", "embeddings."}, {"norm.", "norm_f."}},
              .layers.pairs = {{"input_layernorm.", "norm."}, {"self_attn.", "mixer."}}},
    .mlp = SR_MLP_NONE,
    .epsilon = "layer_norm_epsilon",
    .usual_epsilon = 1e-5,
    .own = {{"hidden_act", "\"silu\"", "other functions after the convolution are not here"},
            {"norm_eps", "null", "the epsilon is layer_norm_epsilon's"},
            {"rmsnorm", "true", "the layer has its norm here"},
            {"norm_before_gate", "false", "the gate comes before the norm here"},
            {"D_has_hdim", "false", "D is one number a head here"}},
    .read = read_mamba2,
    .set = set_mamba2,
};

/* ---- flash-linear-attention */

#define FLA_NAMES                                                            \
    .names = {.root = "model.",                                              \
              .whole = {{"embed_tokens.", "embeddings."}},                   \
              .layers.pairs = {{"input_layernorm.", "attn_norm."},           \
                               {"self_attn.", "attn."},                      \
                               {"post_attention_layernorm.", "mlp_norm."}}}, \
    .mlp = SR_MLP_SWIGLU, .epsilon = "norm_eps", .usual_epsilon = 1e-6
#define FLA_SWISH \
    { "hidden_act", "\"swish\"", "other functions in the MLP are not here" }
#define DELTA_RULES                                                                   \
    {"use_short_conv", "true", "the delta rule's layer has its convolutions here"}, { \
        "allow_neg_eigval", "false", "beta is below 1 here"                           \
    }
/* The gate behind the norm, as text after a variant with it and without. */
#define WITH_GATE    ",post_gate=sigmoid,gate_width=channel,gate_shape=silu"
#define WITHOUT_GATE ",post_gate=off,gate_width=head,gate_shape=sigmoid"

static void read_expansion(sr_config_reader *r, sr_layer_sizes *s, double keys, int C) {
    s->D = per_head(r, "expand_k", expanded(r, "expand_k", keys, C), s->H);
    s->Dv = per_head(r, "expand_v", expanded(r, "expand_v", 1, C), s->H);
}

static void set_expansion(json_t *root, const sr_model_config *c) {
    const sr_layer_sizes *s = &c->sizes[0];
    sr_json_set(root, "num_heads", json_integer(s->H));
    sr_json_set(root, "expand_k", json_real(expansion_of((int64_t)s->H * s->D, c->C)));
    sr_json_set(root, "expand_v", json_real(expansion_of((int64_t)s->H * s->Dv, c->C)));
}

static void read_gla(sr_config_reader *r, system_layer *layer, sr_model_config *c) {
    enum { RANK = 16 }; /* which no member says */
    sr_layer_sizes *s = &layer->sizes;
    s->H = sr_config_integer(r, "num_heads", 4);
    s->Hkv = sr_config_integer(r, "num_kv_heads", s->H);
    s->rank = RANK;
    read_expansion(r, s, 0.5, c->C);
    snprintf(layer->attention, sizeof layer->attention, "gla,short_conv=%d",
             sr_config_flag(r, r->root, "use_short_conv", false)
                 ? sr_config_integer(r, "conv_size", 4)
                 : 0);
}

static void set_gla(json_t *root, const sr_model_config *c) {
    set_mlp(root, c);
    set_expansion(root, c);
    sr_json_set(root, "num_kv_heads", json_integer(c->sizes[0].Hkv));
    sr_json_set(root, "use_short_conv", json_boolean(c->attention[0].wiring.short_conv));
    if (c->attention[0].wiring.short_conv)
        sr_json_set(root, "conv_size", json_integer(c->attention[0].wiring.short_conv));
}

const sr_config_system sr_system_gla = {
    FLA_NAMES,
    .own = {FLA_SWISH,
            {"feature_map", "null", "q and k are taken as they are"},
            {"use_output_gate", "true", "the layer has its gate here"},
            {"clamp_min", "null", "gates are not limited here"},
            {"elementwise_affine", "true", "the norm has a weight here"},
            {"fuse_norm", "true", "the norm's weight would have another name"},
            {"use_gv", "false", "values have no gate of their own here"}},
    .read = read_gla,
    .set = set_gla,
};

static void read_delta_net(sr_config_reader *r, system_layer *layer, sr_model_config *c) {
    sr_layer_sizes *s = &layer->sizes;
    s->H = s->Hkv = sr_config_integer(r, "num_heads", 16);
    read_expansion(r, s, 1, c->C);
    snprintf(layer->attention, sizeof layer->attention, "delta_net,short_conv=%d%s",
             sr_config_integer(r, "conv_size", 4),
             sr_config_flag(r, r->root, "use_gate", false) ? WITH_GATE : "");
}

static void set_delta_net(json_t *root, const sr_model_config *c) {
    set_mlp(root, c);
    set_expansion(root, c);
    sr_json_set(root, "conv_size", json_integer(c->attention[0].wiring.short_conv));
    sr_json_set(root, "use_gate", json_boolean(c->attention[0].post_gate));
}

const sr_config_system sr_system_delta_net = {
    FLA_NAMES,
    .own = {FLA_SWISH,
            DELTA_RULES,
            {"use_beta", "true", "the delta rule has its beta here"},
            {"use_output_norm", "true", "the layer has its norm here"},
            {"qk_norm", "\"l2\"", "q and k have unit length here"},
            {"qk_activation", "\"silu\"", "SiLU follows the convolutions here"}},
    .read = read_delta_net,
    .set = set_delta_net,
};

static void read_gated_delta_net(sr_config_reader *r, system_layer *layer, sr_model_config *c) {
    sr_layer_sizes *s = &layer->sizes;
    (void)c;
    s->Hkv = sr_config_integer(r, "num_heads", 6);
    s->H = sr_config_integer(r, "num_v_heads", s->Hkv);
    s->D = sr_config_integer(r, "head_dim", 256);
    s->Dv = expanded(r, "expand_v", 2, s->D);
    snprintf(layer->attention, sizeof layer->attention, "gated_delta_net,short_conv=%d%s%s",
             sr_config_integer(r, "conv_size", 4), s->H != s->Hkv ? ",share=qk" : "",
             sr_config_flag(r, r->root, "use_gate", true) ? "" : WITHOUT_GATE);
}

static void set_gated_delta_net(json_t *root, const sr_model_config *c) {
    const sr_layer_sizes *s = &c->sizes[0];
    set_mlp(root, c);
    sr_json_set(root, "num_heads", json_integer(s->Hkv));
    sr_json_set(root, "num_v_heads", json_integer(s->H));
    sr_json_set(root, "head_dim", json_integer(s->D));
    sr_json_set(root, "expand_v", json_real(expansion_of(s->Dv, s->D)));
    sr_json_set(root, "conv_size", json_integer(c->attention[0].wiring.short_conv));
    sr_json_set(root, "use_gate", json_boolean(c->attention[0].post_gate));
}

const sr_config_system sr_system_gated_delta_net = {
    FLA_NAMES,
    .own = {FLA_SWISH, DELTA_RULES},
    .read = read_gated_delta_net,
    .set = set_gated_delta_net,
};

/* ---- all of them */

const sr_tensor_names *sr_config_system_names(const sr_config_system *system) {
    return &system->names;
}

/* The model around the layers: no position, so that its own sizes of heads only have to make
 * sense. */
static void read_model(sr_config_reader *r, const sr_config_system *system,
                       const system_layer *layer, sr_model_config *c) {
    c->names = &system->names;
    c->mlp = system->mlp;
    c->F = system->mlp == SR_MLP_NONE ? 0 : mlp_width(r, c->C);
    c->H = c->Hkv = layer->sizes.H;
    c->D = layer->sizes.Dv;
    c->rope_theta = 10000;
    c->positions = sr_config_integer(r, "max_position_embeddings", 2048);
    c->norm_epsilon = sr_config_real(r, r->root, system->epsilon, system->usual_epsilon);
}

srnn_status sr_config_system_read(sr_config_reader *r, const sr_config_system *system,
                                  sr_model_config *config) {
    system_layer layer = {0};
    char text[ATTENTION_BYTES + 64];
    require_all(r, common, sizeof common / sizeof *common);
    require_all(r, system->own, REQUIRED);
    system->read(r, &layer, config);
    read_model(r, system, &layer, config);
    SR_TRY(r->status);
    snprintf(text, sizeof text, "%s,norm_epsilon=%.17g", layer.attention, config->norm_epsilon);
    SR_TRY(sr_model_config_attention(config, text));
    for (int i = 0; i < config->L; i++)
        config->sizes[i] = layer.sizes;
    return SRNN_OK;
}

void sr_config_system_set(json_t *root, const sr_config_system *system,
                          const sr_model_config *config) {
    sr_json_set(root, system->epsilon, json_real(config->norm_epsilon));
    system->set(root, config);
}
