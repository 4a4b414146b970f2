/* write.c: a model's shape to Hugging Face's config.json. */
#include "files/file.h"
#include "files/json.h"
#include "model/config/json.h"
#include "model/config/mlp.h"
#include "model/config/rope.h"
#include "model/config/sizes.h"
#include "model/config/system.h"
#include "model/mixers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_token(json_t *root, const char *key, int id) {
    sr_json_set(root, key, id < 0 ? json_null() : json_integer(id));
}

static void set_ends(json_t *root, const sr_model_config *c) {
    if (!c->other_end_count) {
        set_token(root, "eos_token_id", c->eos);
        return;
    }
    json_t *ends = json_array();
    sr_json_append(ends, json_integer(c->eos));
    for (int i = 0; i < c->other_end_count; i++)
        sr_json_append(ends, json_integer(c->other_ends[i]));
    sr_json_set(root, "eos_token_id", ends);
}

/* torch's name of a type that weights are written in. */
static const char *torch_name(sr_dtype dtype) {
    return dtype == SR_DTYPE_BF16 ? "bfloat16" : dtype == SR_DTYPE_F16 ? "float16" : "float32";
}

/* The preset's name, where every layer has the same and it has one. */
static void set_attention(json_t *root, const sr_model_config *c, const char *text) {
    srnn_attention all;
    const bool uniform = srnn_attention_parse(&all, text) == SRNN_OK;
    const char *name = uniform ? srnn_attention_name(&c->attention[0]) : NULL;
    if (name)
        sr_json_set(root, "attention_type", json_string(name));
    sr_json_set(root, "softrnn_attention", json_string(text));
}

/* What every family has. */
static json_t *common_json(const sr_model_config *c, const sr_family *family, sr_dtype dtype) {
    json_t *root =
        json_pack("{s:[s], s:s, s:i, s:i, s:i, s:b, s:f, s:s}", "architectures",
                  family->architecture, "model_type", family->model_type, "vocab_size", c->V,
                  "hidden_size", c->C, "num_hidden_layers", c->L, "tie_word_embeddings",
                  (int)c->tied, "initializer_range", 0.02, "torch_dtype", torch_name(dtype));
    if (!root)
        return NULL;
    set_token(root, "bos_token_id", c->bos);
    set_ends(root, c);
    return root;
}

static const char *mlp_word(sr_mlp mlp) {
    switch (mlp) {
    case SR_MLP_SWIGLU:
        return NULL;
    case SR_MLP_GELU:
        return "gelu";
    case SR_MLP_NONE:
        return "none";
    case SR_MLP_GATED:
        return "gated";
    case SR_MLP_PLAIN:
        return "plain";
    }
    return NULL;
}

static bool has_activation(const sr_model_config *c) {
    return c->mlp == SR_MLP_GATED || c->mlp == SR_MLP_PLAIN;
}

static json_t *experts_json(const sr_model_config *c) {
    const sr_experts *e = &c->experts;
    json_t *plain = json_array();
    for (int layer = 0; layer < c->L; layer++)
        if (!sr_model_config_has_experts(c, layer))
            sr_json_append(plain, json_integer(layer));
    return json_pack("{s:i, s:i, s:i, s:i, s:b, s:b, s:o}", "count", e->count, "chosen", e->chosen,
                     "width", e->width, "shared_width", e->shared_width, "renormalised",
                     (int)e->renormalised, "router_bias", (int)e->router_bias, "plain_layers",
                     plain);
}

/* What a Llama does not have, see json.c. */
static void set_parts(json_t *root, const sr_model_config *c) {
    if (sr_model_config_is_plain(c))
        return;
    sr_json_set(root, "softrnn_parts",
                json_pack("{s:b, s:b, s:b, s:b, s:b, s:f, s:f, s:f, s:f}", "linear_unbiased",
                          (int)c->linear_unbiased, "conv_unbiased", (int)c->conv_unbiased,
                          "conv_layer_bias", (int)c->conv_layer_bias, "layer_norm",
                          (int)c->layer_norm, "norm_is_minus_one", (int)c->norm_is_minus_one,
                          "embedding_multiplier", c->embedding_multiplier, "residual_multiplier",
                          c->residual_multiplier, "logit_multiplier", c->logit_multiplier,
                          "logit_cap", c->logit_cap));
    json_t *parts = json_object_get(root, "softrnn_parts");
    if (c->experts.count > 0)
        sr_json_set(parts, "experts", experts_json(c));
    if (c->parallel) {
        sr_json_set(parts, "parallel_bias", json_boolean(c->parallel_bias));
        sr_json_set(parts, "parallel_output_bias", json_boolean(c->parallel_o_bias));
        sr_json_set(parts, "parallel_sizes", sr_config_parallel_sizes_json(c));
    }
    json_t *factors = json_array();
    for (int i = 0; i < SR_FACTORS; i++)
        sr_json_append(factors, json_real(c->factors[i]));
    sr_json_set(parts, "factors", factors);
    if (c->activation == SR_ACTIVATION_SILU_CLAMPED) {
        sr_json_set(parts, "activation_limit", json_real(c->activation_limit));
        sr_json_set(parts, "activation_sharpness", json_real(c->activation_sharpness));
    }
}

