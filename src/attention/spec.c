/* spec.c: the text form of a descriptor. */
#include "attention/attention.h"
#include "base/text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they are printed: the score, then the order of the struct. */
typedef enum key {
    KEY_SCORE,
    KEY_POSITION,
    KEY_SHORT_CONV,
    KEY_FRONT_TOKENS,
    KEY_SCALE,
    KEY_FEATURE,
    KEY_CLAMP,
    KEY_DECAY,
    KEY_VALUE_GATE,
    KEY_NORMALISER,
    KEY_DETACH,
    KEY_EPSILON,
    KEY_OUTPUT_GATE,
    KEY_POST_GATE,
    KEY_NORM,
} key;

enum { KEYS = KEY_NORM + 1, WORDS_MAX = 7, ITEM_MAX = 96 };

typedef enum kind {
    KIND_WORD,
    KIND_SCORE,  /* a word, some with :order */
    KIND_COUNT,  /* an int, or a word */
    KIND_NUMBER, /* a double, or a word */
} kind;

typedef struct key_row {
    const char *name;
    kind kind;
    bool flag;                    /* the key alone means its second word */
    const char *words[WORDS_MAX]; /* in the order of the enum; the first is the default */
} key_row;

static const key_row keys[KEYS] = {
    [KEY_SCORE] = {"score", KIND_SCORE, false, {"exp", "linear", "taylor", "power"}},
    [KEY_POSITION] = {"position", KIND_WORD, false, {"rope", "none"}},
    [KEY_SHORT_CONV] = {"short_conv", KIND_COUNT, false, {"none"}},
    [KEY_FRONT_TOKENS] = {"front_tokens", KIND_COUNT, false, {"none"}},
    [KEY_SCALE] = {"scale", KIND_WORD, false, {"inverse_sqrt", "one"}},
    [KEY_FEATURE] = {"feature",
                     KIND_WORD,
                     false,
                     {"identity", "relu", "elu1", "unit", "unit_heads"}},
    [KEY_CLAMP] = {"clamp", KIND_NUMBER, false, {"none"}},
    [KEY_DECAY] = {"decay", KIND_WORD, true, {"none", "learned"}},
    [KEY_VALUE_GATE] = {"value_gate", KIND_WORD, true, {"off", "sigmoid"}},
    [KEY_NORMALISER] = {"normaliser",
                        KIND_WORD,
                        false,
                        {"row_sum", "row_sum_min1", "row_length", "none", "cumulative_gate",
                         "value_power"}},
    [KEY_DETACH] = {"detach", KIND_WORD, true, {"off", "on"}},
    [KEY_EPSILON] = {"epsilon", KIND_NUMBER, false, {"none"}},
    [KEY_OUTPUT_GATE] = {"output_gate",
                         KIND_WORD,
                         true,
                         {"none", "sigmoid", "inverse_exp", "inverse_cumulative"}},
    [KEY_POST_GATE] = {"post_gate", KIND_WORD, true, {"off", "sigmoid"}},
    [KEY_NORM] = {"norm", KIND_WORD, false, {"none", "layer", "rms", "l2", "l2_scaled"}},
};

/* Other words for the same, as people write them. */
typedef struct synonym {
    key key;
    const char *word;
    int means; /* the number of the word in the key's list */
} synonym;

