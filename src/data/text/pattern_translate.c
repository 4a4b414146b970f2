/* pattern_translate.c: translates a regular expression of Oniguruma to PCRE2. */
#include "data/text/pattern_translate.h"

#include "data/text/unicode.h"
#include "data/text/unicode_newer.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_GROUPS = 250 }; /* nested, as in PCRE2 */

/* The item before a quantifier decides whether both libraries accept it. */
typedef enum item {
    ITEM_NONE = 0, /* the start, an assertion */
    ITEM_ONE,
    ITEM_REPEATED,
} item;

typedef struct group {
    bool look;        /* lookaround */
    bool insensitive; /* the state before the group */
} group;

typedef struct translation {
    const char *at, *end;
    const char *start;
    sr_bytes *out;
    sr_translating *how;
    group groups[MOST_GROUPS];
    size_t depth;
    bool insensitive; /* case-insensitive here */
    item last;
    char letter; /* the previous literal in lower case; 0: none */
} translation;

static srnn_status unsupported(const char *what, size_t bytes) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "\"%.*s\" in a regular expression is not supported",
                   (int)(bytes < 80 ? bytes : 80), what);
}

static size_t left(const translation *t) {
    return (size_t)(t->end - t->at);
}

/* The byte `ahead` of the current one; 0 past the end. */
static char peek(const translation *t, size_t ahead) {
    return ahead < left(t) ? t->at[ahead] : 0;
}

static srnn_status put(translation *t, const char *text) {
    return sr_bytes_append(t->out, text, strlen(text));
}

static srnn_status copy(translation *t, size_t bytes) {
    const char *from = t->at;
    t->at += bytes;
    return sr_bytes_append(t->out, from, bytes);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void set_item(translation *t, item last) {
    t->last = last;
    t->letter = 0;
}

/* ---- Character classes: properties and escapes ---- */

/* Without Mn, Mc, C and Cn, which also lost characters. */
static const char *const known_categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Me", "N",
                                               "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi",
                                               "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs",
                                               "Zl", "Zp", "Cc", "Cf", "Co", NULL};
static const char *const known_scripts[] = {"Han",    "Hiragana", "Katakana",   "Hangul",
                                            "Latin",  "Greek",    "Cyrillic",   "Arabic",
                                            "Hebrew", "Thai",     "Devanagari", NULL};

static const char *find_name(const char *const *names, const char *name, size_t bytes) {
    for (; *names; names++)
        if (strlen(*names) == bytes && strncasecmp(*names, name, bytes) == 0)
            return *names;
    return NULL;
}

/* A set of characters as the inside of a class: new characters, and those of the library's
 * Unicode. */
typedef struct set {
    const char *newer[5]; /* properties, up to the first NULL */
    const char *outside;  /* more members that count only outside of a class */
    char text[48];        /* ends in a property, so that it cannot start a range */
    bool negative;
} set;

static bool read_escape_set(set *found, char letter) {
    switch (letter) {
    case 's':
    case 'S':
        *found = (set){.text = "\\p{White_Space}"};
        break;
    case 'd':
    case 'D':
        *found = (set){.newer = {"Nd"}, .text = "\\p{Nd}"};
        break;
    case 'w':
    case 'W':
        *found = (set){.newer = {"L", "M", "Nd", "Nl"},
                       .outside = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}",
                       .text = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"};
        break;
    default:
        return false;
    }
    found->negative = letter < 'a';
    return true;
}

/* \p{L}, \P{L} or \p{^L}. A script means the characters of that script alone; PCRE2 would add those
 * it shares with others. */
static srnn_status read_property_set(translation *t, set *found) {
    const char *close = memchr(t->at, '}', left(t));
    if (peek(t, 2) != '{' || !close)
        return unsupported(t->at, 3 < left(t) ? 3 : left(t));
    bool negated = peek(t, 3) == '^';
    const char *name = t->at + 3 + negated;
    size_t bytes = (size_t)(close - name);
    const char *category = find_name(known_categories, name, bytes);
    const char *script = find_name(known_scripts, name, bytes);
    if (!category && !script && !(bytes == 11 && strncasecmp(name, "White_Space", 11) == 0))
        return unsupported(t->at, (size_t)(close - t->at) + 1);
    *found = (set){.newer = {category ? category : script}};
    snprintf(found->text, sizeof found->text, "\\p{%s%s}", script ? "sc:" : "",
             category ? category
             : script ? script
                      : "White_Space");
    found->negative = negated != (peek(t, 1) == 'P');
    t->at = close + 1;
    return SRNN_OK;
}

