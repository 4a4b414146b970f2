/* model_open.c: a model from whatever a user names. */
#include "model_open.h"

#include "train/run_checkpoint.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool model_is_bin(const char *where) {
    const size_t length = strlen(where);
    return length > 4 && strcmp(where + length - 4, ".bin") == 0;
}

srnn_status model_open(sr_model **model, sr_backend *backend, const char *where) {
    char path[SR_PATH_BYTES];
    if (model_is_bin(where))
        return sr_model_load_llama2c(model, backend, where);
    SR_TRY(sr_checkpoint_model(path, where));
    SR_TRY(sr_model_load(model, backend, path));
    model_tell_head(&(*model)->config, where);
    return SRNN_OK;
}

void model_tell_head(const sr_model_config *config, const char *where) {
    if (config->head_kept)
        fprintf(stderr,
                "softrnn: %s: tie_word_embeddings is true, but lm_head.weight differs from the "
                "embedding and is used, as transformers does\n",
                where);
}

srnn_status model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                 int V) {
    char path[SR_PATH_BYTES];
    if (name)
        return sr_tokenizer_load(tokenizer, name);
    if (model_is_bin(model))
        snprintf(path, sizeof path, "%s", model);
    else
        SR_TRY(sr_checkpoint_model(path, model));
    const srnn_status status =
        sr_tokenizer_load(tokenizer, model_is_bin(model) ? dirname(path) : path);
    if (status != SRNN_OK && V == SR_BYTE_TOKENS)
        return sr_tokenizer_create_bytes(tokenizer);
    return status;
}
