/* llama2c.c: reads the tokenizer.bin of llama2.c.
 *
 * The file: the longest token's length, then for each token a score (float), a length and the text;
 * all numbers little endian, 32 bits. Ids 0, 1 and 2 are unknown, BOS and EOS. */
#include "data/tokenizer/parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { UNKNOWN = 0, BOS = 1, EOS = 2, HEADER_BYTES = 4, TOKEN_HEADER_BYTES = 8 };

typedef struct reader {
    const char *data;
    size_t bytes;
    uint32_t tokens;
    sr_tokenizer *tokenizer;
    float *scores;   /* (tokens) */
    bool *mergeable; /* (tokens) */
} reader;

static uint32_t read_u32(const char *data) {
    const unsigned char *bytes = (const unsigned char *)data;
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The text of the token at *at; advances *at to the next token. */
static srnn_status next_token(const reader *from, size_t *at, float *score, const char **text,
                              uint32_t *bytes) {
    *text = NULL;
    *bytes = 0;
    size_t left = from->bytes - *at;
    uint32_t length = left >= TOKEN_HEADER_BYTES ? read_u32(from->data + *at + 4) : 0;
    if (left < TOKEN_HEADER_BYTES || length > left - TOKEN_HEADER_BYTES)
        return SR_FAIL(SRNN_ERR_FORMAT, "cut off inside the token at byte %zu", *at);
    uint32_t bits = read_u32(from->data + *at);
    memcpy(score, &bits, sizeof *score);
    *text = from->data + *at + TOKEN_HEADER_BYTES;
    *bytes = length;
    *at += TOKEN_HEADER_BYTES + (size_t)length;
    return SRNN_OK;
}

static srnn_status count_tokens(reader *from) {
    size_t at = HEADER_BYTES;
    float score;
    const char *text;
    uint32_t bytes;
    if (from->bytes < HEADER_BYTES)
        return SR_FAIL(SRNN_ERR_FORMAT, "too short to be a tokenizer of llama2.c");
    while (at < from->bytes) {
        SR_TRY(next_token(from, &at, &score, &text, &bytes));
        if (++from->tokens > SR_VOCABULARY_LIMIT)
            return SR_FAIL(SRNN_ERR_LIMIT, "more than %d tokens", SR_VOCABULARY_LIMIT);
    }
    if (from->tokens <= EOS)
        return SR_FAIL(SRNN_ERR_FORMAT, "only %u tokens: unknown, BOS and EOS must be there",
                       from->tokens);
    return SRNN_OK;
}

static srnn_status read_tokens(reader *from) {
    sr_tokenizer *tokenizer = from->tokenizer;
    size_t at = HEADER_BYTES;
    for (uint32_t id = 0; id < from->tokens; id++) {
        const char *text;
        uint32_t bytes;
        SR_TRY(next_token(from, &at, &from->scores[id], &text, &bytes));
        int byte = sr_byte_of_token(text, bytes);
        char one = (char)byte;
        bool control = id == BOS || id == EOS;
        SR_TRY(sr_vocabulary_add(&tokenizer->vocabulary, id, text, bytes));
        SR_TRY(sr_id_texts_add(&tokenizer->decoding.ids, id, byte < 0 ? text : &one,
                               control     ? 0
                               : byte >= 0 ? 1
                                           : bytes));
        tokenizer->special[id] = id <= EOS;
        from->mergeable[id] = id > EOS && byte < 0;
    }
    return SRNN_OK;
}

static srnn_status read_all(reader *from) {
    SR_TRY(count_tokens(from));
    SR_TRY(sr_tokenizer_create(&from->tokenizer, "llama2.c", from->tokens));
    SR_TRY(sr_alloc_zero((void **)&from->scores, from->tokens, sizeof *from->scores));
    SR_TRY(sr_alloc_zero((void **)&from->mergeable, from->tokens, sizeof *from->mergeable));
    SR_TRY(read_tokens(from));
    sr_tokenizer *tokenizer = from->tokenizer;
    sr_bpe *bpe = &tokenizer->bpe;
    SR_TRY(sr_bpe_create_scored(bpe, &tokenizer->vocabulary, from->scores, from->mergeable));
    bpe->unknown = UNKNOWN;
    bpe->cuttable = true;
    for (uint32_t id = EOS + 1; id < from->tokens; id++) {
        size_t bytes;
        const char *text = sr_vocabulary_text(&tokenizer->vocabulary, id, &bytes);
        int byte = sr_byte_of_token(text, bytes);
        if (byte >= 0)
            bpe->byte_symbol[byte] = id;
    }
    sr_normal_step *step;
    SR_TRY(sr_normalizer_add(&tokenizer->normalizer, &step));
    SR_TRY(sr_bytes_append(&step->content, " ", 1));
    SR_TRY(sr_bytes_append(&tokenizer->decoding.strip, " ", 1));
    tokenizer->decoding.strip_count = 1;
    tokenizer->bos = BOS;
    tokenizer->eos = EOS;
    return SRNN_OK;
}

srnn_status sr_tokenizer_read_llama2c(sr_tokenizer **tokenizer, const char *data, size_t bytes,
                                      const char *name) {
    *tokenizer = NULL;
    reader from = {.data = data, .bytes = bytes};
    srnn_status status = read_all(&from);
    free(from.scores);
    free(from.mergeable);
    if (status != SRNN_OK) {
        sr_tokenizer_free(from.tokenizer);
        return sr_fail_in(status, name);
    }
    from.tokenizer->hash = sr_hash_bytes(data, bytes);
    *tokenizer = from.tokenizer;
    return SRNN_OK;
}
