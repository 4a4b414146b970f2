/* json.c: a model's shape from Hugging Face's config.json. */
#include "model/config/json.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"
#include "model/config/foreign.h"
#include "model/config/member.h"
#include "model/config/mlp.h"
#include "model/config/published.h"
#include "model/config/rope.h"
#include "model/config/sizes.h"
#include "model/config/system.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static int token(sr_config_reader *r, const char *key, const json_t *found) {
    if (json_is_array(found))
        found = json_array_get(found, 0);
    return found && !json_is_null(found) ? token_of(r, key, found) : -1;
}

static void set_ends(sr_config_reader *r, sr_model_config *config, const json_t *found) {
    const size_t count = json_is_array(found) ? json_array_size(found) : 0;
    if (count > SR_OTHER_ENDS + 1)
        sr_config_refuse(r, "eos_token_id", "has more tokens than this program keeps");
    config->eos = token(r, "eos_token_id", found);
    for (size_t i = 1; i < count && i <= SR_OTHER_ENDS; i++)
        config->other_ends[config->other_end_count++] =
            token_of(r, "eos_token_id", json_array_get(found, i));
}

/* A file without the member means transformers' default; null means none in most families. */
static void read_ends(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    const json_t *own = family->null_ends ? sr_config_value(r->root, "eos_token_id")
                                          : json_object_get(r->root, "eos_token_id");
    json_t *usual = family->ends ? json_loads(family->ends, JSON_DECODE_ANY, NULL) : NULL;
    set_ends(r, config, own ? own : usual);
    json_decref(usual);
}

