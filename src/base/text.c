/* text.c: text in messages: suggestions for typing errors, and escaping. */
#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Longer words are not typing errors; the bound also limits the cost of hostile text. */
enum { LONGEST_WORD = 96, SHORTEST_ABBREVIATION = 3, MOST_ERRORS = 4 };

static char lower(char letter) {
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Typing errors between two words of at most LONGEST_WORD letters: the restricted
 * Damerau-Levenshtein distance, three rows of its table at a time. */
static size_t typing_errors(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][LONGEST_WORD + 1];
    size_t *before_last = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_length; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t exchanged = last[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            row[j] = smaller(exchanged, smaller(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                row[j] = smaller(row[j], before_last[j - 2] + 1);
        }
        size_t *free_row = before_last;
        before_last = last;
        last = row;
        row = free_row;
    }
    return last[b_length];
}

const char *sr_nearest_word(const char *word, const char *const *words, size_t count) {
    size_t length = strnlen(word, LONGEST_WORD + 1);
    if (length > LONGEST_WORD)
        return NULL;
    size_t allowed = length < 6 ? 1 : smaller(length / 3, MOST_ERRORS);
    size_t fewest = SIZE_MAX;
    const char *nearest = NULL, *abbreviated = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other_length = strnlen(words[i], LONGEST_WORD + 1);
        if (other_length > LONGEST_WORD)
            continue;
        const size_t difference =
            length > other_length ? length - other_length : other_length - length;
        const size_t errors = difference > allowed /* each is at least one error */
                                  ? difference
                                  : typing_errors(word, length, words[i], other_length);
        const bool begins = strncasecmp(word, words[i], length) == 0;
        if (errors <= allowed && errors < length &&
            (errors < fewest || (errors == fewest && begins))) {
            fewest = errors;
            nearest = words[i];
        }
        if (!abbreviated && length >= SHORTEST_ABBREVIATION && begins)
            abbreviated = words[i];
    }
    return nearest ? nearest : abbreviated;
}

/* The length in bytes of the character that starts with this byte; 0: none does. */
static size_t length_of(unsigned char first) {
    if (first < 0x80)
        return 1;
    return first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Decodes the UTF-8 character at `at`; returns its length in bytes, 0 if it is invalid. */
static size_t decode(uint32_t *character, const unsigned char *at, size_t bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t length = length_of(*at);
    if (length == 0 || length > bytes)
        return 0;
    *character = length == 1 ? *at : *at & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *character = *character << 6 | (at[i] & 0x3fu);
    }
    return *character < least[length] || *character > 0x10ffff ||
                   (*character >= 0xd800 && *character < 0xe000)
               ? 0
               : length;
}

bool sr_text_is_utf8(const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    uint32_t character;
    while (at < end) {
        const size_t length = decode(&character, at, (size_t)(end - at));
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

/* Control characters (C0, DEL, C1), line and paragraph separators, and the bidirectional ones. */
static bool steers(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f || c == 0x61c;
}

void sr_text_escape(char *to, size_t size, const char *text) {
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    const char *const last = to + size - 1; /* of the zero */
    uint32_t character;
    while (at < end) {
        const size_t length = decode(&character, at, (size_t)(end - at));
        const bool plain = length > 0 && !steers(character);
        const size_t taken = length > 0 ? length : 1, needed = plain ? taken : 4 * taken;
        if (needed > (size_t)(last - to))
            break;
        for (size_t i = 0; i < taken; i++)
            if (plain)
                *to++ = (char)at[i];
            else
                to += snprintf(to, 5, "\\x%02x", at[i]);
        at += taken;
    }
    *to = 0;
}
