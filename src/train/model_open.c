/* model_open.c: a model, and its tokenizer, opened by name: folder, run or .bin file. */
#include "train/model_open.h"

#include "data/tokenizer/files/copy.h"
#include "train/run/checkpoint.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

bool sr_model_is_bin(const char *where) {
    const size_t length = strlen(where);
    return length > 4 && strcmp(where + length - 4, ".bin") == 0;
}

static bool is_gguf(const char *where) {
    const size_t length = strlen(where);
    return length > 5 && strcasecmp(where + length - 5, ".gguf") == 0;
}

srnn_status sr_model_open(sr_model **model, sr_backend *backend, const char *where,
                          const sr_load_setup *setup) {
    char path[SR_PATH_BYTES];
    if (sr_model_is_bin(where))
        return sr_model_load_llama2c(model, backend, where);
    if (is_gguf(where))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: GGUF is not read; use the folder with config.json and safetensors that "
                       "the model was published as",
                       where);
    SR_TRY(sr_checkpoint_model(path, where));
    return sr_model_load_as(model, backend, path, setup ? setup : &(sr_load_setup){0});
}

/* The name of a tensor that only `one` has, or that has another shape in it; NULL: none. */
static const char *only_in(const sr_tensor_table *one, const sr_tensor_table *other) {
    for (size_t i = 0; i < one->count; i++) {
        const sr_tensor_spec *spec = &one->specs[i];
        const sr_tensor_spec *same = sr_tensor_table_find(other, spec->name);
        if (!same || same->start != spec->start || same->rank != spec->rank ||
            memcmp(same->shape, spec->shape, (size_t)spec->rank * sizeof *spec->shape) != 0)
            return spec->name;
    }
    return NULL;
}

/* No tensor is initialised here: the model must have exactly the tensors that the attention
 * takes. */
static srnn_status check_same_tensors(const sr_model_config *config, const sr_model *model,
                                      const char *where, const char *attention) {
    sr_tensor_table table = {0};
    srnn_status status = sr_model_tensors(&table, config);
    const char *new = status == SRNN_OK ? only_in(&table, &model->table) : NULL;
    const char *old = status == SRNN_OK ? only_in(&model->table, &table) : NULL;
    if (new || old)
        status = SR_FAIL(SRNN_ERR_ARGUMENT,
                         "%s: with attention %s it %s %s; softrnn train --model %s --attention %s "
                         "trains such a model",
                         where, attention,
                         new ? "needs a tensor that it does not have:" : "has no use for",
                         new ? new : old, where, attention);
    sr_tensor_table_free(&table);
    return status;
}

/* *changed = the model's weights with the attention of `config`. */
static srnn_status copy_model(sr_model **changed, const sr_model *model,
                              const sr_model_config *config) {
    SR_TRY(sr_model_create(changed, model->backend, config));
    srnn_status status = sr_device_copy(model->backend->device, (*changed)->weights, model->weights,
                                        model->table.numbers * sizeof *model->weights);
    if (status == SRNN_OK)
        status = sr_model_narrow(*changed);
    if (status != SRNN_OK)
        sr_model_free(*changed);
    return status;
}

srnn_status sr_model_open_as(sr_model **model, sr_backend *backend, const char *where,
                             const char *attention, const sr_load_setup *setup) {
    sr_model *own, *changed;
    sr_model_config config;
    sr_load_setup whole = setup ? *setup : (sr_load_setup){0};
    whole.read_only = false; /* its weights are copied */
    *model = NULL;
    SR_TRY(sr_model_open(&own, backend, where, &whole));
    srnn_status status = sr_model_config_copy(&config, &own->config);
    if (status == SRNN_OK)
        status = sr_model_config_attention(&config, attention);
    if (status == SRNN_OK)
        status = check_same_tensors(&config, own, where, attention);
    if (status == SRNN_OK)
        status = copy_model(&changed, own, &config);
    if (status == SRNN_OK)
        *model = changed;
    sr_model_config_free(&config);
    sr_model_free(own);
    return status;
}

/* Whether a model with V embeddings can belong to a tokenizer: vocabularies are often padded. */
static bool fits(int V, int64_t tokens) {
    bool found = V == tokens;
    for (int unit = 8; unit <= 128; unit *= 2)
        found |= V == (tokens + unit - 1) / unit * unit;
    return found;
}

/* A tokenizer in the folder of a .bin file may be unrelated to it: name = "" if its vocabulary does
 * not fit. */
static srnn_status check_beside(char name[SR_PATH_BYTES], int V) {
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_load(&tokenizer, name));
    if (!fits(V, (int64_t)sr_tokenizer_vocab_size(tokenizer)))
        *name = '\0';
    sr_tokenizer_free(tokenizer);
    return SRNN_OK;
}

/* llama2.c names the tokenizers it trained after their vocabulary size: name = the one of size V,
 * or "". */
static srnn_status find_numbered(char name[SR_PATH_BYTES], const char *folder, int V) {
    static const char *const endings[] = {"bin", "model"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        SR_TRY(sr_path_print(name, "%s/tok%d.%s", folder, V, endings[i]));
        if (access(name, F_OK) == 0)
            return SRNN_OK;
    }
    *name = '\0';
    return SRNN_OK;
}

static srnn_status find_beside_bin(char name[SR_PATH_BYTES], const char *bin) {
    char path[SR_PATH_BYTES];
    int V;
    SR_TRY(sr_path_print(path, "%s", bin));
    const char *folder = dirname(path);
    SR_TRY(sr_model_llama2c_tokens(&V, bin));
    SR_TRY(sr_path_print(name, "%s", folder));
    if (!sr_tokenizer_is_in(name))
        SR_TRY(find_numbered(name, folder, V));
    return *name ? check_beside(name, V) : SRNN_OK;
}

srnn_status sr_model_tokenizer_path(char name[SR_PATH_BYTES], const char *model) {
    if (sr_model_is_bin(model))
        return find_beside_bin(name, model);
    SR_TRY(sr_checkpoint_tokenizer(name, model));
    if (!sr_tokenizer_is_in(name))
        *name = '\0';
    return SRNN_OK;
}

/* Lists the files that were tried. */
static srnn_status fail_without(const char *model, int V) {
    char numbered[64] = "";
    if (sr_model_is_bin(model))
        snprintf(numbered, sizeof numbered, ", tok%d.bin, tok%d.model", V, V);
    return SR_FAIL(SRNN_ERR_IO,
                   "%s: no tokenizer for its %d tokens is in its folder (tokenizer.json, "
                   "tokenizer.json.gz, tokenizer.model, tokenizer.bin%s); name one with "
                   "--tokenizer",
                   model, V, numbered);
}

srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V) {
    char nearby[SR_PATH_BYTES];
    if (name)
        return sr_tokenizer_load(tokenizer, name);
    SR_TRY(sr_model_tokenizer_path(nearby, model));
    if (*nearby)
        return sr_tokenizer_load(tokenizer, nearby);
    return V == SR_BYTE_TOKENS ? sr_tokenizer_create_bytes(tokenizer) : fail_without(model, V);
}
