/* unicode_forms.c: the normal forms NFC, NFD, NFKC and NFKD. */
#include "data/text/unicode.h"

#include "data/text/unicode_newer.h"

#include <string.h>
#include <utf8proc.h>

/* Hugging Face's tokenizers normalise as Unicode 9: later characters have neither combining class
 * nor decomposition there. These have one, up to Unicode 14. */
static const uint32_t unknown[][2] = {
    /* clang-format off */
    {0x7FD, 0x7FD}, {0x898, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xC3C, 0xC3C}, {0xD3B, 0xD3C},
    {0xEBA, 0xEBA}, {0x1715, 0x1715}, {0x1ABF, 0x1ACE}, {0x1DF6, 0x1DFA}, {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4}, {0xA82C, 0xA82C}, {0xAB69, 0xAB69}, {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
    /* clang-format on */
};

static bool is_unknown(uint32_t character) {
    size_t low = 0, high = sizeof unknown / sizeof *unknown;
    if (character < unknown[0][0])
        return false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (unknown[middle][1] < character)
            low = middle + 1;
        else
            high = middle;
    }
    bool listed = low < sizeof unknown / sizeof *unknown && character >= unknown[low][0];
    return listed || sr_newer_category(character);
}

enum { MOST_DECOMPOSED = 32 }; /* longest decomposition of a character: 18 in Unicode 16 */

static unsigned combining_class(uint32_t character) {
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)character)->combining_class;
}

static srnn_status decompose(sr_tokens *characters, uint32_t character, utf8proc_option_t options) {
    int boundary = 0;
    SR_TRY(sr_tokens_reserve(characters, MOST_DECOMPOSED));
    utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)character,
                                (utf8proc_int32_t *)characters->ids + characters->count,
                                MOST_DECOMPOSED, options, &boundary);
    if (count < 0 || count > MOST_DECOMPOSED)
        return SR_FAIL(SRNN_ERR_LIMIT, "could not normalise U+%04X", character);
    characters->count += (size_t)count;
    return SRNN_OK;
}

/* Sorts marks by their class, stably; a hostile text has millions of them. */
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

/* Orders, composes and appends the characters that were decomposed so far. */
static srnn_status finish_stretch(sr_bytes *out, sr_tokens work[2], utf8proc_option_t options) {
    SR_TRY(order_all(&work[0], &work[1]));
    if (options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t count = utf8proc_normalize_utf32((utf8proc_int32_t *)work[0].ids,
                                                          (utf8proc_ssize_t)work[0].count, options);
        if (count < 0)
            return SR_FAIL(SRNN_ERR_LIMIT, "could not normalise %zu characters: %s", work[0].count,
                           utf8proc_errmsg(count));
        work[0].count = (size_t)count;
    }
    SR_TRY(append_characters(out, work[0].ids, work[0].count));
    work[0].count = 0;
    return SRNN_OK;
}

static srnn_status normalize_valid(sr_bytes *out, sr_tokens work[2], const char *text, size_t bytes,
                                   utf8proc_option_t options) {
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character = 0;
        length = sr_utf8_decode(&character, text + at, bytes - at);
        if (!is_unknown(character)) {
            SR_TRY(decompose(&work[0], character, options));
            continue;
        }
        SR_TRY(finish_stretch(out, work, options));
        SR_TRY(sr_bytes_append(out, text + at, length));
    }
    return finish_stretch(out, work, options);
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
