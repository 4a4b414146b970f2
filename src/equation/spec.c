/* spec.c: the text form of a descriptor. */
#include "base/text.h"
#include "equation/axes.h"
#include "equation/facts.h"
#include "equation/model_names.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEM_MAX = 96, AXES_MAX = 64 };

/* Synonyms that are accepted. */
typedef struct synonym {
    const char *axis, *word;
    int means; /* index of the word in the axis's list */
} synonym;

static const synonym synonyms[] = {
    {"position", "rotary", SRNN_POSITION_ROPE},
    {"scale", "1", SRNN_SCALE_ONE},
    {"scale", "1/sqrt(d)", SRNN_SCALE_INVERSE_SQRT},
    {"decay", "off", SRNN_DECAY_NONE},
    {"levels", "off", SRNN_LEVELS_NONE},
    {"value_gate", "none", 0},
    {"detach", "none", 0},
    {"output_gate", "off", SRNN_GATE_NONE},
    {"post_gate", "none", 0},
    {"norm", "off", SRNN_NORM_NONE},
};

/* A name with a number: order:4. The number becomes the order of the score. */
static const srnn_variant families[] = {
    {"order", {.score = SRNN_SCORE_TAYLOR}, ""},
    {"elu", {.score = SRNN_SCORE_TAYLOR, .feature = SRNN_FEATURE_ELU1}, ""},
    {"relu", {.score = SRNN_SCORE_TAYLOR, .feature = SRNN_FEATURE_RELU}, ""},
    {"cosine", {.score = SRNN_SCORE_TAYLOR, .feature = SRNN_FEATURE_UNIT}, ""},
    {"power", {.score = SRNN_SCORE_POWER}, ""},
};

enum { FAMILIES = sizeof families / sizeof *families };

/* ---- Parsing */

/* The position of a word, for messages. */
typedef struct place {
    const char *word;
    size_t column; /* 1-based */
} place;

/* The most words that a message lists. */
enum { LISTED_WORDS = 10 };

/* 'X' is not a known Y; did you mean 'Z'? If none is close and the words are few: there are A, B,
 * C. */
static srnn_status fail_word(place at, const char *what, const char *const *words, size_t count) {
    const char *nearest = sr_nearest_word(at.word, words, count);
    char list[128] = "";
    if (!nearest && count > 1 && count <= LISTED_WORDS) {
        for (size_t i = 0, used = 0; i < count && used < sizeof list; i++)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "attention text, column %zu: '%s' is not a known %s; there are %s",
                       at.column, at.word, what, list);
    }
    return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: '%s' is not a known %s%s%s%s",
                   at.column, at.word, what, nearest ? "; did you mean '" : "",
                   nearest ? nearest : "", nearest ? "'?" : "");
}

/* The index of `word` in a NULL-terminated list, or -1. */
static int find_word(const char *const *words, const char *word) {
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

static bool parse_count(int *count, const char *text) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9 || text[digits])
        return false;
    *count = (int)strtol(text, NULL, 10);
    return true;
}

/* A decimal number, independent of the locale's decimal point. */
static bool parse_number(double *number, const char *text) {
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    char *end;
    *number = strtod_l(text, &end, c);
    freelocale(c);
    return end != text && !*end;
}

/* Splits ":N" off a word: "taylor:3" gives "taylor" and 3. */
static srnn_status split_order(char *word, int *order, bool *given, size_t column) {
    char *colon = strchr(word, ':');
    *given = colon != NULL;
    *order = 0;
    if (!colon)
        return SRNN_OK;
    if (!parse_count(order, colon + 1))
        return fail_word((place){colon + 1, column + (size_t)(colon + 1 - word)},
                         "number (0, 1, 2 ...)", NULL, 0);
    *colon = '\0';
    return SRNN_OK;
}

/* A word of the axis, with its number where it takes one. */
static srnn_status parse_counted(srnn_attention *a, const sr_axis *axis, char *text,
                                 size_t column) {
    int count;
    bool given;
    SR_TRY(split_order(text, &count, &given, column));
    const int word = find_word(axis->words, text);
    if (word < 0)
        return fail_word((place){text, column}, axis->name, axis->words, sr_axis_words(axis));
    const bool needed = axis->counted & 1U << word;
    if (needed != given)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: %s=%s takes %s%s%s", column,
                       axis->name, text, needed ? "a number, as in " : "no number",
                       needed ? text : "", needed ? ":3" : "");
    sr_axis_set(axis, a, word);
    sr_axis_set_count(axis, a, count);
    return SRNN_OK;
}

