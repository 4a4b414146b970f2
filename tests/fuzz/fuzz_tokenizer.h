/* fuzz_tokenizer.h: uses a tokenizer made from arbitrary bytes on the same bytes. */
#ifndef SR_TESTS_FUZZ_TOKENIZER_H
#define SR_TESTS_FUZZ_TOKENIZER_H

#include "data/tokenizer/tokenizer.h"

#include <stdlib.h>

/* Encodes and decodes, then frees the tokenizer. Encoded ids can be decoded. */
static inline void fuzz_tokenizer(sr_tokenizer *tokenizer, const char *text, size_t bytes) {
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    sr_bytes decoded = {0};
    if (sr_encoder_create(&encoder, tokenizer) != SRNN_OK)
        abort();
    if (sr_encoder_encode(encoder, &tokens, text, bytes) == SRNN_OK &&
        sr_tokenizer_decode(tokenizer, &decoded, tokens.ids, tokens.count) != SRNN_OK)
        abort();
    sr_bytes_free(&decoded);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
}

#endif
