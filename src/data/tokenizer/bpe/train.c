/* train.c: trains a byte-level BPE. */
#include "data/tokenizer/bpe/train.h"

#include "data/text/unicode.h"
#include "data/tokenizer/bpe/json.h"
#include "data/tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

/* Special tokens first, then the bytes in the order of the characters that represent them. */
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

static srnn_status train(sr_bytes *json, const sr_bpe_training *training, sr_vocabulary *vocabulary,
                         sr_word_counts *words) {
    uint32_t byte_ids[256], first = (uint32_t)training->text.special_count + 256;
    sr_merges merges;
    SR_TRY(sr_vocabulary_create(vocabulary, training->vocab));
    SR_TRY(first_tokens(vocabulary, byte_ids, training));
    SR_TRY(sr_word_counts_run(words, &training->text));
    const sr_bpe_learning learning = {.byte_ids = byte_ids,
                                      .words = words,
                                      .ties = training->ties,
                                      .progress = training->text.progress,
                                      .context = training->text.context};
    SR_TRY(sr_bpe_learn(&merges, vocabulary, first, &learning));
    const sr_bpe_json file = {.vocabulary = vocabulary,
                              .merges = &merges,
                              .special_count = (uint32_t)training->text.special_count};
    srnn_status status = sr_bpe_json_write(json, &file);
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
