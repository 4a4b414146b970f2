/* config_json.c: a model's shape from and to Hugging Face's config.json. */
#include "files/file.h"
#include "model/config.h"
#include "model/config_foreign.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const json_t *root;
    const char *path;
    srnn_status status; /* the first failure */
} reader;

/* The value of a key; NULL if it is missing or null. */
static const json_t *value(const json_t *object, const char *key) {
    const json_t *found = json_object_get(object, key);
    return found && !json_is_null(found) ? found : NULL;
}

static void refuse(reader *r, const char *key, const char *what) {
    if (r->status == SRNN_OK)
        r->status = SR_FAIL(SRNN_ERR_FORMAT, "%s: %s %s", r->path, key, what);
}

static int integer(reader *r, const char *key, int otherwise) {
    const json_t *found = value(r->root, key);
    if (!found)
        return otherwise;
    const json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < INT_MIN || number > INT_MAX) {
        refuse(r, key, "is not a whole number");
        return otherwise;
    }
    return (int)number;
}

static int needed(reader *r, const char *key) {
    if (!value(r->root, key))
        refuse(r, key, "is missing");
    return integer(r, key, 0);
}

static double real(reader *r, const json_t *object, const char *key, double otherwise) {
    const json_t *found = value(object, key);
    if (found && !json_is_number(found))
        refuse(r, key, "is not a number");
    return found ? json_number_value(found) : otherwise;
}

static bool flag(reader *r, const char *key) {
    const json_t *found = value(r->root, key);
    if (found && !json_is_boolean(found))
        refuse(r, key, "is neither true nor false");
    return json_is_true(found);
}

static const char *word(reader *r, const json_t *object, const char *key, const char *otherwise) {
    const json_t *found = value(object, key);
    if (found && !json_is_string(found))
        refuse(r, key, "is not a text");
    return json_is_string(found) ? json_string_value(found) : otherwise;
}

static int token_of(reader *r, const char *key, const json_t *found) {
    const json_int_t id = json_integer_value(found);
    if (!json_is_integer(found) || id < -1 || id > INT_MAX) {
        refuse(r, key, "is no token id");
        return -1;
    }
    return (int)id;
}

/* A token id may be a number, or a list: of beginnings the first counts, of ends all do. */
static int token(reader *r, const char *key) {
    const json_t *found = value(r->root, key);
    if (json_is_array(found))
        found = json_array_get(found, 0);
    return found ? token_of(r, key, found) : -1;
}

static void read_other_ends(reader *r, sr_model_config *config) {
    const json_t *found = value(r->root, "eos_token_id");
    const size_t count = json_is_array(found) ? json_array_size(found) : 0;
    if (count > SR_OTHER_ENDS + 1)
        refuse(r, "eos_token_id", "has more tokens than this program keeps");
    for (size_t i = 1; i < count && i <= SR_OTHER_ENDS; i++)
        config->other_ends[config->other_end_count++] =
            token_of(r, "eos_token_id", json_array_get(found, i));
}

static void read_scaling(reader *r, sr_model_config *config) {
    const json_t *scaling = value(r->root, "rope_scaling");
    /* Newer files keep theta and scaling together. */
    const json_t *parameters = value(r->root, "rope_parameters");
    config->rope_theta = real(r, r->root, "rope_theta", 10000.0);
    if (parameters) {
        config->rope_theta = real(r, parameters, "rope_theta", config->rope_theta);
        scaling = parameters;
    }
    if (!scaling)
        return;
    const char *kind = word(r, scaling, "rope_type", word(r, scaling, "type", "default"));
    sr_rope_scaling *s = &config->rope_scaling;
    s->factor = real(r, scaling, "factor", 1.0);
    if (strcmp(kind, "linear") == 0) {
        s->kind = SR_ROPE_LINEAR;
    } else if (strcmp(kind, "llama3") == 0) {
        s->kind = SR_ROPE_LLAMA3;
        s->low_frequency_factor = real(r, scaling, "low_freq_factor", 1.0);
        s->high_frequency_factor = real(r, scaling, "high_freq_factor", 4.0);
        const double original = real(r, scaling, "original_max_position_embeddings", 8192.0);
        if (!(original >= 1 && original <= SR_POSITIONS_MAX))
            refuse(r, "original_max_position_embeddings", "makes no sense");
        else
            s->original_positions = (int64_t)original;
        if (!(s->high_frequency_factor > s->low_frequency_factor))
            refuse(r, "rope_scaling", "needs high_freq_factor above low_freq_factor");
    } else if (strcmp(kind, "default") != 0) {
        refuse(r, "rope_scaling", "must be default, linear or llama3");
    }
    if (!(s->factor > 0))
        refuse(r, "rope_scaling", "needs a factor above 0");
}

static void read_mlp(reader *r, sr_model_config *config) {
    const char *act = word(r, r->root, "hidden_act", "silu");
    const char *kind = word(r, r->root, "mlp_type", "gated");
    config->mlp_bias = flag(r, "mlp_bias");
    config->mlp = strcmp(kind, "gelu") == 0 ? SR_MLP_GELU : SR_MLP_SWIGLU;
    if (config->mlp == SR_MLP_SWIGLU && strcmp(act, "silu") != 0)
        refuse(r, "hidden_act", "must be silu (or mlp_type gelu for a plain MLP)");
}

