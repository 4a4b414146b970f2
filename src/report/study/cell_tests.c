/* cell_tests.c: accuracy of a cell's finished runs on their test tasks. */
#include "files/json.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 16, NAME_BYTES = 32 };

/* The first run with tests: all runs of a cell have the same. */
static const json_t *tests_of(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        for (size_t r = 0; r < cell->entries[i].member_count; r++)
            if (sr_json_count_of(cell->entries[i].members[r]->tests, "tests") > 0)
                return cell->entries[i].members[r]->tests;
    return NULL;
}

static const char *data_of(const json_t *tests, size_t i) {
    return sr_json_text_of(sr_json_element_of(tests, "tests", i), "data");
}

/* "mqar:length=64,pairs=4": the number after "pairs="; NAN: not given. */
static double setting_of(const char *data, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = strpbrk(data, ":,"); at; at = strpbrk(at + 1, ":,"))
        if (strncmp(at + 1, name, length) == 0 && at[1 + length] == '=')
            return strtod(at + 2 + length, NULL);
    return NAN;
}

/* The settings given in the tests; returns their number. */
static size_t find_names(char names[MOST_NAMES][NAME_BYTES], const json_t *tests) {
    size_t count = 0;
    for (size_t i = 0; i < sr_json_count_of(tests, "tests"); i++)
        for (const char *at = strpbrk(data_of(tests, i), ":,"); at; at = strpbrk(at + 1, ":,")) {
            char name[NAME_BYTES];
            size_t known = 0;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "=,"), at + 1);
            while (known < count && strcmp(names[known], name) != 0)
                known++;
            if (known == count && count < MOST_NAMES && *name)
                memcpy(names[count++], name, sizeof name);
        }
    return count;
}

static bool varies(const json_t *tests, const char *name) {
    const double first = setting_of(data_of(tests, 0), name);
    for (size_t i = 1; i < sr_json_count_of(tests, "tests"); i++) {
        const double here = setting_of(data_of(tests, i), name);
        if (here != first && !(isnan(here) && isnan(first)))
            return true;
    }
    return false;
}

/* A run's accuracy in this test; NAN: none. */
static double accuracy_of(const sr_run_record *run, const char *data) {
    for (size_t i = 0; i < sr_json_count_of(run->tests, "tests"); i++)
        if (strcmp(data_of(run->tests, i), data) == 0)
            return sr_json_number_of(sr_json_element_of(run->tests, "tests", i), "accuracy");
    return NAN;
}

/* The mean over the tests whose setting is x. */
static double accuracy_at(const sr_run_record *run, const json_t *tests, const char *name,
                          double x) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < sr_json_count_of(tests, "tests"); i++)
        if (setting_of(data_of(tests, i), name) == x) {
            sum += accuracy_of(run, data_of(tests, i));
            count++;
        }
    return sum / (double)count;
}

/* Mean, minimum and maximum over seeds. */
static void add_point(sr_chart *chart, const sr_entry *entry, const json_t *tests, const char *name,
                      double x) {
    double sum = 0, least = DBL_MAX, most = -DBL_MAX;
    size_t count = 0;
    for (size_t r = 0; r < entry->member_count; r++) {
        const double value = accuracy_at(entry->members[r], tests, name, x);
        if (!isfinite(value))
            continue;
        sum += value;
        least = fmin(least, value);
        most = fmax(most, value);
        count++;
    }
    if (count)
        sr_chart_point(chart, x, sum / (double)count, least, most);
}

static double next_above(const json_t *tests, const char *name, double above) {
    double next = INFINITY;
    for (size_t i = 0; i < sr_json_count_of(tests, "tests"); i++) {
        const double here = setting_of(data_of(tests, i), name);
        next = here > above && here < next ? here : next;
    }
    return next;
}

/* The chart over setting `number`; its name becomes that of a file. */
static srnn_status put_chart(sr_page *page, const sr_cell_record *cell, const json_t *tests,
                             const char *stem, size_t number, const char *name) {
    char own[48], full[120], title[120];
    sr_chart *chart;
    sr_format_stem(own, sizeof own, number, name);
    snprintf(full, sizeof full, "%s-tests-%s", stem, own);
    snprintf(title, sizeof title, "Accuracy in tests against %s", name);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, full, title));
    sr_chart_axes(chart, name, "accuracy");
    chart->x_log = next_above(tests, name, -INFINITY) > 0;
    chart->has_reference = true;
    chart->reference = sr_json_number_of(sr_json_element_of(tests, "tests", 0), "chance");
    sr_chart_describe(chart,
                      "One line per variant: the mean over seeds, with a band from the least to "
                      "the most of them; of several tests with the same %s, their mean. The line "
                      "across is chance, of the first test.",
                      name);
    for (size_t i = 0; i < cell->count; i++) {
        sr_chart_series(chart, cell->entries[i].variant->name, cell->entries[i].variant->style);
        for (double x = next_above(tests, name, -INFINITY); isfinite(x);
             x = next_above(tests, name, x))
            add_point(chart, &cell->entries[i], tests, name, x);
    }
    return sr_page_chart(page, chart);
}

static double mean_of(const sr_entry *entry, const char *data) {
    double sum = 0;
    size_t count = 0;
    for (size_t r = 0; r < entry->member_count; r++) {
        const double value = accuracy_of(entry->members[r], data);
        if (!isfinite(value))
            continue;
        sum += value;
        count++;
    }
    return count ? sum / (double)count : NAN;
}

static srnn_status put_table(sr_page *page, const sr_cell_record *cell, const json_t *tests,
                             const char *stem) {
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-tests", stem);
    SR_TRY(sr_table_create(&table, name,
                           "Accuracy of the finished runs on other distributions than they were "
                           "trained on: means over seeds"));
    sr_table_column(table, "test");
    sr_table_number_column(table, "chance");
    for (size_t v = 0; v < cell->count; v++)
        sr_table_number_column(table, cell->entries[v].variant->name);
    for (size_t i = 0; i < sr_json_count_of(tests, "tests"); i++) {
        const double chance = sr_json_number_of(sr_json_element_of(tests, "tests", i), "chance");
        sr_table_cell(table, "%s", data_of(tests, i));
        sr_table_number(table, chance, sr_format_fixed(chance, 4).text);
        for (size_t v = 0; v < cell->count; v++) {
            const double mean = mean_of(&cell->entries[v], data_of(tests, i));
            sr_table_number(table, mean, sr_format_fixed(mean, 4).text);
        }
    }
    return sr_page_table(page, table);
}

srnn_status sr_cell_tests(sr_page *page, const sr_cell_record *cell, const char *stem) {
    const json_t *tests = tests_of(cell);
    char names[MOST_NAMES][NAME_BYTES];
    if (!tests)
        return SRNN_OK;
    const size_t count = find_names(names, tests);
    for (size_t i = 0; i < count; i++)
        if (varies(tests, names[i]) && strcmp(names[i], "shortest") != 0)
            SR_TRY(put_chart(page, cell, tests, stem, i + 1, names[i]));
    return put_table(page, cell, tests, stem);
}