static void read_mlp(sr_config_reader *r, sr_model_config *config) {
    const char *act = sr_config_word(r, r->root, "hidden_act", "silu");
    const char *kind = sr_config_word(r, r->root, "mlp_type", "gated");
    config->mlp_bias = sr_config_flag(r, r->root, "mlp_bias", false);
    config->mlp = strcmp(kind, "gelu") == 0   ? SR_MLP_GELU
                  : strcmp(kind, "none") == 0 ? SR_MLP_NONE
                                              : SR_MLP_SWIGLU;
    const bool parts = sr_config_value(r->root, "softrnn_parts") && config->mlp != SR_MLP_NONE;
    if (strcmp(kind, "plain") == 0 || parts)
        sr_config_mlp_set(r, config, "hidden_act", act, strcmp(kind, "plain") != 0);
    config->F = config->mlp == SR_MLP_NONE ? sr_config_integer(r, "intermediate_size", 0)
                                           : needed(r, "intermediate_size");
    if (config->mlp == SR_MLP_SWIGLU && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        sr_config_refuse(r, "hidden_act", "must be silu (or mlp_type gelu for a plain MLP)");
}

static void read_biases(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    const bool given = sr_config_flag(r, r->root, "attention_bias", false);
    switch (family->bias) {
    case SR_FAMILY_BIAS_MEMBER:
        config->qkv_bias = given;
        config->o_bias = sr_config_flag(r, r->root, "softrnn_output_bias", given);
        break;
    case SR_FAMILY_BIAS_QKV:
        config->qkv_bias = true;
        break;
    }
}

static void read_sizes(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    config->H = needed(r, "num_attention_heads");
    const bool silent = !json_object_get(r->root, "num_key_value_heads"); /* null says H */
    config->Hkv = sr_config_integer(r, "num_key_value_heads",
                                    silent && family->key_heads ? family->key_heads : config->H);
    config->D = sr_config_integer(r, "head_dim", config->H > 0 ? config->C / config->H : 0);
    config->positions = sr_config_integer(r, "max_position_embeddings", family->positions);
    config->norm_epsilon = sr_config_real(r, r->root, "rms_norm_eps", 1e-6);
    read_biases(r, family, config);
}

static int expert_number(sr_config_reader *r, const json_t *experts, const char *key) {
    const json_t *found = sr_config_value(experts, key);
    const json_int_t number = json_integer_value(found);
    if (json_is_integer(found) && number >= 0 && number <= SR_WIDTH_MAX)
        return (int)number;
    sr_config_refuse(r, key, "of softrnn_parts' experts is not a number of them, or of columns");
    return 0;
}

static void read_experts(sr_config_reader *r, const json_t *experts, sr_model_config *config) {
    const json_t *plain = sr_config_value(experts, "plain_layers"), *layer;
    sr_experts *e = &config->experts;
    size_t i;
    e->count = expert_number(r, experts, "count");
    e->chosen = expert_number(r, experts, "chosen");
    e->width = expert_number(r, experts, "width");
    e->shared_width = expert_number(r, experts, "shared_width");
    e->renormalised = sr_config_flag(r, experts, "renormalised", false);
    e->router_bias = sr_config_flag(r, experts, "router_bias", false);
    if (plain && !json_is_array(plain))
        sr_config_refuse(r, "plain_layers", "is not a list");
    json_array_foreach(plain, i, layer) {
        const json_int_t number = json_integer_value(layer);
        if (!json_is_integer(layer) || number < 0 || number >= config->L)
            sr_config_refuse(r, "plain_layers", "names a layer that the model does not have");
        else
            sr_experts_set_plain(e, (int)number);
    }
}

static void read_factors(sr_config_reader *r, const json_t *factors, sr_model_config *config) {
    if (factors && (!json_is_array(factors) || json_array_size(factors) != SR_FACTORS))
        sr_config_refuse(r, "factors", "of softrnn_parts is not a list of as many numbers");
    for (int i = 0; factors && i < SR_FACTORS; i++) {
        const json_t *factor = json_array_get(factors, (size_t)i);
        config->factors[i] = json_number_value(factor);
        if (!json_is_number(factor))
            sr_config_refuse(r, "factors", "of softrnn_parts has something other than a number");
    }
}

/* Parts of published families that a Llama does not have, as write.c writes them. */
static void read_parts(sr_config_reader *r, sr_model_config *config) {
    const json_t *parts = sr_config_value(r->root, "softrnn_parts");
    config->layer_norm = sr_config_flag(r, parts, "layer_norm", false);
    config->linear_unbiased = sr_config_flag(r, parts, "linear_unbiased", false);
    config->conv_unbiased = sr_config_flag(r, parts, "conv_unbiased", false);
    config->conv_layer_bias = sr_config_flag(r, parts, "conv_layer_bias", false);
    config->norm_is_minus_one = sr_config_flag(r, parts, "norm_is_minus_one", false);
    config->embedding_multiplier = sr_config_real(r, parts, "embedding_multiplier", 0);
    config->residual_multiplier = sr_config_real(r, parts, "residual_multiplier", 0);
    config->logit_multiplier = sr_config_real(r, parts, "logit_multiplier", 0);
    config->logit_cap = sr_config_real(r, parts, "logit_cap", 0);
    config->activation_limit = sr_config_real(r, parts, "activation_limit", 0);
    config->activation_sharpness = sr_config_real(r, parts, "activation_sharpness", 0);
    config->parallel_bias = sr_config_flag(r, parts, "parallel_bias", false);
    config->parallel_o_bias = sr_config_flag(r, parts, "parallel_output_bias", false);
    if (config->parallel)
        sr_config_parallel_sizes_read(r, config, sr_config_value(parts, "parallel_sizes"));
    read_factors(r, sr_config_value(parts, "factors"), config);
    if (sr_config_value(parts, "experts"))
        read_experts(r, sr_config_value(parts, "experts"), config);
}

/* The config.json of the published model that this one came from. */
static srnn_status read_source(sr_config_reader *r, sr_model_config *config) {
    const json_t *source = sr_config_value(r->root, "softrnn_source");
    return json_is_object(source) ? sr_json_dump(&config->source, source,
                                                 JSON_COMPACT | JSON_REAL_PRECISION(17), r->path)
                                  : SRNN_OK;
}

static void read_shape(sr_config_reader *r, sr_model_config *config) {
    config->V = needed(r, "vocab_size");
    config->C = needed(r, "hidden_size");
    config->L = needed(r, "num_hidden_layers");
    config->tied = sr_config_flag(r, r->root, "tie_word_embeddings", false);
}

/* What every family has. */
static void read_common(sr_config_reader *r, const sr_family *family, sr_model_config *config) {
    config->bos = token(r, "bos_token_id", sr_config_value(r->root, "bos_token_id"));
    read_ends(r, family, config);
}

/* Prefixes the last failure with the file it was found in, once. */
static srnn_status name_file(srnn_status status, const char *path) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    if (strncmp(why, path, strlen(path)) == 0)
        return status;
    return SR_FAIL(status, "%s: %s", path, why);
}

