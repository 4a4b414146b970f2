/* model_open.c: a model, and its tokenizer, from whatever a user names. */
#include "train/model_open.h"

#include "data/tokenizer/files/copy.h"
#include "train/run/checkpoint.h"

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

/* Whether a model of V tokens may be of a tokenizer: its vocabulary may have been rounded up. */
static bool fits(int V, int64_t tokens) {
    bool found = V == tokens;
    for (int unit = 8; unit <= 128; unit *= 2)
        found |= V == (tokens + unit - 1) / unit * unit;
    return found;
}

/* A tokenizer in the folder of a .bin file need not have to do with it: folder = "" where it cannot. */
static srnn_status check_beside(char folder[SR_PATH_BYTES], const char *bin) {
    sr_tokenizer *tokenizer;
    int V;
    SR_TRY(sr_model_llama2c_tokens(&V, bin));
    SR_TRY(sr_tokenizer_load(&tokenizer, folder));
    if (!fits(V, (int64_t)sr_tokenizer_vocab_size(tokenizer)))
        *folder = '\0';
    sr_tokenizer_free(tokenizer);
    return SRNN_OK;
}

srnn_status sr_model_tokenizer_folder(char folder[SR_PATH_BYTES], const char *model) {
    const bool is_bin = sr_model_is_bin(model);
    if (is_bin) {
        SR_TRY(sr_path_print(folder, "%s", model));
        const char *above = dirname(folder);
        memmove(folder, above, strlen(above) + 1);
    } else {
        SR_TRY(sr_checkpoint_model(folder, model));
    }
    if (!sr_tokenizer_lies_in(folder))
        *folder = '\0';
    return is_bin && *folder ? check_beside(folder, model) : SRNN_OK;
}

srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V) {
    char folder[SR_PATH_BYTES];
    if (name)
        return sr_tokenizer_load(tokenizer, name);
    SR_TRY(sr_model_tokenizer_folder(folder, model));
    if (*folder)
        return sr_tokenizer_load(tokenizer, folder);
    if (V == SR_BYTE_TOKENS)
        return sr_tokenizer_create_bytes(tokenizer);
    return SR_FAIL(SRNN_ERR_IO, "%s: there is no tokenizer for its %d tokens beside it; name one",
                   model, V);
}