static void set_source(json_t *root, const sr_model_config *c) {
    if (c->source)
        sr_json_set(root, "softrnn_source", json_loads(c->source, 0, NULL));
}

static void set_llama(json_t *root, const sr_model_config *c, const sr_family *family) {
    const char *mlp = mlp_word(c->mlp);
    sr_json_set(root, "intermediate_size", json_integer(c->F));
    sr_json_set(root, "num_attention_heads", json_integer(c->H));
    sr_json_set(root, "num_key_value_heads", json_integer(c->Hkv));
    sr_json_set(root, "head_dim", json_integer(c->D));
    sr_json_set(root, "max_position_embeddings", json_integer(c->positions));
    sr_json_set(root, "rms_norm_eps", json_real(c->norm_epsilon));
    sr_json_set(root, "rope_theta", json_real(c->rope_theta));
    sr_json_set(root, "rope_scaling", sr_config_rope_json(&c->rope_scaling));
    sr_json_set(root, "attention_bias", json_boolean(c->qkv_bias));
    sr_json_set(root, "mlp_bias", json_boolean(c->mlp_bias));
    sr_json_set(root, "hidden_act",
                json_string(has_activation(c)       ? sr_config_activation_word(c->activation)
                            : c->mlp == SR_MLP_GELU ? "gelu"
                                                    : "silu"));
    if (mlp)
        sr_json_set(root, "mlp_type", json_string(mlp));
    if (c->o_bias != c->qkv_bias && family->bias == SR_FAMILY_BIAS_MEMBER)
        sr_json_set(root, "softrnn_output_bias", json_boolean(c->o_bias));
    set_parts(root, c);
    set_source(root, c);
    json_t *sizes = sr_config_sizes_json(c);
    if (sizes)
        sr_json_set(root, "softrnn_sizes", sizes);
}

/* Whether every number of the file comes back from this many digits. */
static bool digits_suffice(const json_t *value, int digits) {
    const char *name;
    json_t *member;
    size_t i;
    char text[64];
    if (json_is_real(value)) {
        snprintf(text, sizeof text, "%.*g", digits, json_real_value(value));
        return strtod(text, NULL) == json_real_value(value);
    }
    bool suffice = true;
    json_object_foreach((json_t *)value, name, member) suffice =
        suffice && digits_suffice(member, digits);
    json_array_foreach(value, i, member) suffice = suffice && digits_suffice(member, digits);
    return suffice;
}

/* The published model's own file, with the type of the weights next to it. */
static json_t *source_json(const sr_model_config *c, sr_dtype dtype) {
    json_t *root = json_loads(c->source, 0, NULL);
    const char *key = json_object_get(root, "torch_dtype") ? "torch_dtype" : "dtype";
    if (root && (json_object_get(root, key) || dtype != SR_DTYPE_F32))
        sr_json_set(root, key, json_string(torch_name(dtype)));
    if (root && c->head_kept)
        sr_json_set(root, "tie_word_embeddings", json_false());
    return root;
}

/* *text = the file; free() it. */
static srnn_status config_text(char **text, const sr_model_config *c, const sr_family *family,
                               sr_dtype dtype) {
    char *attention = NULL;
    SR_TRY(sr_model_config_attention_text(&attention, c));
    const bool published = family->published && c->source;
    json_t *root = published ? source_json(c, dtype) : common_json(c, family, dtype);
    if (published) {
        ; /* it says everything */
    } else if (root && family->system) {
        sr_config_system_set(root, family->system, c);
    } else if (root) {
        set_llama(root, c, family);
        set_attention(root, c, attention);
    }
    free(attention);
    const size_t digits = digits_suffice(root, 15)
                              ? 15
                              : 17; /* 17 always do, and write 1e-5 as 1.0000000000000001e-05 */
    const srnn_status status =
        sr_json_dump(text, root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits),
                     "config.json");
    json_decref(root);
    return status;
}

