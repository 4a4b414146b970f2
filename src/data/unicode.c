/* unicode.c: UTF-8, and the few facts about characters that tokenizers need. */
#include "data/unicode.h"

#include "data/unicode_newer.h"

#include <string.h>
#include <utf8proc.h>

size_t sr_utf8_decode(uint32_t *character, const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *character = s[0];
        return 1;
    }
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || length > bytes)
        return 0;
    uint32_t value = s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < smallest[length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        return 0;
    *character = value;
    return length;
}

size_t sr_utf8_encode(char text[4], uint32_t character) {
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (character & 0x3F));
        character >>= 6;
    }
    text[0] = (char)(lead[length] | character);
    return length;
}

size_t sr_utf8_valid_prefix(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        while (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (eight & 0x8080808080808080u)
                break;
            at += sizeof eight;
        }
        if (at == bytes)
            break;
        uint32_t character;
        size_t length = sr_utf8_decode(&character, text + at, bytes - at);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

size_t sr_utf8_cut_suffix(const char *text, size_t bytes) {
    for (size_t held = 1; held <= 3 && held <= bytes; held++) {
        const char *tail = text + bytes - held;
        unsigned char lead = (unsigned char)tail[0];
        if ((lead & 0xC0) == 0x80)
            continue;
        /* Cut off only if some continuation makes it whole: try the smallest and the largest. */
        char whole[4];
        uint32_t character;
        for (int filler = 0x80; filler <= 0xBF; filler += 0x3F) {
            memset(whole, filler, sizeof whole);
            memcpy(whole, tail, held);
            if (sr_utf8_decode(&character, whole, sizeof whole) > held)
                return held;
        }
        return 0;
    }
    return 0;
}

bool sr_unicode_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

bool sr_unicode_is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D) /* the joiners */
        return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
        (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
        return true; /* letters in circles and squares: alphabetic, though symbols */
    const char *newer = sr_newer_category(c);
    if (newer)
        return newer[0] == 'L' || newer[0] == 'M' || strcmp(newer, "Nd") == 0;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC;
}

/* ---- Normal forms ---- */

enum { MOST_DECOMPOSED = 32 }; /* characters that one becomes: 18 in Unicode 16 */

static unsigned combining_class(uint32_t character) {
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)character)->combining_class;
}

static srnn_status decompose(sr_tokens *characters, const char *text, size_t bytes,
                             utf8proc_option_t options) {
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character = 0;
        int boundary = 0;
        length = sr_utf8_decode(&character, text + at, bytes - at);
        SR_TRY(sr_tokens_reserve(characters, MOST_DECOMPOSED));
        utf8proc_ssize_t count = utf8proc_decompose_char(
            (utf8proc_int32_t)character, (utf8proc_int32_t *)characters->ids + characters->count,
            MOST_DECOMPOSED, options, &boundary);
        if (count < 0 || count > MOST_DECOMPOSED)
            return SR_FAIL(SRNN_ERR_LIMIT, "could not normalise U+%04X", character);
        characters->count += (size_t)count;
    }
    return SRNN_OK;
}

/* Sorts marks by their class, equal ones as they were; a hostile text has millions of them. */
static srnn_status order_marks(uint32_t *marks, size_t count, sr_tokens *scratch) {
    size_t place[257] = {0};
    bool sorted = true;
    for (size_t i = 0; i < count; i++) {
        unsigned class = combining_class(marks[i]);
        sorted &= i == 0 || combining_class(marks[i - 1]) <= class;
        place[class + 1]++;
    }
    if (sorted)
        return SRNN_OK;
    for (size_t class = 1; class <= 256; class ++)
        place[class] += place[class - 1];
    scratch->count = 0;
    SR_TRY(sr_tokens_reserve(scratch, count));
    for (size_t i = 0; i < count; i++)
        scratch->ids[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch->ids, count * sizeof *marks);
    return SRNN_OK;
}

static srnn_status order_all(sr_tokens *characters, sr_tokens *scratch) {
    for (size_t start = 0; start < characters->count; start++) {
        size_t end = start;
        while (end < characters->count && combining_class(characters->ids[end]) != 0)
            end++;
        if (end - start > 1)
            SR_TRY(order_marks(characters->ids + start, end - start, scratch));
        start = end;
    }
    return SRNN_OK;
}

static srnn_status append_characters(sr_bytes *out, const uint32_t *characters, size_t count) {
    SR_TRY(sr_bytes_reserve(out, count * 4));
    for (size_t i = 0; i < count; i++)
        out->count += sr_utf8_encode(out->data + out->count, characters[i]);
    return SRNN_OK;
}

static srnn_status normalize_valid(sr_bytes *out, sr_tokens work[2], const char *text, size_t bytes,
                                   utf8proc_option_t options) {
    work[0].count = 0;
    SR_TRY(decompose(&work[0], text, bytes, options));
    SR_TRY(order_all(&work[0], &work[1]));
    if (options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t count = utf8proc_normalize_utf32((utf8proc_int32_t *)work[0].ids,
                                                          (utf8proc_ssize_t)work[0].count, options);
        if (count < 0)
            return SR_FAIL(SRNN_ERR_LIMIT, "could not normalise %zu bytes of text: %s", bytes,
                           utf8proc_errmsg(count));
        work[0].count = (size_t)count;
    }
    return append_characters(out, work[0].ids, work[0].count);
}

srnn_status sr_unicode_normalize(sr_bytes *out, const char *text, size_t bytes,
                                 sr_unicode_form form) {
    static const utf8proc_option_t options[] = {
        [SR_UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [SR_UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [SR_UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [SR_UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    sr_tokens work[2] = {{0}};
    srnn_status status = SRNN_OK;
    for (size_t at = 0; status == SRNN_OK && at < bytes;) {
        size_t valid = sr_utf8_valid_prefix(text + at, bytes - at);
        if (valid)
            status = normalize_valid(out, work, text + at, valid, options[form]);
        at += valid;
        if (status == SRNN_OK && at < bytes)
            status = sr_bytes_append(out, text + at++, 1);
    }
    sr_tokens_free(&work[0]);
    sr_tokens_free(&work[1]);
    return status;
}
