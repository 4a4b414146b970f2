/* scored.c: fills the merge machine from tokens with scores. */
#include "base/memory.h"
#include "data/text/unicode.h"
#include "data/tokenizer/bpe/bpe.h"

#include <stdlib.h>
#include <string.h>

/* Every split of a token is tried, so its length must be bounded; real ones are below 64. */
enum { TOKEN_BYTES_LIMIT = 1024 };

static int falling(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* ranks[id]: the number of distinct higher scores. */
static srnn_status rank_scores(uint32_t *ranks, const float *scores, uint32_t count) {
    float *sorted;
    SR_TRY(sr_alloc((void **)&sorted, count, sizeof *sorted));
    memcpy(sorted, scores, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, falling);
    uint32_t different = 0;
    for (uint32_t i = 0; i < count; i++)
        if (different == 0 || sorted[i] != sorted[different - 1])
            sorted[different++] = sorted[i];
    for (uint32_t id = 0; id < count; id++) {
        const float *found = bsearch(&scores[id], sorted, different, sizeof *sorted, falling);
        ranks[id] = (uint32_t)(found - sorted);
    }
    free(sorted);
    return SRNN_OK;
}

/* Characters in a well-formed text; 0 if it is not well-formed. */
static size_t count_characters(const char *text, size_t bytes) {
    size_t count = 0;
    if (sr_utf8_valid_prefix(text, bytes) != bytes)
        return 0;
    for (size_t i = 0; i < bytes; i++)
        count += (text[i] & 0xC0) != 0x80;
    return count;
}

static srnn_status count_all(size_t *characters, const sr_vocabulary *vocabulary,
                             const float *scores, const bool *mergeable) {
    *characters = 0;
    for (uint32_t id = 0; id < vocabulary->size; id++) {
        size_t bytes;
        const char *text = sr_vocabulary_text(vocabulary, id, &bytes);
        if (scores[id] != scores[id])
            return SR_FAIL(SRNN_ERR_FORMAT, "token %u has a score that is not a number", id);
        if (!text || !mergeable[id])
            continue;
        size_t count = count_characters(text, bytes);
        if (count == 0)
            return SR_FAIL(SRNN_ERR_FORMAT, "token %u is empty or not UTF-8", id);
        if (bytes > TOKEN_BYTES_LIMIT)
            return SR_FAIL(SRNN_ERR_LIMIT, "token %u has %zu bytes, more than %d", id, bytes,
                           TOKEN_BYTES_LIMIT);
        *characters += count;
    }
    return SRNN_OK;
}

/* A token, or a new symbol for a character that is not a token; else SR_NO_SYMBOL. */
static uint32_t symbol_of(const sr_bpe *bpe, const sr_vocabulary *vocabulary, const bool *mergeable,
                          const char *text, size_t bytes) {
    int64_t id = sr_vocabulary_find(vocabulary, text, bytes);
    if (id >= 0 && mergeable[id])
        return (uint32_t)id;
    uint32_t character;
    if (sr_utf8_decode(&character, text, bytes) == bytes)
        return sr_bpe_character_symbol(bpe, character);
    return SR_NO_SYMBOL;
}

static void add_characters(sr_bpe *bpe, const sr_vocabulary *vocabulary, const bool *mergeable,
                           const char *text, size_t bytes) {
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character;
        length = sr_utf8_decode(&character, text + at, bytes - at);
        if (sr_bpe_character_symbol(bpe, character) != SR_NO_SYMBOL)
            continue;
        int64_t id = sr_vocabulary_find(vocabulary, text + at, length);
        if (id >= 0 && mergeable[id]) {
            sr_bpe_add_character(bpe, character, (uint32_t)id);
        } else {
            sr_bpe_add_character(bpe, character, bpe->tokens + (uint32_t)bpe->plain_count);
            bpe->plain_characters[bpe->plain_count++] = character;
        }
    }
}

static void add_splits(sr_bpe *bpe, const sr_vocabulary *vocabulary, const bool *mergeable,
                       uint32_t id, uint32_t rank) {
    size_t bytes;
    const char *text = sr_vocabulary_text(vocabulary, id, &bytes);
    for (size_t cut = 1; cut < bytes; cut++) {
        if ((text[cut] & 0xC0) == 0x80)
            continue;
        uint32_t left = symbol_of(bpe, vocabulary, mergeable, text, cut);
        if (left == SR_NO_SYMBOL)
            continue;
        uint32_t right = symbol_of(bpe, vocabulary, mergeable, text + cut, bytes - cut);
        if (right != SR_NO_SYMBOL)
            sr_bpe_add_pair(bpe, left, right, rank, id);
    }
}

srnn_status sr_bpe_create_scored(sr_bpe *bpe, const sr_vocabulary *vocabulary, const float *scores,
                                 const bool *mergeable) {
    size_t characters;
    SR_TRY(count_all(&characters, vocabulary, scores, mergeable));
    SR_TRY(sr_bpe_create(bpe, vocabulary->size, characters, characters));
    uint32_t *ranks;
    SR_TRY(sr_alloc((void **)&ranks, vocabulary->size, sizeof *ranks));
    srnn_status status = rank_scores(ranks, scores, vocabulary->size);
    for (uint32_t id = 0; status == SRNN_OK && id < vocabulary->size; id++) {
        size_t bytes;
        const char *text = sr_vocabulary_text(vocabulary, id, &bytes);
        if (!text || !mergeable[id])
            continue;
        add_characters(bpe, vocabulary, mergeable, text, bytes);
        sr_bpe_note_neighbours(bpe, text, bytes);
    }
    for (uint32_t id = 0; status == SRNN_OK && id < vocabulary->size; id++)
        if (mergeable[id])
            add_splits(bpe, vocabulary, mergeable, id, ranks[id]);
    free(ranks);
    return status;
}