/* Reads an escape that denotes a set; otherwise *is_set is false and nothing is read. */
static srnn_status read_set(translation *t, set *found, bool *is_set) {
    const char *start = t->at;
    char letter = peek(t, 1);
    *is_set = true;
    if (letter == 'p' || letter == 'P')
        SR_TRY(read_property_set(t, found));
    else if ((*is_set = read_escape_set(found, letter)))
        t->at += 2;
    /* Oniguruma adds everything that folds to a member, also multi-character folds. */
    if (*is_set && t->insensitive && letter != 's' && letter != 'd')
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "\"%.*s\" under (?i) in a regular expression is not supported",
                       (int)(t->at - start), start);
    return SRNN_OK;
}

static bool has_grown(translation *t, const set *of) {
    bool grown = false;
    for (size_t i = 0; of->newer[i]; i++)
        grown |= t->how->old && sr_newer_any(of->newer[i]);
    t->how->grown |= grown;
    return grown;
}

static srnn_status put_members(translation *t, const set *of) {
    for (size_t i = 0; t->how->newer && of->newer[i]; i++)
        SR_TRY(sr_newer_write(t->out, of->newer[i]));
    return put(t, of->text);
}

static srnn_status put_set_in_class(translation *t, const set *of) {
    if (!of->negative) {
        has_grown(t, of);
        return put_members(t, of);
    }
    if (has_grown(t, of) || of->outside)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "all but \"%s\" inside a class of a regular expression is not supported",
                       of->text);
    SR_TRY(put(t, "\\P"));
    return put(t, of->text + 2);
}

static srnn_status put_set(translation *t, const set *of) {
    bool more = (has_grown(t, of) && t->how->newer) || of->outside;
    if (!more) { /* PCRE2 is faster without brackets */
        SR_TRY(put(t, of->negative ? "\\P" : "\\p"));
        return put(t, of->text + 2);
    }
    SR_TRY(put(t, of->negative ? "[^" : "["));
    SR_TRY(put(t, of->outside ? of->outside : ""));
    SR_TRY(put_members(t, of));
    return put(t, "]");
}

/* ---- Single characters ---- */

/* If case is ignored, Oniguruma also matches characters that fold to several letters, such as ß and
 * the ligatures; PCRE2 does not. */
static srnn_status check_fold(translation *t, uint32_t character, bool in_class) {
    static const char *const folded[] = {"ss", "st", "ff", "fi", "fl"};
    char letter = 0;
    if (character < 0x80 && is_letter((char)character))
        letter = (char)(character | 0x20);
    bool refuse = t->insensitive && character >= 0x80;
    for (size_t i = 0; t->insensitive && !in_class && i < sizeof folded / sizeof *folded; i++)
        refuse |= t->letter == folded[i][0] && letter == folded[i][1];
    if (refuse)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "other than ASCII letters, or ss, st, ff, fi, fl, under (?i) in a regular "
                       "expression is not supported");
    t->letter = in_class ? 0 : letter;
    return SRNN_OK;
}

/* \x41 or \x{41}; a byte from 80 on is not a character to Oniguruma. */
static srnn_status put_hexadecimal(translation *t, bool in_class) {
    const char *start = t->at;
    bool braced = peek(t, 2) == '{';
    size_t digits = 0, first = braced ? 3 : 2, most = braced ? 6 : 2;
    uint32_t value = 0;
    for (; digits < most; digits++) {
        static const char all[] = "0123456789abcdef";
        char c = peek(t, first + digits);
        const char *found = c ? strchr(all, is_letter(c) ? c | 0x20 : c) : NULL;
        if (!found)
            break;
        value = value * 16 + (uint32_t)(found - all);
    }
    t->at += first + digits + braced;
    if (digits == 0 || t->at > t->end || (braced ? t->at[-1] != '}' : value >= 0x80))
        return unsupported(start, (size_t)((t->at < t->end ? t->at : t->end) - start));
    SR_TRY(check_fold(t, value, in_class));
    char text[16];
    snprintf(text, sizeof text, "\\x{%X}", value);
    return put(t, text);
}

/* An escape that denotes one character; otherwise *known is false and nothing is read. */
static srnn_status put_escaped(translation *t, bool in_class, bool *known) {
    char letter = peek(t, 1);
    *known = true;
    if (letter == 'x')
        return put_hexadecimal(t, in_class);
    t->letter = 0;
    if (letter == 'v') { /* all vertical spaces in PCRE2 */
        t->at += 2;
        return put(t, "\\x{B}");
    }
    if (letter && strchr("rntf", letter))
        return copy(t, 2);
    *known = letter && !is_letter(letter) && !is_digit(letter);
    if (!*known)
        return SRNN_OK;
    if ((unsigned char)letter < 0x80)
        return copy(t, 2);
    t->at++;
    return SRNN_OK; /* what follows is read as if there were no \ */
}

