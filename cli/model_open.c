/* model_open.c: a model from whatever a user names. */
#include "model_open.h"

#include "train/run_checkpoint.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_bin(const char *where) {
    const size_t length = strlen(where);
    return length > 4 && strcmp(where + length - 4, ".bin") == 0;
}

/* path = the model's folder: `where`, or the last checkpoint in it. */
static srnn_status find_folder(char path[SR_PATH_BYTES], const char *where) {
    if (snprintf(path, SR_PATH_BYTES, "%s/config.json", where) >= SR_PATH_BYTES)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", where);
    if (access(path, F_OK) != 0)
        SR_TRY(sr_checkpoint_latest(path, where));
    else
        path[0] = '\0';
    if (!*path)
        snprintf(path, SR_PATH_BYTES, "%s", where);
    return SRNN_OK;
}

srnn_status model_open(sr_model **model, sr_backend *backend, const char *where) {
    char path[SR_PATH_BYTES];
    if (is_bin(where))
        return sr_model_load_llama2c(model, backend, where);
    SR_TRY(find_folder(path, where));
    return sr_model_load(model, backend, path);
}

srnn_status model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                 int V) {
    enum { BYTE_TOKENS = 257 };
    char path[SR_PATH_BYTES];
    if (name)
        return sr_tokenizer_load(tokenizer, name);
    if (is_bin(model))
        snprintf(path, sizeof path, "%s", model);
    else
        SR_TRY(find_folder(path, model));
    const srnn_status status = sr_tokenizer_load(tokenizer, is_bin(model) ? dirname(path) : path);
    if (status != SRNN_OK && V == BYTE_TOKENS)
        return sr_tokenizer_create_bytes(tokenizer);
    return status;
}