static int find_value(const sr_axis *axis, const char *text) {
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (strcmp(synonyms[i].axis, axis->name) == 0 && strcmp(synonyms[i].word, text) == 0)
            return synonyms[i].means;
    return find_word(axis->words, text);
}

static srnn_status parse_value(srnn_attention *a, const sr_axis *axis, char *text, size_t column) {
    const int word = find_value(axis, text);
    int count = 0;
    double number = 0;
    if (axis->counted)
        return parse_counted(a, axis, text, column);
    switch (axis->kind) {
    case SR_AXIS_WORD:
    case SR_AXIS_SWITCH:
        if (word < 0)
            return fail_word((place){text, column}, axis->name, axis->words, sr_axis_words(axis));
        sr_axis_set(axis, a, word);
        return SRNN_OK;
    case SR_AXIS_COUNT:
        if (word < 0 && !parse_count(&count, text))
            return fail_word((place){text, column}, "whole number", NULL, 0);
        sr_axis_set(axis, a, count);
        return SRNN_OK;
    case SR_AXIS_NUMBER:
        if (word < 0 && !parse_number(&number, text))
            return fail_word((place){text, column}, "number", NULL, 0);
        sr_axis_set(axis, a, number);
        return SRNN_OK;
    }
    return SRNN_OK;
}

/* The index of the axis, or -1. */
static int find_axis(const char *name) {
    if (strcmp(name, "output_norm") == 0)
        name = "norm";
    const sr_axis *axis;
    for (int i = 0; (axis = sr_axis_at((size_t)i)); i++)
        if (strcmp(axis->name, name) == 0)
            return i;
    return -1;
}

/* Writes the names of the axes to `words`, which is large enough; returns their number. */
static size_t axis_names(const char **words) {
    size_t count = 0;
    for (; sr_axis_at(count); count++)
        words[count] = sr_axis_at(count)->name;
    return count;
}

static const srnn_variant *find_family(const char *name) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

/* Fails, naming the closest of the names and keys that are allowed here. */
static srnn_status fail_name(place at) {
    const char *words[128];
    size_t count = axis_names(words);
    for (size_t i = 0; i < FAMILIES; i++)
        words[count++] = families[i].name;
    for (size_t i = 0; sr_named_model_at(i); i++)
        words[count++] = sr_named_model_at(i)->name;
    for (size_t i = 0; srnn_variant_at(i) && count < sizeof words / sizeof *words; i++)
        words[count++] = srnn_variant_at(i)->name;
    if (sr_nearest_word(at.word, words, count))
        return fail_word(at, "variant or key", words, count);
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "attention text, column %zu: '%s' is not a known variant or key; softrnn "
                   "variants lists the names",
                   at.column, at.word);
}

static srnn_status parse_name(srnn_attention *a, char *text, size_t column) {
    const srnn_variant *variant = sr_variant_find(text);
    if (variant) {
        *a = variant->attention;
        return SRNN_OK;
    }
    int order;
    bool given;
    SR_TRY(split_order(text, &order, &given, column));
    const srnn_variant *family = find_family(text);
    if (!family)
        return fail_name((place){text, column});
    if (!given)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "attention text, column %zu: '%s' takes a number, as in %s:3", column, text,
                       text);
    *a = family->attention;
    a->order = order;
    return SRNN_OK;
}