static srnn_status find_family(const sr_family **family, const json_t *root, const char *path) {
    char names[512];
    const json_t *type = json_object_get(root, "model_type");
    *family = sr_family_named(type);
    if (*family)
        return SRNN_OK;
    SR_TRY(sr_published_missing(root, path, false));
    sr_family_names(names, sizeof names);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: model_type is %s; supported are %s", path,
                   json_is_string(type) ? json_string_value(type) : "no text", names);
}

/* A Llama, with any attention. */
static srnn_status read_llama(sr_config_reader *r, const sr_family *family,
                              sr_model_config *config) {
    read_sizes(r, family, config);
    sr_config_rope_read(r, config);
    read_mlp(r, config);
    const char *attention = sr_config_word(r, r->root, "softrnn_attention",
                                           sr_config_word(r, r->root, "attention_type", "softmax"));
    config->reference = sr_config_value(r->root, "attention_type") &&
                        !sr_config_value(r->root, "softrnn_attention");
    SR_TRY(r->status);
    r->status = sr_config_foreign(r->root, config->positions, r->path);
    SR_TRY(r->status);
    SR_TRY(sr_model_config_check_common(config));
    SR_TRY(sr_model_config_attention(config, attention));
    sr_config_sizes_read(r, config);
    read_parts(r, config);
    SR_TRY(r->status);
    return read_source(r, config);
}

static srnn_status read_family(sr_config_reader *r, const sr_family *family,
                               sr_model_config *config) {
    if (family->published && !sr_config_value(r->root, "softrnn_attention"))
        return sr_published_read(r, family->published, config);
    read_shape(r, config);
    return family->system ? sr_config_system_read(r, family->system, config)
                          : read_llama(r, family, config);
}

srnn_status sr_config_from_json(sr_model_config *config, const char *path, const json_t *root) {
    sr_config_reader r = {.root = root, .path = path};
    const sr_family *family;
    if (!json_is_object(root))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a JSON object", path);
    SR_TRY(find_family(&family, root, path));
    read_common(&r, family, config);
    const srnn_status status = read_family(&r, family, config);
    SR_TRY(r.status); /* which names the file */
    const srnn_status checked = status == SRNN_OK ? sr_model_config_check(config) : status;
    return checked == SRNN_OK ? SRNN_OK : name_file(checked, path);
}

/* Python writes a number that JSON has no word for; the same length of something as good. */
static void replace_infinity(char *text, size_t bytes) {
    static const char word[] = "Infinity", number[] = "1.0e+308";
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && bytes - i >= strlen(word) && memcmp(text + i, word, strlen(word)) == 0)
            memcpy(text + i, number, strlen(number));
    }
}

static srnn_status load_root(json_t **root, const char *path) {
    sr_mapping file;
    void *text;
    SR_TRY(sr_mapping_open(&file, path));
    srnn_status status = sr_alloc(&text, file.bytes + 1, 1);
    if (status == SRNN_OK) {
        memcpy(text, file.data, file.bytes);
        replace_infinity(text, file.bytes);
        status = sr_json_parse(root, path, text, file.bytes, JSON_REJECT_DUPLICATES);
        free(text);
    }
    sr_mapping_close(&file);
    return status;
}

srnn_status sr_model_config_read(sr_model_config *config, const char *path) {
    json_t *root = NULL;
    *config = (sr_model_config){0};
    SR_TRY(load_root(&root, path));
    const srnn_status status = sr_config_from_json(config, path, root);
    json_decref(root);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

srnn_status sr_model_config_read_stops(sr_model_config *config, const char *path) {
    json_t *root;
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_json_load(&root, path, 0));
    sr_config_reader r = {.root = root, .path = path};
    const json_t *found = sr_config_value(root, "eos_token_id");
    const size_t count = json_is_array(found) ? json_array_size(found) : found ? 1 : 0;
    if (count > SR_OTHER_ENDS + 1)
        sr_config_refuse(&r, "eos_token_id", "has more tokens than this program keeps");
    for (size_t i = 0; i < count && i <= SR_OTHER_ENDS; i++)
        config->stops[config->stop_count++] =
            token_of(&r, "eos_token_id", json_is_array(found) ? json_array_get(found, i) : found);
    json_decref(root);
    return r.status;
}
