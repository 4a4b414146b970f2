/* json.c: writes a byte-level BPE as a tokenizer.json. */
#include "data/tokenizer/bpe/json.h"

#include "data/text/unicode.h"
#include "data/tokenizer/parts.h"
#include "files/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bool is_special(const sr_bpe_json *file, uint32_t id) {
    return id >= file->special_first && id - file->special_first < file->special_count;
}

/* A token as in tokenizer.json: one character per byte; special tokens verbatim. */
static srnn_status written(sr_bytes *out, const sr_bpe_json *file, uint32_t id) {
    size_t bytes = 0;
    const char *text = sr_vocabulary_text(file->vocabulary, id, &bytes);
    if (is_special(file, id))
        return sr_bytes_append(out, text, bytes);
    for (size_t i = 0; i < bytes; i++) {
        char character[4];
        size_t length = sr_utf8_encode(character, sr_character_of_byte((unsigned char)text[i]));
        SR_TRY(sr_bytes_append(out, character, length));
    }
    return SRNN_OK;
}

static srnn_status no_memory(void) {
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory left to write the tokenizer");
}

static srnn_status write_vocab(json_t *vocab, const sr_bpe_json *file, sr_bytes *text) {
    const sr_vocabulary *vocabulary = file->vocabulary;
    size_t bytes;
    for (uint32_t id = 0; id < vocabulary->size && sr_vocabulary_text(vocabulary, id, &bytes);
         id++) {
        text->count = 0;
        SR_TRY(written(text, file, id));
        if (json_object_setn_new(vocab, text->data, text->count, json_integer(id)) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static srnn_status write_merges(json_t *list, const sr_bpe_json *file, sr_bytes *text) {
    for (size_t i = 0; i < file->merges->count; i++) {
        text->count = 0;
        SR_TRY(written(text, file, file->merges->pairs[i][0]));
        SR_TRY(sr_bytes_append(text, " ", 1));
        SR_TRY(written(text, file, file->merges->pairs[i][1]));
        if (json_array_append_new(list, json_stringn(text->data, text->count)) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static srnn_status write_added(json_t *list, const sr_bpe_json *file) {
    for (uint32_t i = 0; i < file->special_count; i++) {
        const uint32_t id = file->special_first + i;
        size_t bytes = 0;
        const char *text = sr_vocabulary_text(file->vocabulary, id, &bytes);
        json_t *token =
            json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", text, bytes,
                      "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        if (json_array_append_new(list, token) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static json_t *byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 1);
}

/* The file with empty lists; *added, *vocab and *merges point to them. */
static json_t *frame(json_t **added, json_t **vocab, json_t **merges) {
    json_t *root =
        json_pack("{s:s, s:n, s:n, s:[], s:n, s:o, s:o, s:o, s:{s:s, s:n, s:n, s:n, "
                  "s:n, s:b, s:b, s:b, s:{}, s:[]}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", "normalizer",
                  "pre_tokenizer", byte_level(), "post_processor", byte_level(), "decoder",
                  byte_level(), "model", "type", "BPE", "dropout", "unk_token",
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback",
                  0, "ignore_merges", 0, "vocab", "merges");
    json_t *model = json_object_get(root, "model");
    *added = json_object_get(root, "added_tokens");
    *vocab = json_object_get(model, "vocab");
    *merges = json_object_get(model, "merges");
    return root;
}

srnn_status sr_bpe_json_write(sr_bytes *json, const sr_bpe_json *file) {
    json_t *added, *vocab, *list;
    json_t *root = frame(&added, &vocab, &list);
    if (!root)
        return no_memory();
    sr_bytes text = {0};
    srnn_status status = write_added(added, file);
    if (status == SRNN_OK)
        status = write_vocab(vocab, file, &text);
    if (status == SRNN_OK)
        status = write_merges(list, file, &text);
    sr_bytes_free(&text);
    char *dumped = NULL;
    if (status == SRNN_OK)
        status = sr_json_dump(&dumped, root, JSON_INDENT(2), "a tokenizer");
    json_decref(root);
    if (status == SRNN_OK)
        status = sr_bytes_append(json, dumped, strlen(dumped));
    if (status == SRNN_OK)
        status = sr_bytes_append(json, "\n", 1);
    free(dumped);
    return status;
}
