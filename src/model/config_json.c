/* config_json.c: a model's shape from and to Hugging Face's config.json. */
#include "files/file.h"
#include "files/json.h"
#include "model/config.h"
#include "model/config_family.h"
#include "model/config_foreign.h"
#include "model/config_member.h"
#include "model/config_rope.h"
#include "model/config_sizes.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int needed(sr_config_reader *r, const char *key) {
    if (!sr_config_value(r->root, key))
        sr_config_refuse(r, key, "is missing");
    return sr_config_integer(r, key, 0);
}

static int token_of(sr_config_reader *r, const char *key, const json_t *found) {
    const json_int_t id = json_integer_value(found);
    if (!json_is_integer(found) || id < -1 || id > INT_MAX) {
        sr_config_refuse(r, key, "is not a token id");
        return -1;
    }
    return (int)id;
}

/* A token id may be a number, or a list: of beginnings the first counts, of ends all do. */
static int token(sr_config_reader *r, const char *key) {
    const json_t *found = sr_config_value(r->root, key);
    if (json_is_array(found))
        found = json_array_get(found, 0);
    return found ? token_of(r, key, found) : -1;
}

static void read_other_ends(sr_config_reader *r, sr_model_config *config) {
    const json_t *found = sr_config_value(r->root, "eos_token_id");
    const size_t count = json_is_array(found) ? json_array_size(found) : 0;
    if (count > SR_OTHER_ENDS + 1)
        sr_config_refuse(r, "eos_token_id", "has more tokens than this program keeps");
    for (size_t i = 1; i < count && i <= SR_OTHER_ENDS; i++)
        config->other_ends[config->other_end_count++] =
            token_of(r, "eos_token_id", json_array_get(found, i));
}

static void read_mlp(sr_config_reader *r, sr_model_config *config) {
    const char *act = sr_config_word(r, r->root, "hidden_act", "silu");
    const char *kind = sr_config_word(r, r->root, "mlp_type", "gated");
    config->mlp_bias = sr_config_flag(r, r->root, "mlp_bias", false);
    config->mlp = strcmp(kind, "gelu") == 0 ? SR_MLP_GELU : SR_MLP_SWIGLU;
    if (config->mlp == SR_MLP_SWIGLU && strcmp(act, "silu") != 0)
        sr_config_refuse(r, "hidden_act", "must be silu (or mlp_type gelu for a plain MLP)");
}

static void read_biases(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    const bool given = sr_config_flag(r, r->root, "attention_bias", false);
    switch (family->bias) {
    case SR_FAMILY_BIAS_MEMBER:
        config->qkv_bias = given;
        config->o_bias = sr_config_flag(r, r->root, "softrnn_output_bias", given);
        break;
    case SR_FAMILY_BIAS_NONE:
        break;
    case SR_FAMILY_BIAS_QKV:
        config->qkv_bias = true;
        break;
    }
}

static void read_sizes(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    config->V = needed(r, "vocab_size");
    config->C = needed(r, "hidden_size");
    config->F = needed(r, "intermediate_size");
    config->L = needed(r, "num_hidden_layers");
    config->H = needed(r, "num_attention_heads");
    const bool silent = !json_object_get(r->root, "num_key_value_heads"); /* null says H */
    config->Hkv = sr_config_integer(r, "num_key_value_heads",
                                    silent && family->key_heads ? family->key_heads : config->H);
    config->D = sr_config_integer(r, "head_dim", config->H > 0 ? config->C / config->H : 0);
    config->positions = sr_config_integer(r, "max_position_embeddings", family->positions);
    config->norm_epsilon = sr_config_real(r, r->root, "rms_norm_eps", 1e-6);
    config->tied = sr_config_flag(r, r->root, "tie_word_embeddings", false);
    read_biases(r, family, config);
    config->bos = token(r, "bos_token_id");
    config->eos = token(r, "eos_token_id");
    read_other_ends(r, config);
}

/* The failure just told, with the file it was found in. */
static srnn_status name_file(srnn_status status, const char *path) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s: %s", path, why);
}

