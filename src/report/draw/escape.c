/* escape.c: escapes text from files for HTML, JSON, LaTeX and CSV. */
#include "report/draw/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define REPLACEMENT 0xFFFD

/* The character at *text, which is advanced; REPLACEMENT for an invalid byte. */
static uint32_t next_character(const char **text) {
    const unsigned char *at = (const unsigned char *)*text;
    const int length = at[0] < 0x80             ? 1
                       : (at[0] & 0xE0) == 0xC0 ? 2
                       : (at[0] & 0xF0) == 0xE0 ? 3
                       : (at[0] & 0xF8) == 0xF0 ? 4
                                                : 0;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t character = length == 1 ? at[0] : length ? at[0] & (0xFFu >> (length + 1)) : 0;
    bool right = length > 0;
    for (int i = 1; right && i < length; i++) {
        right = (at[i] & 0xC0) == 0x80; /* also stops at the end of the text */
        character = character << 6 | (at[i] & 0x3F);
    }
    right = right && character >= least[length] && character <= 0x10FFFF &&
            (character < 0xD800 || character > 0xDFFF);
    *text += right ? length : 1;
    return right ? character : REPLACEMENT;
}

static void put(FILE *out, uint32_t c) {
    if (c < 0x80) {
        putc((int)c, out);
    } else if (c < 0x800) {
        putc((int)(0xC0 | c >> 6), out);
        putc((int)(0x80 | (c & 0x3F)), out);
    } else if (c < 0x10000) {
        putc((int)(0xE0 | c >> 12), out);
        putc((int)(0x80 | (c >> 6 & 0x3F)), out);
        putc((int)(0x80 | (c & 0x3F)), out);
    } else {
        putc((int)(0xF0 | c >> 18), out);
        putc((int)(0x80 | (c >> 12 & 0x3F)), out);
        putc((int)(0x80 | (c >> 6 & 0x3F)), out);
        putc((int)(0x80 | (c & 0x3F)), out);
    }
}

/* Characters that HTML, XML 1.0 or LaTeX cannot contain; also the marks that change the direction
 * of the surrounding text. */
static bool unwanted(uint32_t c) {
    return (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7F && c < 0xA0) || c == 0xFFFE ||
           c == 0xFFFF || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

static uint32_t next_wanted(const char **text) {
    const uint32_t c = next_character(text);
    return unwanted(c) ? REPLACEMENT : c;
}

void sr_escape_html(FILE *out, const char *text) {
    while (*text) {
        const uint32_t c = next_wanted(&text);
        switch (c) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            put(out, c);
        }
    }
}

void sr_escape_script(FILE *out, const char *text) {
    putc('"', out);
    while (*text) {
        const uint32_t c = next_wanted(&text);
        /* "</script", "<!--" and "]]>" must not appear; U+2028 and U+2029 end a line of script. */
        if (c < 0x20 || strchr("\"\\<>&'", (int)(c < 0x80 ? c : 'x')) || c == 0x2028 || c == 0x2029)
            fprintf(out, "\\u%04x", (unsigned)c);
        else
            put(out, c);
    }
    putc('"', out);
}

void sr_escape_latex(FILE *out, const char *text) {
    while (*text) {
        const uint32_t c = next_wanted(&text);
        if (c == '\\')
            fputs("\\textbackslash{}", out);
        else if (c == '~')
            fputs("\\textasciitilde{}", out);
        else if (c == '^')
            fputs("\\textasciicircum{}", out);
        else if (c == '<' || c == '>' || c == '|' || c == '"' || c == '\'' || c == '`' || c == '-')
            fprintf(out, "{%c}", (int)c); /* no ligatures, no quotes */
        else if (c < 0x80 && strchr("&%$#_{}", (int)c))
            fprintf(out, "\\%c", (int)c);
        else if (c == '\n' || c == '\t')
            putc(' ', out);
        else if (c == 0xA0)
            putc('~', out);
        else if (c == 0x2009 || c == 0x202F)
            fputs("\\,", out);
        else if (c == 0x2013)
            fputs("--", out);
        else if (c == 0x2212)
            fputs("$-$", out);
        else
            put(out, c);
    }
}

/* A number may begin with a sign, a formula may not. */
static bool looks_like_formula(const char *text) {
    if (strchr("=@\t\r", *text))
        return *text != '\0';
    return strchr("+-", *text) && strspn(text, "+-.0123456789eE") != strlen(text);
}

void sr_escape_csv(FILE *out, const char *text) {
    const bool formula = looks_like_formula(text);
    const bool quoted = formula || strpbrk(text, ",\"\n\r\t") != NULL;
    if (quoted)
        putc('"', out);
    if (formula)
        putc('\'', out);
    while (*text) {
        const uint32_t c = next_wanted(&text);
        if (c == '"')
            putc('"', out);
        put(out, c);
    }
    if (quoted)
        putc('"', out);
}
