/* unicode.c: UTF-8 and the character properties that tokenizers need. */
#include "data/text/unicode.h"

#include "data/text/unicode_newer.h"

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
        /* Cut off only if some continuation completes it: try the smallest and the largest. */
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