static const synonym synonyms[] = {
    {KEY_POSITION, "rotary", SRNN_POSITION_ROPE},
    {KEY_SCALE, "1", SRNN_SCALE_ONE},
    {KEY_SCALE, "1/sqrt(d)", SRNN_SCALE_INVERSE_SQRT},
    {KEY_DECAY, "off", SRNN_DECAY_NONE},
    {KEY_VALUE_GATE, "none", 0},
    {KEY_DETACH, "none", 0},
    {KEY_OUTPUT_GATE, "off", SRNN_GATE_NONE},
    {KEY_POST_GATE, "none", 0},
    {KEY_NORM, "off", SRNN_NORM_NONE},
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

static double field(const srnn_attention *a, key which) {
    switch (which) {
    case KEY_SCORE:
        return a->score;
    case KEY_POSITION:
        return a->position;
    case KEY_SHORT_CONV:
        return a->short_conv;
    case KEY_FRONT_TOKENS:
        return a->front_tokens;
    case KEY_SCALE:
        return a->scale;
    case KEY_FEATURE:
        return a->feature;
    case KEY_CLAMP:
        return a->clamp;
    case KEY_DECAY:
        return a->decay;
    case KEY_VALUE_GATE:
        return a->value_gate;
    case KEY_NORMALISER:
        return a->normaliser;
    case KEY_DETACH:
        return a->detach;
    case KEY_EPSILON:
        return a->epsilon;
    case KEY_OUTPUT_GATE:
        return a->output_gate;
    case KEY_POST_GATE:
        return a->post_gate;
    case KEY_NORM:
        return a->norm;
    }
    return 0;
}

/* `value` is the number of a word, or the number itself. */
static void set_field(srnn_attention *a, key which, double value) {
    int word = which == KEY_CLAMP || which == KEY_EPSILON ? 0 : (int)value;
    switch (which) {
    case KEY_SCORE:
        a->score = (srnn_score)word;
        break;
    case KEY_POSITION:
        a->position = (srnn_position)word;
        break;
    case KEY_SHORT_CONV:
        a->short_conv = word;
        break;
    case KEY_FRONT_TOKENS:
        a->front_tokens = word;
        break;
    case KEY_SCALE:
        a->scale = (srnn_scale)word;
        break;
    case KEY_FEATURE:
        a->feature = (srnn_feature)word;
        break;
    case KEY_CLAMP:
        a->clamp = value;
        break;
    case KEY_DECAY:
        a->decay = (srnn_decay)word;
        break;
    case KEY_VALUE_GATE:
        a->value_gate = word != 0;
        break;
    case KEY_NORMALISER:
        a->normaliser = (srnn_normaliser)word;
        break;
    case KEY_DETACH:
        a->detach = word != 0;
        break;
    case KEY_EPSILON:
        a->epsilon = value;
        break;
    case KEY_OUTPUT_GATE:
        a->output_gate = (srnn_gate)word;
        break;
    case KEY_POST_GATE:
        a->post_gate = word != 0;
        break;
    case KEY_NORM:
        a->norm = (srnn_norm)word;
        break;
    }
}

/* ---- Parsing */

/* Where a word stands, for messages. */
typedef struct place {
    const char *word;
    size_t column; /* 1-based */
} place;

/* 'X' is no Y; did you mean 'Z'? Where nothing is near and the words are few: there are A, B, C. */
static srnn_status fail_word(place at, const char *what, const char *const *words, size_t count) {
    const char *nearest = sr_nearest_word(at.word, words, count);
    char list[128] = "";
    if (!nearest && count > 1 && count <= WORDS_MAX) {
        for (size_t i = 0, used = 0; i < count && used < sizeof list; i++)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
        return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: '%s' is no %s; there are %s",
                       at.column, at.word, what, list);
    }
    return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: '%s' is no %s%s%s%s", at.column,
                   at.word, what, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                   nearest ? "'?" : "");
}

/* The number of `word` in a NULL-terminated list, or -1. */
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

/* A decimal number, whatever the locale of the program says about decimal points. */
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

static size_t count_words(const char *const *words) {
    size_t count = 0;
    while (words[count])
        count++;
    return count;
}

static srnn_status parse_score(srnn_attention *a, char *text, size_t column) {
    int order;
    bool given;
    SR_TRY(split_order(text, &order, &given, column));
    const char *const *words = keys[KEY_SCORE].words;
    int word = find_word(words, text);
    if (word < 0)
        return fail_word((place){text, column}, "score", words, count_words(words));
    bool needed = word == SRNN_SCORE_TAYLOR || word == SRNN_SCORE_POWER;
    if (needed != given)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: score=%s takes %s", column,
                       text, needed ? "an order, as in score=taylor:3" : "no order");
    set_field(a, KEY_SCORE, word);
    a->order = order;
    return SRNN_OK;
}

static int find_value(key which, const char *text) {
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (synonyms[i].key == which && strcmp(synonyms[i].word, text) == 0)
            return synonyms[i].means;
    return find_word(keys[which].words, text);
}

