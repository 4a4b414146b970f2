/* model_open.c: a model, and its tokenizer, from whatever a user names. */
#include "train/model_open.h"

#include "train/run_checkpoint.h"

#include <libgen.h>
#include <string.h>

bool sr_model_is_bin(const char *where) {
    const size_t length = strlen(where);
    return length > 4 && strcmp(where + length - 4, ".bin") == 0;
}

srnn_status sr_model_open(sr_model **model, sr_backend *backend, const char *where) {
    char path[SR_PATH_BYTES];
    if (sr_model_is_bin(where))
        return sr_model_load_llama2c(model, backend, where);
    SR_TRY(sr_checkpoint_model(path, where));
    return sr_model_load(model, backend, path);
}

srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V) {
    char path[SR_PATH_BYTES];
    if (name)
        return sr_tokenizer_load(tokenizer, name);
    SR_TRY(sr_model_is_bin(model) ? sr_path_print(path, "%s", model)
                                  : sr_checkpoint_model(path, model));
    const srnn_status status =
        sr_tokenizer_load(tokenizer, sr_model_is_bin(model) ? dirname(path) : path);
    if (status != SRNN_OK && V == SR_BYTE_TOKENS)
        return sr_tokenizer_create_bytes(tokenizer);
    return status;
}
