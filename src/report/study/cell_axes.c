/* cell_axes.c: variants that differ from the baseline in a single axis, grouped by axis. */
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <string.h>

/* One axis of a text form: "norm=l2". */
typedef struct axis {
    size_t name, length; /* of "norm"; of the whole */
    const char *text;
} axis;

/* The axis at `text`, or none (length 0) at its end; *text is advanced. */
static axis next_axis(const char **text) {
    const axis found = {strcspn(*text, "=,"), strcspn(*text, ","), *text};
    *text += found.length;
    *text += **text == ',';
    return found;
}

static bool same_name(const axis *a, const axis *b) {
    return a->name == b->name && strncmp(a->text, b->text, a->name) == 0;
}

/* The axis of that name in a text form; length 0: absent, it has its default. */
static axis find_axis(const char *text, const axis *wanted) {
    while (*text) {
        const axis found = next_axis(&text);
        if (same_name(&found, wanted))
            return found;
    }
    return (axis){0, 0, ""};
}

/* A difference of a variant from the baseline in one axis. */
typedef struct step {
    axis from, to; /* length 0: the default */
} step;

static bool differs(const step *s) {
    return s->from.length != s->to.length || strncmp(s->from.text, s->to.text, s->from.length) != 0;
}

/* The number of axes in which two text forms differ; *last is one of them. */
static size_t count_steps(step *last, const char *from, const char *to) {
    size_t count = 0;
    for (const char *rest = to; *rest;) {
        step s = {.to = next_axis(&rest)};
        s.from = find_axis(from, &s.to);
        if (differs(&s)) {
            *last = s;
            count++;
        }
    }
    for (const char *rest = from; *rest;) {
        const step s = {.from = next_axis(&rest), .to = {0, 0, ""}};
        if (find_axis(to, &s.from).length == 0) {
            *last = s;
            count++;
        }
    }
    return count;
}

/* The one axis in which the entry differs from the baseline; false: none or several. */
static bool find_step(step *found, const sr_cell_record *cell, const sr_entry *entry) {
    return cell->baseline && sr_entry_compared(entry) && entry->variant->known &&
           entry->variant->trained_alike && cell->baseline->variant->known &&
           count_steps(found, cell->baseline->variant->text, entry->variant->text) == 1;
}

static const axis *named(const step *s) {
    return s->to.length ? &s->to : &s->from;
}

static void add_value(sr_table *table, const axis *value) {
    const size_t skipped = value->name < value->length ? value->name + 1 : 0;
    if (value->length)
        sr_table_cell(table, "%.*s", (int)(value->length - skipped), value->text + skipped);
    else
        sr_table_cell(table, "ordinary");
}

static void add_row(sr_table *table, const step *s, const sr_entry *entry) {
    const int decimals = sr_format_decimals(entry->low, entry->high, 4);
    sr_table_cell(table, "%.*s", (int)named(s)->name, named(s)->text);
    add_value(table, &s->from);
    add_value(table, &s->to);
    sr_table_cell(table, "%s", entry->variant->name);
    sr_table_cell(table, "%s", entry->of_accuracy ? "accuracy" : "loss");
    sr_table_number(table, entry->difference, sr_format_signed(entry->difference, decimals).text);
    sr_table_number(table, entry->low, sr_format_signed(entry->low, decimals).text);
    sr_table_number(table, entry->high, sr_format_signed(entry->high, decimals).text);
    sr_table_cell(table, "%s", sr_effect_word(entry->effect));
}

/* True if an entry before this one of the ranking has the same axis. */
static bool is_listed(const sr_cell_record *cell, size_t index, const step *s) {
    step other;
    for (size_t i = 0; i < index; i++)
        if (find_step(&other, cell, cell->ranked[i]) && same_name(named(&other), named(s)))
            return true;
    return false;
}

/* Grouped by axis, axes in the order of their best values; best first within an axis. */
static void fill(sr_table *table, const sr_cell_record *cell) {
    for (size_t first = 0; first < cell->count; first++) {
        step s, other;
        if (!find_step(&s, cell, cell->ranked[first]) || is_listed(cell, first, &s))
            continue;
        for (size_t i = first; i < cell->count; i++)
            if (find_step(&other, cell, cell->ranked[i]) && same_name(named(&other), named(&s)))
                add_row(table, &other, cell->ranked[i]);
    }
}

srnn_status sr_cell_axes(sr_page *page, const sr_cell_record *cell, const char *stem) {
    static const char *const columns[] = {"axis", "baseline", "here", "variant", "difference of"};
    static const char *const numbers[] = {"difference", "from", "to"};
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-axes", stem);
    SR_TRY(sr_table_create(&table, name,
                           "Axis by axis: variants that differ from the baseline in one axis "
                           "alone"));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        sr_table_column(table, columns[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    sr_table_column(table, "verdict");
    fill(table, cell);
    if (sr_table_rows(table) < 2) {
        sr_table_free(table);
        return SRNN_OK;
    }
    return sr_page_table(page, table);
}
