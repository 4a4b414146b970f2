/* bpe_train.c: trains a byte-level BPE and writes it as a tokenizer.json. */
#include "data/tokenizer/bpe_train.h"

#include "data/text/unicode.h"
#include "data/tokenizer/bpe_learn.h"
#include "data/tokenizer/tokenizer_private.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Special tokens first, then the bytes in the order of the characters that stand for them. */
static srnn_status first_tokens(sr_vocabulary *vocabulary, uint32_t byte_ids[256],
                                const sr_bpe_training *training) {
    uint32_t next = 0;
    for (size_t i = 0; i < training->text.special_count; i++) {
        const char *text = training->text.special[i];
        if (strlen(text) < 2 || sr_vocabulary_find(vocabulary, text, strlen(text)) >= 0)
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "the special token \"%s\" is given twice or is shorter than two bytes",
                           text);
        if (sr_utf8_valid_prefix(text, strlen(text)) != strlen(text))
            return SR_FAIL(SRNN_ERR_ARGUMENT, "special token %zu is not UTF-8", i + 1);
        SR_TRY(sr_vocabulary_add(vocabulary, next++, text, strlen(text)));
    }
    for (uint32_t character = 0; character < 256 + 68; character++) {
        int byte = sr_byte_of_character(character);
        if (byte < 0)
            continue;
        char one = (char)byte;
        byte_ids[byte] = next;
        SR_TRY(sr_vocabulary_add(vocabulary, next++, &one, 1));
    }
    return SRNN_OK;
}

/* ---- Writing ---- */

/* A token as tokenizer.json writes it: a character for every byte; special ones as they are. */
static srnn_status written(sr_bytes *out, const sr_vocabulary *vocabulary, uint32_t id,
                           size_t special_count) {
    size_t bytes = 0;
    const char *text = sr_vocabulary_text(vocabulary, id, &bytes);
    if (id < special_count)
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

static srnn_status write_vocab(json_t *vocab, const sr_vocabulary *vocabulary, size_t special_count,
                               sr_bytes *text) {
    size_t bytes;
    for (uint32_t id = 0; id < vocabulary->size && sr_vocabulary_text(vocabulary, id, &bytes);
         id++) {
        text->count = 0;
        SR_TRY(written(text, vocabulary, id, special_count));
        if (json_object_setn_new(vocab, text->data, text->count, json_integer(id)) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static srnn_status write_merges(json_t *list, const sr_merges *merges,
                                const sr_vocabulary *vocabulary, size_t special_count,
                                sr_bytes *text) {
    for (size_t i = 0; i < merges->count; i++) {
        text->count = 0;
        SR_TRY(written(text, vocabulary, merges->pairs[i][0], special_count));
        SR_TRY(sr_bytes_append(text, " ", 1));
        SR_TRY(written(text, vocabulary, merges->pairs[i][1], special_count));
        if (json_array_append_new(list, json_stringn(text->data, text->count)) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static srnn_status write_added(json_t *list, const sr_bpe_training *training) {
    for (size_t i = 0; i < training->text.special_count; i++) {
        json_t *token = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)i, "content",
                                  training->text.special[i], "single_word", 0, "lstrip", 0,
                                  "rstrip", 0, "normalized", 0, "special", 1);
        if (json_array_append_new(list, token) != 0)
            return no_memory();
    }
    return SRNN_OK;
}

static json_t *byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 1);
}

/* The file with empty lists, for which *added, *vocab and *merges stand. */
static json_t *frame(json_t **added, json_t **vocab, json_t **merges) {
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:[], s:n, s:o, s:o, s:o, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, "
        "s:{}, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
        byte_level(), "post_processor", byte_level(), "decoder", byte_level(), "model", "type",
        "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", "merges");
    json_t *model = json_object_get(root, "model");
    *added = json_object_get(root, "added_tokens");
    *vocab = json_object_get(model, "vocab");
    *merges = json_object_get(model, "merges");
    return root;
}

static srnn_status write_json(sr_bytes *json, const sr_bpe_training *training,
                              const sr_vocabulary *vocabulary, const sr_merges *merges) {
    json_t *added, *vocab, *list;
    json_t *root = frame(&added, &vocab, &list);
    if (!root)
        return no_memory();
    sr_bytes text = {0};
    size_t special_count = training->text.special_count;
    srnn_status status = write_added(added, training);
    if (status == SRNN_OK)
        status = write_vocab(vocab, vocabulary, special_count, &text);
    if (status == SRNN_OK)
        status = write_merges(list, merges, vocabulary, special_count, &text);
    sr_bytes_free(&text);
    char *dumped = status == SRNN_OK ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (status != SRNN_OK)
        return status;
    status = dumped ? sr_bytes_append(json, dumped, strlen(dumped)) : no_memory();
    if (status == SRNN_OK)
        status = sr_bytes_append(json, "\n", 1);
    free(dumped);
    return status;
}

/* ---- The whole ---- */

static srnn_status train(sr_bytes *json, const sr_bpe_training *training, sr_vocabulary *vocabulary,
                         sr_word_counts *words) {
    uint32_t byte_ids[256], first = (uint32_t)training->text.special_count + 256;
    sr_merges merges;
    SR_TRY(sr_vocabulary_create(vocabulary, training->vocab));
    SR_TRY(first_tokens(vocabulary, byte_ids, training));
    SR_TRY(sr_word_counts_run(words, &training->text));
    SR_TRY(sr_bpe_learn(&merges, vocabulary, first, byte_ids, words, training->text.progress,
                        training->text.context));
    srnn_status status = write_json(json, training, vocabulary, &merges);
    free(merges.pairs);
    return status;
}

srnn_status sr_bpe_train(sr_bytes *json, const sr_bpe_training *training) {
    if (training->vocab < 256 || training->text.special_count > training->vocab - 256)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%u tokens are too few: there are 256 bytes and %zu special tokens",
                       training->vocab, training->text.special_count);
    sr_vocabulary vocabulary = {0};
    sr_word_counts words = {0};
    srnn_status status = train(json, training, &vocabulary, &words);
    sr_vocabulary_free(&vocabulary);
    sr_word_counts_free(&words);
    return status;
}
