/* text.c: comparing words, for messages that say what was probably meant. */
#include "base/text.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

/* Longer words are nobody's typing error; the bound also keeps hostile text cheap. */
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
        const size_t errors = difference > allowed /* each costs an error at least */
                                  ? difference
                                  : typing_errors(word, length, words[i], other_length);
        if (errors <= allowed && errors < length && errors < fewest) {
            fewest = errors;
            nearest = words[i];
        }
        if (!abbreviated && length >= SHORTEST_ABBREVIATION &&
            strncasecmp(word, words[i], length) == 0)
            abbreviated = words[i];
    }
    return nearest ? nearest : abbreviated;
}

/* The bytes of the character that a byte begins; 0: none does. */
static size_t length_of(unsigned char first) {
    if (first < 0x80)
        return 1;
    return first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

bool sr_text_is_utf8(const char *text, size_t bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    while (at < end) {
        const size_t length = length_of(*at);
        if (length == 0 || length > (size_t)(end - at))
            return false;
        uint32_t character = length == 1 ? *at : *at & (0x7fu >> length);
        for (size_t i = 1; i < length; i++) {
            if ((at[i] & 0xc0) != 0x80)
                return false;
            character = character << 6 | (at[i] & 0x3fu);
        }
        if (character < least[length] || character > 0x10ffff ||
            (character >= 0xd800 && character < 0xe000))
            return false;
        at += length;
    }
    return true;
}