static srnn_status parse_value(srnn_attention *a, key which, char *text, size_t column) {
    const key_row *row = &keys[which];
    int word = find_value(which, text), count;
    double number;
    switch (row->kind) {
    case KIND_SCORE:
        return parse_score(a, text, column);
    case KIND_WORD:
        if (word < 0)
            return fail_word((place){text, column}, row->name, row->words, count_words(row->words));
        set_field(a, which, word);
        return SRNN_OK;
    case KIND_COUNT:
        if (word < 0 && !parse_count(&count, text))
            return fail_word((place){text, column}, "whole number", NULL, 0);
        set_field(a, which, word < 0 ? count : 0);
        return SRNN_OK;
    case KIND_NUMBER:
        if (word < 0 && !parse_number(&number, text))
            return fail_word((place){text, column}, "number", NULL, 0);
        set_field(a, which, word < 0 ? number : 0);
        return SRNN_OK;
    }
    return SRNN_OK;
}

static int find_key(const char *name) {
    if (strcmp(name, "output_norm") == 0)
        return KEY_NORM;
    for (int i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return i;
    return -1;
}

static const srnn_variant *find_family(const char *name) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

/* Fails with the nearest of the names and keys that may stand first. */
static srnn_status fail_name(place at) {
    const char *words[128];
    size_t count = 0;
    for (size_t i = 0; i < KEYS; i++)
        words[count++] = keys[i].name;
    for (size_t i = 0; i < FAMILIES; i++)
        words[count++] = families[i].name;
    for (size_t i = 0; srnn_variant_at(i) && count < sizeof words / sizeof *words; i++)
        words[count++] = srnn_variant_at(i)->name;
    return fail_word(at, "variant and no key", words, count);
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

/* One item: name, key or key=value. `seen` has a bit for every key that stood before. */
static srnn_status parse_item(srnn_attention *a, unsigned *seen, char *item, size_t column,
                              bool first) {
    char *equals = strchr(item, '=');
    if (equals)
        *equals = '\0';
    int which = find_key(item);
    bool key_alone = which >= 0 && keys[which].flag;
    if (first && !equals && !key_alone)
        return parse_name(a, item, column);
    if (which < 0) {
        const char *names[KEYS];
        for (size_t i = 0; i < KEYS; i++)
            names[i] = keys[i].name;
        return fail_word((place){item, column}, "key", names, KEYS);
    }
    if (*seen & 1U << which)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: '%s' is given twice", column,
                       item);
    *seen |= 1U << which;
    if (equals)
        return parse_value(a, (key)which, equals + 1, column + (size_t)(equals + 1 - item));
    if (!key_alone)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "attention text, column %zu: '%s' takes a value, as in %s=%s", column, item,
                       item, keys[which].words[0]);
    set_field(a, (key)which, 1);
    return SRNN_OK;
}

static srnn_status check_item(const srnn_attention *a, size_t column) {
    if (srnn_attention_check(a) == SRNN_OK)
        return SRNN_OK;
    char why[256];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(SRNN_ERR_FORMAT, "attention text, column %zu: %s", column, why);
}

srnn_status srnn_attention_parse(srnn_attention *attention, const char *text) {
    srnn_attention a = {0};
    unsigned seen = 0;
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
    *attention = a;
    return SRNN_OK;
}

/* ---- Printing */

/* Text that grows like snprintf's: `length` counts what would be there. */
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

/* As many digits, up to 17, as reading back the same number takes. */
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

static void put_item(output *out, const srnn_attention *a, key which) {
    const key_row *row = &keys[which];
    double value = field(a, which);
    if (value == 0 && row->kind != KIND_SCORE)
        return;
    if (out->length)
        put(out, ",");
    put(out, row->name);
    if (row->flag && value == 1)
        return;
    put(out, "=");
    switch (row->kind) {
    case KIND_SCORE:
    case KIND_WORD:
        put(out, row->words[(int)value]);
        break;
    case KIND_COUNT:
        put_count(out, (int)value);
        break;
    case KIND_NUMBER:
        put_number(out, value);
        break;
    }
    if (row->kind == KIND_SCORE &&
        (a->score == SRNN_SCORE_TAYLOR || a->score == SRNN_SCORE_POWER)) {
        put(out, ":");
        put_count(out, a->order);
    }
}

size_t srnn_attention_print(char *text, size_t size, const srnn_attention *attention) {
    output out = {text, size, 0};
    if (srnn_attention_check(attention) == SRNN_OK)
        for (int which = 0; which < KEYS; which++)
            put_item(&out, attention, (key)which);
    if (size)
        text[out.length < size ? out.length : size - 1] = '\0';
    return out.length;
}
