/* support.c: reads the declarations of kernels. */
#include "equation/support.h"

#include <stdio.h>
#include <string.h>

/* A substring of a declaration. */
typedef struct piece {
    const char *text;
    size_t length;
} piece;

static bool piece_is(piece p, const char *word) {
    return strlen(word) == p.length && strncmp(word, p.text, p.length) == 0;
}

/* The substring up to a separator or the end; advances *at past it. */
static piece next_piece(const char **at, char separator) {
    const char *end = strchr(*at, separator);
    const piece p = {*at, end ? (size_t)(end - *at) : strlen(*at)};
    *at += p.length + (end != NULL);
    return p;
}

/* "name=a|b" into its name and its values. */
static piece split_entry(piece *values, piece entry) {
    const char *equals = memchr(entry.text, '=', entry.length);
    const size_t name = equals ? (size_t)(equals - entry.text) : entry.length;
    *values = (piece){entry.text + name + (equals != NULL), entry.length - name - (equals != NULL)};
    return (piece){entry.text, name};
}

/* The next of the values "a|b"; advances past it. False: there are no more. */
static bool next_value(piece *value, piece *values) {
    if (values->length == 0)
        return false;
    const char *bar = memchr(values->text, '|', values->length);
    *value = (piece){values->text, bar ? (size_t)(bar - values->text) : values->length};
    const size_t used = value->length + (bar != NULL);
    *values = (piece){values->text + used, values->length - used};
    return true;
}

/* Whether the variant's value is among the listed ones. */
static bool is_listed(const sr_axis *axis, double value, piece values) {
    piece one;
    while (next_value(&one, &values)) {
        if (axis->kind == SR_AXIS_COUNT || axis->kind == SR_AXIS_NUMBER) {
            if (piece_is(one, "any") || (value == 0 && piece_is(one, axis->words[0])))
                return true;
        } else if (piece_is(one, axis->words[(size_t)value])) {
            return true;
        }
    }
    return false;
}

static bool covers(const char *declaration, const sr_axis *axis, double value) {
    piece values;
    while (*declaration) {
        const piece name = split_entry(&values, next_piece(&declaration, ' '));
        if (piece_is(name, axis->name))
            return is_listed(axis, value, values);
    }
    return value == 0;
}

bool sr_computes_axes(const char *declaration, const sr_axis *axes, const srnn_attention *attention,
                      const sr_axis **missing) {
    for (const sr_axis *axis = axes; axis->name; axis++) {
        if (axis->of == SR_AXIS_OF_LAYER || !sr_axis_matters(axis, attention) ||
            covers(declaration, axis, sr_axis_value(axis, attention)))
            continue;
        if (missing)
            *missing = axis;
        return false;
    }
    return true;
}

bool sr_computes(const char *declaration, const srnn_attention *attention,
                 const sr_axis **missing) {
    return sr_computes_axes(declaration, sr_axis_at(0), attention, missing);
}

static const sr_axis *find_axis(piece name) {
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++)
        if (piece_is(name, axis->name))
            return axis;
    return NULL;
}

static bool is_value(const sr_axis *axis, piece value) {
    if ((axis->kind == SR_AXIS_COUNT || axis->kind == SR_AXIS_NUMBER) && piece_is(value, "any"))
        return true;
    for (size_t i = 0; axis->words[i]; i++)
        if (piece_is(value, axis->words[i]))
            return true;
    return false;
}

bool sr_declaration_is_valid(const char *declaration, char wrong[64]) {
    piece values, value;
    while (*declaration) {
        const piece name = split_entry(&values, next_piece(&declaration, ' '));
        const sr_axis *axis = find_axis(name);
        if (!axis || values.length == 0) {
            snprintf(wrong, 64, "%.*s", (int)name.length, name.text);
            return false;
        }
        while (next_value(&value, &values))
            if (!is_value(axis, value)) {
                snprintf(wrong, 64, "%s=%.*s", axis->name, (int)value.length, value.text);
                return false;
            }
    }
    return true;
}
