/* added.c: finds the tokens that a tokenizer.json lists in addition to its model. */
#include "data/tokenizer/added.h"

#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

srnn_status sr_added_add(sr_added *added, const char *text, size_t bytes,
                         const sr_added_token *like) {
    if (bytes == 0)
        return SRNN_OK;
    if (bytes > SR_ADDED_BYTES_LIMIT)
        return SR_FAIL(SRNN_ERR_LIMIT, "added token %u has %zu bytes, more than %d", like->id,
                       bytes, SR_ADDED_BYTES_LIMIT);
    if (added->count == added->capacity) {
        size_t capacity = added->capacity ? added->capacity * 2 : 16;
        sr_added_token *tokens = realloc(added->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu added tokens", capacity);
        added->tokens = tokens;
        added->capacity = capacity;
    }
    sr_added_token token = *like;
    token.text = (sr_bytes){0};
    SR_TRY(sr_bytes_append(&token.text, text, bytes));
    added->tokens[added->count++] = token;
    added->starts[(unsigned char)text[0]] = true;
    return SRNN_OK;
}

static int by_text(const void *a, const void *b) {
    const sr_bytes *x = &((const sr_added_token *)a)->text, *y = &((const sr_added_token *)b)->text;
    int order = memcmp(x->data, y->data, x->count < y->count ? x->count : y->count);
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

void sr_added_finish(sr_added *added) {
    if (added->count)
        qsort(added->tokens, added->count, sizeof *added->tokens, by_text);
}

void sr_added_free(sr_added *added) {
    for (size_t i = 0; i < added->count; i++)
        sr_bytes_free(&added->tokens[i].text);
    free(added->tokens);
    *added = (sr_added){0};
}

/* The first token in low..high whose byte at `depth` is at least `byte`; all of them share the
 * bytes before it. A token that ends before `depth` sorts first. */
static size_t lower_bound(const sr_added *added, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const sr_bytes *text = &added->tokens[middle].text;
        int here = depth < text->count ? (unsigned char)text->data[depth] : -1;
        if (here < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that `text` starts with, or NULL. */
static const sr_added_token *longest_at(const sr_added *added, const char *text, size_t bytes) {
    const sr_added_token *longest = NULL;
    size_t low = 0, high = added->count;
    for (size_t depth = 0; depth < bytes && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = lower_bound(added, low, high, depth, byte);
        high = lower_bound(added, low, high, depth, byte + 1);
        if (low < high && added->tokens[low].text.count == depth + 1)
            longest = &added->tokens[low];
    }
    return longest;
}

size_t sr_added_prefix(const sr_added *added, const char *text, size_t bytes) {
    if (bytes == 0 || !added->starts[(unsigned char)text[0]])
        return 0;
    const sr_added_token *token = longest_at(added, text, bytes);
    return token ? token->text.count : 0;
}

/* The length of the character that ends `text`; 0 if it is not well-formed. */
static size_t last_character(uint32_t *character, const char *text, size_t bytes) {
    for (size_t length = 1; length <= 4 && length <= bytes; length++)
        if (sr_utf8_decode(character, text + bytes - length, length) == length)
            return length;
    return 0;
}

static bool touches_word(const char *text, size_t bytes, size_t start, size_t end) {
    uint32_t character;
    if (last_character(&character, text, start) && sr_unicode_is_word(character))
        return true;
    return end < bytes && sr_utf8_decode(&character, text + end, bytes - end) &&
           sr_unicode_is_word(character);
}

static size_t skip_spaces_left(const char *text, size_t start, size_t limit) {
    uint32_t character;
    size_t length;
    while (start > limit && (length = last_character(&character, text, start)) &&
           sr_unicode_is_space(character))
        start -= length;
    return start > limit ? start : limit;
}

static size_t skip_spaces_right(const char *text, size_t bytes, size_t end) {
    uint32_t character;
    size_t length;
    while (end < bytes && (length = sr_utf8_decode(&character, text + end, bytes - end)) &&
           sr_unicode_is_space(character))
        end += length;
    return end;
}

bool sr_added_next(const sr_added *added, const char *text, size_t bytes, sr_added_match *match) {
    if (added->count == 0)
        return false;
    for (size_t at = match->search; at < bytes;) {
        if (!added->starts[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        const sr_added_token *token = longest_at(added, text + at, bytes - at);
        if (!token) {
            at++;
            continue;
        }
        size_t start = at, end = at + token->text.count;
        at = end;
        if (start < match->done || (token->single_word && touches_word(text, bytes, start, end)))
            continue;
        match->search = end;
        match->id = token->id;
        match->start = token->strip_left ? skip_spaces_left(text, start, match->done) : start;
        match->end = token->strip_right ? skip_spaces_right(text, bytes, end) : end;
        match->done = match->end;
        return true;
    }
    match->search = bytes;
    return false;
}
