/* json_repair.c: repairs JSON that common programs write and the parser rejects. */
#include "data/text/json_repair.h"

#include <string.h>

/* The length of the number, NaN or Infinity that starts here, or 0. */
static size_t number_length(const char *text, size_t bytes) {
    static const char starts[] = "-0123456789NI", more[] = "+-.0123456789eENaInfity";
    size_t length = 0;
    if (text[0] && strchr(starts, text[0]))
        for (length = 1; length < bytes && text[length] && strchr(more, text[length]);)
            length++;
    return length;
}

/* The value of an escape \uXXXX; -1 if there is none. */
static int escaped(const char *text, size_t bytes) {
    static const char digits[] = "0123456789abcdef";
    int value = 0;
    if (bytes < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    for (size_t i = 2; i < 6; i++) {
        char c = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] | 0x20 : text[i]);
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found)
            return -1;
        value = value * 16 + (int)(found - digits);
    }
    return value;
}

/* The length of the escape that starts here; *lone: it is half a surrogate pair. */
static size_t escape_length(const char *text, size_t bytes, bool *lone) {
    int value = escaped(text, bytes);
    *lone = value >= 0xD800 && value < 0xE000;
    if (value < 0)
        return bytes < 2 ? bytes : 2;
    int next = value < 0xDC00 ? escaped(text + 6, bytes - 6) : -1;
    if (!*lone || next < 0xDC00 || next >= 0xE000)
        return 6;
    *lone = false;
    return 12;
}

srnn_status sr_json_repair(sr_bytes *out, const char *line, size_t bytes, bool replace) {
    bool in_text = false;
    out->count = 0;
    for (size_t at = 0; at < bytes;) {
        bool lone = false;
        size_t number = in_text ? 0 : number_length(line + at, bytes - at);
        size_t length = number ? number : 1;
        if (in_text && line[at] == '\\')
            length = escape_length(line + at, bytes - at, &lone);
        in_text ^= line[at] == '"';
        if (number)
            SR_TRY(sr_bytes_append(out, "0", 1));
        else if (lone && replace)
            SR_TRY(sr_bytes_append(out, "\\ufffd", 6));
        else
            SR_TRY(sr_bytes_append(out, line + at, length));
        at += length;
    }
    return SRNN_OK;
}