srnn_status sr_model_config_write(const sr_model_config *config, const sr_family *family,
                                  sr_dtype dtype, const char *path) {
    char *text;
    SR_TRY(config_text(&text, config, family, dtype));
    const size_t length = strlen(text);
    text[length] = '\n'; /* in place of its end */
    const srnn_status status = sr_file_replace(path, text, length + 1);
    free(text);
    return status;
}

/* ---- the family that others know */

static bool same_layers(const sr_model_config *a, const sr_model_config *b) {
    if (!a->parallel != !b->parallel)
        return false;
    for (int layer = 0; layer < a->L; layer++)
        if (!sr_attention_same(&a->attention[layer], &b->attention[layer]) ||
            memcmp(&a->sizes[layer], &b->sizes[layer], sizeof *a->sizes) != 0 ||
            (a->parallel &&
             (!sr_attention_same(&a->parallel[layer], &b->parallel[layer]) ||
              memcmp(&a->parallel_sizes[layer], &b->parallel_sizes[layer], sizeof *a->sizes) != 0)))
            return false;
    return true;
}

static bool same_model(const sr_model_config *a, const sr_model_config *b) {
    return a->V == b->V && a->C == b->C && a->L == b->L && a->mlp == b->mlp &&
           (a->mlp == SR_MLP_NONE || a->F == b->F) && a->norm_epsilon == b->norm_epsilon &&
           a->tied == b->tied && a->qkv_bias == b->qkv_bias && a->o_bias == b->o_bias &&
           a->mlp_bias == b->mlp_bias && a->linear_unbiased == b->linear_unbiased &&
           a->conv_unbiased == b->conv_unbiased && a->conv_layer_bias == b->conv_layer_bias &&
           a->activation == b->activation && a->activation_limit == b->activation_limit &&
           a->activation_sharpness == b->activation_sharpness &&
           memcmp(&a->experts, &b->experts, sizeof a->experts) == 0 &&
           a->layer_norm == b->layer_norm && a->norm_is_minus_one == b->norm_is_minus_one &&
           a->embedding_multiplier == b->embedding_multiplier &&
           a->residual_multiplier == b->residual_multiplier &&
           a->logit_multiplier == b->logit_multiplier && a->logit_cap == b->logit_cap &&
           a->rope_theta == b->rope_theta && a->rope_scaling.kind == b->rope_scaling.kind &&
           a->parallel_bias == b->parallel_bias && a->parallel_o_bias == b->parallel_o_bias &&
           memcmp(a->factors, b->factors, sizeof a->factors) == 0 && same_layers(a, b);
}

/* *fits: what the family's file would say reads back as the same model. */
static srnn_status try_family(bool *fits, const sr_model_config *c, const sr_family *family) {
    sr_model_config again = {0};
    char *text;
    json_t *root;
    *fits = false;
    SR_TRY(config_text(&text, c, family, SR_DTYPE_F32));
    srnn_status status = sr_json_parse(&root, "config.json", text, strlen(text), 0);
    free(text);
    SR_TRY(status);
    status = sr_config_from_json(&again, "config.json", root);
    *fits = status == SRNN_OK && same_model(c, &again);
    sr_model_config_free(&again);
    json_decref(root);
    return status == SRNN_ERR_MEMORY ? status : SRNN_OK;
}

/* The family of the published model that this one came from; NULL: none. */
static const sr_family *source_family(const sr_model_config *config) {
    json_t *root = config->source ? json_loads(config->source, 0, NULL) : NULL;
    const sr_family *family = root ? sr_family_named(json_object_get(root, "model_type")) : NULL;
    json_decref(root);
    return family && family->published ? family : NULL;
}

srnn_status sr_model_config_public(const sr_family **family, const sr_model_config *config) {
    bool fits = false;
    *family = source_family(config);
    if (*family)
        SR_TRY(try_family(&fits, config, *family));
    if (fits)
        return SRNN_OK;
    for (size_t i = 0; sr_family_at(i) && sr_mixer_row_of(config)->attends; i++) {
        *family = sr_family_at(i);
        if ((*family)->system)
            SR_TRY(try_family(&fits, config, *family));
        if (fits)
            return SRNN_OK;
    }
    *family = sr_family_of(config);
    return SRNN_OK;
}