static srnn_status find_family(const sr_family **family, const json_t *type, const char *path) {
    char names[128];
    *family = sr_family_named(type);
    if (*family)
        return SRNN_OK;
    sr_family_names(names, sizeof names);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: model_type is %s; supported are %s", path,
                   json_is_string(type) ? json_string_value(type) : "no text", names);
}

static srnn_status read_root(sr_model_config *config, const char *path, const json_t *root) {
    sr_config_reader r = {.root = root, .path = path};
    const sr_family *family;
    if (!json_is_object(root))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a JSON object", path);
    SR_TRY(find_family(&family, json_object_get(root, "model_type"), path));
    read_sizes(&r, family, config);
    sr_config_rope_read(&r, config);
    read_mlp(&r, config);
    const char *attention = sr_config_word(&r, root, "softrnn_attention",
                                           sr_config_word(&r, root, "attention_type", "softmax"));
    config->reference =
        sr_config_value(root, "attention_type") && !sr_config_value(root, "softrnn_attention");
    SR_TRY(r.status);
    SR_TRY(sr_config_foreign(root, family, config->positions, path));
    srnn_status status = sr_model_config_attention(config, attention);
    if (status == SRNN_OK) {
        sr_config_sizes_read(&r, config);
        SR_TRY(r.status);
        status = sr_model_config_check(config);
    }
    return status == SRNN_OK ? SRNN_OK : name_file(status, path);
}

srnn_status sr_model_config_read(sr_model_config *config, const char *path) {
    json_t *root;
    *config = (sr_model_config){0};
    SR_TRY(sr_json_load(&root, path, JSON_REJECT_DUPLICATES));
    const srnn_status status = read_root(config, path, root);
    json_decref(root);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

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

static json_t *config_json(const sr_model_config *c, const char *attention, sr_dtype dtype) {
    const sr_family *family = sr_family_of(c);
    json_t *root = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:b, s:b, s:s, s:f, "
        "s:s}",
        "architectures", family->architecture, "model_type", family->model_type, "vocab_size", c->V,
        "hidden_size", c->C, "intermediate_size", c->F, "num_hidden_layers", c->L,
        "num_attention_heads", c->H, "num_key_value_heads", c->Hkv, "head_dim", c->D,
        "max_position_embeddings", c->positions, "rms_norm_eps", c->norm_epsilon, "rope_theta",
        c->rope_theta, "tie_word_embeddings", (int)c->tied, "attention_bias", (int)c->qkv_bias,
        "mlp_bias", (int)c->mlp_bias, "hidden_act", c->mlp == SR_MLP_GELU ? "gelu" : "silu",
        "initializer_range", 0.02, "torch_dtype", torch_name(dtype));
    if (!root)
        return NULL;
    sr_json_set(root, "rope_scaling", sr_config_rope_json(&c->rope_scaling));
    set_token(root, "bos_token_id", c->bos);
    set_ends(root, c);
    if (c->mlp == SR_MLP_GELU)
        sr_json_set(root, "mlp_type", json_string("gelu"));
    if (c->o_bias != c->qkv_bias && family->bias == SR_FAMILY_BIAS_MEMBER)
        sr_json_set(root, "softrnn_output_bias", json_boolean(c->o_bias));
    set_attention(root, c, attention);
    json_t *sizes = sr_config_sizes_json(c);
    if (sizes)
        sr_json_set(root, "softrnn_sizes", sizes);
    return root;
}

srnn_status sr_model_config_write(const sr_model_config *config, sr_dtype dtype, const char *path) {
    char *attention = NULL, *text;
    SR_TRY(sr_model_config_attention_text(&attention, config));
    json_t *root = config_json(config, attention, dtype);
    free(attention);
    const srnn_status made =
        sr_json_dump(&text, root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15), path);
    json_decref(root);
    SR_TRY(made);
    const size_t length = strlen(text);
    text[length] = '\n'; /* in place of its end */
    const srnn_status status = sr_file_replace(path, text, length + 1);
    free(text);
    return status;
}