/* One item: name, key or key=value. `seen` has a bit for every earlier key. */
static srnn_status parse_item(srnn_attention *a, uint64_t *seen, char *item, size_t column,
                              bool first) {
    char *equals = strchr(item, '=');
    if (equals)
        *equals = '\0';
    const int which = find_axis(item);
    const sr_axis *axis = which < 0 ? NULL : sr_axis_at((size_t)which);
    const bool key_alone = axis && axis->alone;
    if (sr_named_model_find(item))
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "attention text, column %zu: '%s' is a whole model, not an attention: it "
                       "stands alone and for all layers, as in softrnn train --attention %s",
                       column, item, item);
    if (first && !equals && !key_alone)
        return parse_name(a, item, column);
    if (!axis) {
        const char *names[AXES_MAX];
        const size_t count = axis_names(names);
        return fail_word((place){item, column}, "key", names, count);
    }
    if (*seen & (uint64_t)1 << which)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: '%s' is given twice", column,
                       item);
    *seen |= (uint64_t)1 << which;
    if (equals)
        return parse_value(a, axis, equals + 1, column + (size_t)(equals + 1 - item));
    if (!key_alone)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "attention text, column %zu: '%s' takes a value, as in %s=%s", column, item,
                       item, axis->words[0]);
    sr_axis_set(axis, a, 1);
    return SRNN_OK;
}

/* One item at a time: combinations are checked after all items are read. */
static srnn_status check_item(const srnn_attention *a, size_t column) {
    if (sr_attention_check_values(a) == SRNN_OK)
        return SRNN_OK;
    char why[256];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: %s", column, why);
}

srnn_status srnn_attention_parse(srnn_attention *attention, const char *text) {
    srnn_attention a = {0};
    uint64_t seen = 0;
    if (!attention || !text)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "srnn_attention_parse was given no %s (NULL)",
                       text ? "place for the descriptor" : "text");
    for (const char *at = text;; at++) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), column = (size_t)(at - text) + 1;
        const char *end = at + length;
        while (length && at[length - 1] == ' ')
            length--;
        char item[ITEM_MAX];
        if (length == 0 || length >= sizeof item)
            return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: %s", column,
                           length ? "the word is too long" : "a name or key is missing");
        memcpy(item, at, length);
        item[length] = '\0';
        SR_TRY(parse_item(&a, &seen, item, column, at == text + strspn(text, " ")));
        SR_TRY(check_item(&a, column));
        at = end;
        if (!*at)
            break;
    }
    if (srnn_attention_check(&a) != SRNN_OK) {
        char why[256];
        snprintf(why, sizeof why, "%s", srnn_error_detail());
        return SR_FAIL(SRNN_ERR_FORMAT, "%s", why);
    }
    *attention = a;
    return SRNN_OK;
}

/* ---- Printing */

/* Text that grows like snprintf's: `length` counts what would have been written. */
typedef struct output {
    char *text;
    size_t size, length;
} output;

static void put(output *out, const char *piece) {
    for (; *piece; piece++, out->length++)
        if (out->length + 1 < out->size)
            out->text[out->length] = *piece;
}

static void put_count(output *out, int count) {
    char text[16];
    snprintf(text, sizeof text, "%d", count);
    put(out, text);
}

/* The fewest digits, up to 17, that read back as the same number. */
static void put_number(output *out, double number) {
    char text[40];
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = c ? uselocale(c) : (locale_t)0;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    if (c) {
        uselocale(before);
        freelocale(c);
    }
    put(out, text);
}

static void put_item(output *out, const srnn_attention *a, const sr_axis *axis) {
    const double value = sr_axis_value(axis, a);
    if (value == 0 && !axis->always)
        return;
    if (out->length)
        put(out, ",");
    put(out, axis->name);
    if (axis->alone && value == 1)
        return;
    put(out, "=");
    switch (axis->kind) {
    case SR_AXIS_WORD:
    case SR_AXIS_SWITCH:
        put(out, axis->words[(int)value]);
        break;
    case SR_AXIS_COUNT:
        put_count(out, (int)value);
        break;
    case SR_AXIS_NUMBER:
        put_number(out, value);
        break;
    }
    if (axis->counted && (axis->counted >> (unsigned)value & 1U)) {
        put(out, ":");
        put_count(out, sr_axis_count(axis, a));
    }
}

size_t srnn_attention_print(char *text, size_t size, const srnn_attention *attention) {
    output out = {text, size, 0};
    if (srnn_attention_check(attention) == SRNN_OK)
        for (size_t i = 0; sr_axis_at(i); i++)
            put_item(&out, attention, sr_axis_at(i));
    if (size)
        text[out.length < size ? out.length : size - 1] = '\0';
    return out.length;
}