static void read_sizes(reader *r, sr_model_config *config) {
    config->V = needed(r, "vocab_size");
    config->C = needed(r, "hidden_size");
    config->F = needed(r, "intermediate_size");
    config->L = needed(r, "num_hidden_layers");
    config->H = needed(r, "num_attention_heads");
    config->Hkv = integer(r, "num_key_value_heads", config->H);
    config->D = integer(r, "head_dim", config->H > 0 ? config->C / config->H : 0);
    config->positions = integer(r, "max_position_embeddings", 2048);
    config->norm_epsilon = real(r, r->root, "rms_norm_eps", 1e-6);
    config->tied = flag(r, "tie_word_embeddings");
    config->qkv_bias = config->o_bias = flag(r, "attention_bias");
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

static srnn_status read_root(sr_model_config *config, const char *path, const json_t *root) {
    reader r = {.root = root, .path = path};
    if (!json_is_object(root))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a JSON object", path);
    read_sizes(&r, config);
    read_scaling(&r, config);
    read_mlp(&r, config);
    const char *attention =
        word(&r, root, "softrnn_attention", word(&r, root, "attention_type", "softmax"));
    config->reference = value(root, "attention_type") && !value(root, "softrnn_attention");
    SR_TRY(r.status);
    SR_TRY(sr_config_foreign(root, config->positions, path));
    srnn_status status = sr_model_config_attention(config, attention);
    if (status == SRNN_OK)
        status = sr_model_config_check(config);
    return status == SRNN_OK ? SRNN_OK : name_file(status, path);
}

srnn_status sr_model_config_read(sr_model_config *config, const char *path) {
    sr_mapping file;
    json_error_t error;
    *config = (sr_model_config){0};
    SR_TRY(sr_mapping_open(&file, path));
    json_t *root = json_loadb((const char *)file.data, file.bytes, JSON_REJECT_DUPLICATES, &error);
    sr_mapping_close(&file);
    if (!root)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    const srnn_status status = read_root(config, path, root);
    json_decref(root);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

static json_t *scaling_json(const sr_rope_scaling *s) {
    switch (s->kind) {
    case SR_ROPE_DEFAULT:
        return json_null();
    case SR_ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", s->factor);
    case SR_ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", s->factor,
                         "low_freq_factor", s->low_frequency_factor, "high_freq_factor",
                         s->high_frequency_factor, "original_max_position_embeddings",
                         (json_int_t)s->original_positions);
    }
    return NULL;
}

static void set_token(json_t *root, const char *key, int id) {
    json_object_set_new(root, key, id < 0 ? json_null() : json_integer(id));
}

static void set_ends(json_t *root, const sr_model_config *c) {
    if (!c->other_end_count) {
        set_token(root, "eos_token_id", c->eos);
        return;
    }
    json_t *ends = json_array();
    json_array_append_new(ends, json_integer(c->eos));
    for (int i = 0; i < c->other_end_count; i++)
        json_array_append_new(ends, json_integer(c->other_ends[i]));
    json_object_set_new(root, "eos_token_id", ends);
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
        json_object_set_new(root, "attention_type", json_string(name));
    json_object_set_new(root, "softrnn_attention", json_string(text));
}

static json_t *config_json(const sr_model_config *c, const char *attention, sr_dtype dtype) {
    json_t *root = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:b, s:b, s:s, s:f, "
        "s:s}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "vocab_size", c->V,
        "hidden_size", c->C, "intermediate_size", c->F, "num_hidden_layers", c->L,
        "num_attention_heads", c->H, "num_key_value_heads", c->Hkv, "head_dim", c->D,
        "max_position_embeddings", c->positions, "rms_norm_eps", c->norm_epsilon, "rope_theta",
        c->rope_theta, "tie_word_embeddings", (int)c->tied, "attention_bias", (int)c->qkv_bias,
        "mlp_bias", (int)c->mlp_bias, "hidden_act", c->mlp == SR_MLP_GELU ? "gelu" : "silu",
        "initializer_range", 0.02, "torch_dtype", torch_name(dtype));
    if (!root)
        return NULL;
    json_object_set_new(root, "rope_scaling", scaling_json(&c->rope_scaling));
    set_token(root, "bos_token_id", c->bos);
    set_ends(root, c);
    if (c->mlp == SR_MLP_GELU)
        json_object_set_new(root, "mlp_type", json_string("gelu"));
    set_attention(root, c, attention);
    return root;
}

srnn_status sr_model_config_write(const sr_model_config *config, sr_dtype dtype, const char *path) {
    char *attention = NULL, *text = NULL;
    SR_TRY(sr_model_config_attention_text(&attention, config));
    json_t *root = config_json(config, attention, dtype);
    free(attention);
    if (root)
        text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    json_decref(root);
    if (!text)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    const size_t length = strlen(text);
    text[length] = '\n'; /* in place of its end */
    const srnn_status status = sr_file_replace(path, text, length + 1);
    free(text);
    return status;
}