static srnn_status put_literal(translation *t, bool in_class) {
    uint32_t character;
    size_t bytes = sr_utf8_decode(&character, t->at, left(t));
    if (bytes == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "a regular expression is not UTF-8");
    SR_TRY(check_fold(t, character, in_class));
    return copy(t, bytes);
}

/* ---- Inside [ ] ---- */

/* Whether a following - is a range. */
typedef enum place {
    PLACE_CLOSED = 0, /* no: at the start, after a set or a range */
    PLACE_OPEN,       /* yes: after a character */
    PLACE_RANGE,      /* the - was read */
} place;

static srnn_status put_minus(translation *t, place *now) {
    char next = peek(t, 1);
    if (*now == PLACE_OPEN && next != ']') {
        *now = PLACE_RANGE;
        return copy(t, 1);
    }
    *now = *now == PLACE_RANGE ? PLACE_CLOSED : PLACE_OPEN;
    t->at++;
    return put(t, "\\-");
}

static srnn_status put_class_item(translation *t, place *now) {
    const char *start = t->at;
    char c = *t->at;
    if (c == '[' || (c == '&' && peek(t, 1) == '&'))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a class inside a class of a regular expression is not supported");
    if (c == '-')
        return put_minus(t, now);
    if (c == '\\') {
        set found;
        bool is_set, known;
        SR_TRY(read_set(t, &found, &is_set));
        if (is_set && *now == PLACE_RANGE)
            return unsupported(start - 1, (size_t)(t->at - start) + 1);
        if (is_set) {
            *now = PLACE_CLOSED;
            return put_set_in_class(t, &found);
        }
        SR_TRY(put_escaped(t, true, &known));
        if (!known)
            return unsupported(start, left(t) > 1 ? 2 : 1);
    }
    if (t->at == start || (*start == '\\' && t->at == start + 1))
        SR_TRY(put_literal(t, true));
    *now = *now == PLACE_RANGE ? PLACE_CLOSED : PLACE_OPEN;
    return SRNN_OK;
}

static srnn_status put_class(translation *t) {
    place now = PLACE_CLOSED;
    bool negative = peek(t, 1) == '^';
    if (peek(t, 1 + negative) == ']')
        return unsupported(t->at, 2 + (size_t)negative);
    SR_TRY(copy(t, 1 + (size_t)negative));
    while (t->at < t->end && *t->at != ']')
        SR_TRY(put_class_item(t, &now));
    if (t->at == t->end)
        return SR_FAIL(SRNN_ERR_FORMAT, "a class of a regular expression has no end");
    set_item(t, ITEM_ONE);
    return copy(t, 1);
}

/* ---- Groups ---- */

static srnn_status open_group(translation *t, size_t bytes, const char *text, group opened) {
    if (t->depth == MOST_GROUPS)
        return SR_FAIL(SRNN_ERR_LIMIT, "more than %d groups inside each other", MOST_GROUPS);
    t->groups[t->depth++] = opened;
    t->at += bytes;
    t->last = ITEM_NONE;
    return put(t, text);
}

/* In Oniguruma, (?i) in the middle groups everything that follows, including alternatives. */
static srnn_status put_case(translation *t) {
    bool off = peek(t, 2) == '-';
    group before = {.insensitive = t->insensitive};
    char after = peek(t, 3 + (size_t)off);
    bool whole = t->at == t->start && after == ')';
    if (peek(t, 2 + (size_t)off) != 'i' || (after != ':' && !whole))
        return unsupported(t->at, left(t) < 5 ? left(t) : 5);
    t->insensitive = !off;
    if (whole)
        return copy(t, 4 + (size_t)off);
    return open_group(t, 4 + (size_t)off, off ? "(?-i:" : "(?i:", before);
}

