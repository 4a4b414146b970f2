/* tokenizer.c: code shared by all kinds of tokenizers, and the byte tokenizer. */
#include "data/tokenizer/parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

srnn_status sr_tokenizer_create(sr_tokenizer **tokenizer, const char *kind, uint32_t size) {
    *tokenizer = NULL;
    sr_tokenizer *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    made->kind = kind;
    made->bos = made->eos = -1;
    srnn_status status = sr_vocabulary_create(&made->vocabulary, size);
    if (status == SRNN_OK)
        status = sr_alloc_zero((void **)&made->special, size, sizeof *made->special);
    if (status == SRNN_OK)
        status = sr_alloc_zero((void **)&made->added_only, size, sizeof *made->added_only);
    if (status == SRNN_OK)
        status = sr_alloc_zero((void **)&made->decoding.ids.start, (size_t)size + 1,
                               sizeof *made->decoding.ids.start);
    if (status != SRNN_OK)
        sr_tokenizer_free(made);
    else
        *tokenizer = made;
    return status;
}

void sr_tokenizer_free(sr_tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    sr_vocabulary_free(&tokenizer->vocabulary);
    free(tokenizer->special);
    free(tokenizer->added_only);
    sr_added_free(&tokenizer->added);
    sr_normalizer_free(&tokenizer->normalizer);
    sr_added_free(&tokenizer->added_normalized);
    sr_splitter_free(&tokenizer->splitter);
    sr_bpe_free(&tokenizer->bpe);
    sr_bytes_free(&tokenizer->decoding.ids.texts);
    free(tokenizer->decoding.ids.start);
    sr_bytes_free(&tokenizer->decoding.first.texts);
    free(tokenizer->decoding.first.start);
    sr_bytes_free(&tokenizer->decoding.strip);
    sr_bytes_free(&tokenizer->decoding.strip_mark);
    free(tokenizer);
}

const char *sr_tokenizer_kind(const sr_tokenizer *tokenizer) {
    return tokenizer->kind;
}

uint32_t sr_tokenizer_vocab_size(const sr_tokenizer *tokenizer) {
    return tokenizer->vocabulary.size;
}

int64_t sr_tokenizer_bos(const sr_tokenizer *tokenizer) {
    return tokenizer->bos == SR_SEVERAL ? -1 : tokenizer->bos;
}

int64_t sr_tokenizer_eos(const sr_tokenizer *tokenizer) {
    return tokenizer->eos;
}

uint64_t sr_tokenizer_hash(const sr_tokenizer *tokenizer) {
    return tokenizer->hash;
}

bool sr_tokenizer_is_special(const sr_tokenizer *tokenizer, uint32_t id) {
    return id < tokenizer->vocabulary.size && tokenizer->special[id];
}

const char *sr_tokenizer_token(const sr_tokenizer *tokenizer, uint32_t id, size_t *bytes) {
    return sr_vocabulary_text(&tokenizer->vocabulary, id, bytes);
}

/* GPT-2 represents the bytes ! to ~, ¡ to ¬ and ® to ÿ by themselves, and the 68 others, in order,
 * by the characters from 256 on. */
static bool writes_itself(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

uint32_t sr_character_of_byte(unsigned char byte) {
    if (writes_itself(byte))
        return byte;
    uint32_t others = 0;
    for (uint32_t other = 0; other < byte; other++)
        others += !writes_itself(other);
    return 256 + others;
}

int sr_byte_of_character(uint32_t character) {
    if (character < 256)
        return writes_itself(character) ? (int)character : -1;
    if (character <= 256 + 32) /* 0 to space */
        return (int)(character - 256);
    if (character <= 256 + 33 + 33) /* 0x7F to 0xA0 */
        return (int)(character - 256 - 33 + 0x7F);
    return character == 256 + 67 ? 0xAD : -1;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int sr_byte_of_token(const char *text, size_t bytes) {
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

srnn_status sr_id_texts_add(sr_id_texts *texts, uint32_t id, const char *text, size_t bytes) {
    SR_TRY(sr_bytes_append(&texts->texts, text, bytes));
    texts->start[id + 1] = texts->texts.count;
    return SRNN_OK;
}

static srnn_status fill_bytes(sr_tokenizer *tokenizer) {
    static const char end[] = "<|endoftext|>";
    for (uint32_t id = 0; id <= 256; id++) {
        char byte = (char)id;
        const char *text = id < 256 ? &byte : end;
        size_t bytes = id < 256 ? 1 : sizeof end - 1;
        SR_TRY(sr_vocabulary_add(&tokenizer->vocabulary, id, text, bytes));
        SR_TRY(sr_id_texts_add(&tokenizer->decoding.ids, id, text, bytes));
    }
    tokenizer->special[256] = true;
    tokenizer->bos = tokenizer->eos = 256;
    tokenizer->bpe.byte_level = true;
    tokenizer->hash = sr_hash_bytes(tokenizer->kind, strlen(tokenizer->kind));
    return SRNN_OK;
}

srnn_status sr_tokenizer_create_bytes(sr_tokenizer **tokenizer) {
    SR_TRY(sr_tokenizer_create(tokenizer, "bytes", SR_BYTE_TOKENS));
    srnn_status status = fill_bytes(*tokenizer);
    if (status != SRNN_OK) {
        sr_tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}
