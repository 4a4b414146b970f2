/* tokenizer.c: tokenizers, for the C API. */
#include "api/handles.h"
#include "base/memory.h"
#include "train/model_open.h"

#include <stdlib.h>
#include <string.h>

/* Takes ownership of the tokenizer, also on failure. */
static srnn_status wrap(srnl_tokenizer **out, sr_tokenizer *tokenizer) {
    void *memory;
    srnn_status status = sr_alloc_zero(&memory, 1, sizeof **out);
    if (status != SRNN_OK) {
        sr_tokenizer_free(tokenizer);
        return status;
    }
    srnl_tokenizer *made = memory;
    made->tokenizer = tokenizer;
    status = sr_encoder_create(&made->encoder, tokenizer);
    if (status != SRNN_OK) {
        srnl_tokenizer_free(made);
        return status;
    }
    *out = made;
    return SRNN_OK;
}

srnn_status srnl_tokenizer_load(srnl_tokenizer **tokenizer, const char *where) {
    sr_tokenizer *loaded;
    *tokenizer = NULL;
    SR_TRY(sr_tokenizer_load(&loaded, where));
    return wrap(tokenizer, loaded);
}

srnn_status srnl_model_tokenizer(srnl_tokenizer **tokenizer, const srnl_model *model) {
    sr_tokenizer *loaded;
    *tokenizer = NULL;
    SR_TRY(sr_model_open_tokenizer(&loaded, NULL, model->where, model->model->config.V));
    return wrap(tokenizer, loaded);
}

void srnl_tokenizer_free(srnl_tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    sr_encoder_free(tokenizer->encoder);
    sr_tokenizer_free(tokenizer->tokenizer);
    free(tokenizer);
}

int srnl_tokenizer_vocabulary(const srnl_tokenizer *tokenizer) {
    return (int)sr_tokenizer_vocab_size(tokenizer->tokenizer);
}

int32_t srnl_tokenizer_begin(const srnl_tokenizer *tokenizer) {
    return (int32_t)sr_tokenizer_bos(tokenizer->tokenizer);
}

int32_t srnl_tokenizer_end(const srnl_tokenizer *tokenizer) {
    return (int32_t)sr_tokenizer_eos(tokenizer->tokenizer);
}

srnn_status srnl_tokenizer_encode(srnl_tokenizer *tokenizer, const char *text, size_t bytes,
                                  int32_t *ids, size_t capacity, size_t *count) {
    sr_tokens tokens = {0};
    const srnn_status status = sr_encoder_encode(tokenizer->encoder, &tokens, text, bytes);
    *count = status == SRNN_OK ? tokens.count : 0;
    for (size_t i = 0; i < *count && i < capacity; i++)
        ids[i] = (int32_t)tokens.ids[i];
    sr_tokens_free(&tokens);
    return status;
}

srnn_status srnl_tokenizer_decode(const srnl_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                  char *text, size_t capacity, size_t *bytes) {
    sr_bytes decoded = {0};
    /* A negative id becomes a large one, which no tokenizer has. */
    const srnn_status status =
        sr_tokenizer_decode(tokenizer->tokenizer, &decoded, (const uint32_t *)ids, count);
    *bytes = status == SRNN_OK ? decoded.count : 0;
    if (*bytes && capacity)
        memcpy(text, decoded.data, *bytes < capacity ? *bytes : capacity);
    sr_bytes_free(&decoded);
    return status;
}