static srnn_status put_group(translation *t) {
    static const char *const plain[] = {"(?:", "(?>"};
    static const char *const looks[] = {"(?=", "(?!", "(?<=", "(?<!"};
    group before = {.insensitive = t->insensitive};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (left(t) >= 3 && strncmp(t->at, plain[i], 3) == 0)
            return open_group(t, 3, plain[i], before);
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        size_t bytes = strlen(looks[i]);
        if (left(t) >= bytes && strncmp(t->at, looks[i], bytes) == 0) {
            before.look = true;
            return open_group(t, bytes, looks[i], before);
        }
    }
    const char *name_end = memchr(t->at, '>', left(t));
    if (peek(t, 1) == '?' && peek(t, 2) == '<' && is_letter(peek(t, 3)) && name_end)
        return open_group(t, (size_t)(name_end - t->at) + 1, "(?:", before);
    if (peek(t, 1) == '?' && (peek(t, 2) == 'i' || peek(t, 2) == '-'))
        return put_case(t);
    if (peek(t, 1) == '?' || peek(t, 1) == '*')
        return unsupported(t->at, left(t) < 3 ? left(t) : 3);
    return open_group(t, 1, "(?:", before); /* captures are not used */
}

static srnn_status close_group(translation *t) {
    if (t->depth == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "a ) of a regular expression has no (");
    group closed = t->groups[--t->depth];
    t->insensitive = closed.insensitive;
    t->last = closed.look ? ITEM_NONE : ITEM_ONE;
    return copy(t, 1);
}

/* ---- Repeats ---- */

/* The length of {n}, {n,}, {,m} or {n,m} here; 0: the { is literal. */
static size_t interval_length(const translation *t, bool *exact, bool *no_least) {
    size_t i = 1, digits = 0;
    for (; is_digit(peek(t, i)); i++)
        digits++;
    *no_least = digits == 0;
    *exact = peek(t, i) == '}';
    if (peek(t, i) == ',')
        for (i++; is_digit(peek(t, i)); i++)
            digits++;
    return digits && peek(t, i) == '}' ? i + 1 : 0;
}

static srnn_status put_repeat(translation *t, size_t interval, bool exact, bool no_least) {
    const char *start = t->at;
    size_t bytes = interval ? interval : 1;
    char after = peek(t, bytes);
    bool suffix = after == '?' || (after == '+' && !interval);
    bool again = peek(t, bytes + suffix) && strchr("*+?", peek(t, bytes + suffix));
    bool folded = t->insensitive && interval && (t->letter == 's' || t->letter == 'f');
    if (t->last != ITEM_ONE || again || (exact && suffix) || folded)
        return unsupported(start, left(t) < bytes + 2 ? left(t) : bytes + 2);
    if (no_least) {
        SR_TRY(put(t, "{0"));
        t->at++;
        bytes--;
    }
    set_item(t, ITEM_REPEATED);
    return copy(t, bytes + suffix);
}

/* ---- The whole ---- */

static srnn_status put_escape(translation *t) {
    const char *start = t->at;
    set found;
    bool is_set, known;
    if (left(t) < 2)
        return SR_FAIL(SRNN_ERR_FORMAT, "a regular expression ends in \\");
    SR_TRY(read_set(t, &found, &is_set));
    char letter = start[1];
    t->last = ITEM_ONE;
    if (is_set || strchr("AzZR", letter))
        t->letter = 0;
    if (is_set)
        return put_set(t, &found);
    if (letter && strchr("AzZ", letter))
        t->last = ITEM_NONE;
    if (letter && strchr("AzZR", letter))
        return copy(t, 2);
    SR_TRY(put_escaped(t, false, &known));
    if (!known)
        return unsupported(start, 2);
    return t->at == start + 1 ? put_literal(t, false) : SRNN_OK;
}

static srnn_status put_next(translation *t) {
    bool exact = false, no_least = false;
    size_t interval;
    switch (*t->at) {
    case '\\':
        return put_escape(t);
    case '[':
        return put_class(t);
    case '(':
        return put_group(t);
    case ')':
        return close_group(t);
    case '|':
    case '^':
    case '$':
        set_item(t, ITEM_NONE);
        return copy(t, 1);
    case '.':
        set_item(t, ITEM_ONE);
        return copy(t, 1);
    case '*':
    case '+':
    case '?':
        return put_repeat(t, 0, false, false);
    case '{':
        interval = interval_length(t, &exact, &no_least);
        if (interval)
            return put_repeat(t, interval, exact, no_least);
        SR_TRY(put(t, "\\"));
        break;
    case ']':
    case '}':
        SR_TRY(put(t, "\\"));
        break;
    }
    t->last = ITEM_ONE;
    return put_literal(t, false);
}

srnn_status sr_pattern_translate(sr_bytes *out, sr_translating *how, const char *expression,
                                 size_t bytes) {
    translation t = {
        .at = expression, .start = expression, .end = expression + bytes, .out = out, .how = how};
    how->grown = false;
    while (t.at < t.end)
        SR_TRY(put_next(&t));
    return SRNN_OK;
}
