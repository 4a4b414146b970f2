/* columns.c: texts in columns of a terminal. */
#include "cli/line/columns.h"

#include "data/text/unicode.h"

#include <string.h>
#include <utf8proc.h>

/* The first character, its length in bytes, and its width in columns. */
static int first_character(size_t *bytes, const char **drawn, const char *text) {
    uint32_t character;
    *bytes = sr_utf8_decode(&character, text, strlen(text));
    *drawn = text;
    if (*bytes && utf8proc_category((utf8proc_int32_t)character) != UTF8PROC_CATEGORY_CC)
        return utf8proc_charwidth((utf8proc_int32_t)character);
    *bytes = *bytes ? *bytes : 1;
    *drawn = "?";
    return 1;
}

const char *column_text(char *out, size_t size, const char *text, int columns) {
    size_t used = 0;
    int taken = 0;
    while (*text) {
        const char *drawn;
        size_t bytes;
        const int width = first_character(&bytes, &drawn, text);
        const size_t length = drawn == text ? bytes : 1;
        if (taken + width > columns || used + length >= size)
            break;
        memcpy(out + used, drawn, length);
        used += length;
        taken += width;
        text += bytes;
    }
    for (; taken < columns && used + 1 < size; taken++)
        out[used++] = ' ';
    out[used] = '\0';
    return out;
}

int column_width(const char *text) {
    int width = 0;
    while (*text) {
        const char *drawn;
        size_t bytes;
        width += first_character(&bytes, &drawn, text);
        text += bytes;
    }
    return width;
}
