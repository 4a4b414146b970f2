/* runs.c: a self-contained page about training runs outside of studies. */
#include "report/runs/runs.h"

#include "base/memory.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/page/page.h"
#include "report/runs/run_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_list {
    sr_run_files *runs; /* (count) */
    size_t count;
} run_list;

static double tokens_per_step(const sr_run_files *run) {
    return sr_run_number(run, "batch") * sr_run_number(run, "length") *
           sr_run_number(run, "accumulate");
}

/* ---- the table */

static double last_training_loss(const sr_curve *curve) {
    for (size_t i = SR_CURVE_BINS; i-- > 0;)
        if (curve->loss[i].count)
            return sr_curve_bin_value(&curve->loss[i]);
    return NAN;
}

static void add_row(sr_table *table, const sr_run_files *run) {
    const sr_curve *curve = &run->curve;
    const double loss = last_training_loss(curve);
    const double speed = curve->last_step * tokens_per_step(run) / run->seconds;
    char attention[SR_SETTING_TEXT_BYTES];
    sr_run_setting(attention, run, "attention");
    sr_table_cell(table, "%s", run->name);
    sr_table_cell(table, "%s", attention);
    sr_table_number(table, curve->last_step, sr_format_count(curve->last_step).text);
    sr_table_number(table, curve->steps, sr_format_count(curve->steps).text);
    sr_table_number(table, loss, sr_format_fixed(loss, 4).text);
    sr_table_number(table, curve->last_loss, sr_format_fixed(curve->last_loss, 4).text);
    sr_table_number(table, curve->best_loss, sr_format_fixed(curve->best_loss, 4).text);
    sr_table_number(table, curve->last_accuracy, sr_format_fixed(curve->last_accuracy, 4).text);
    sr_table_number(table, speed, sr_format_count(speed).text);
}

static srnn_status put_table(sr_page *page, const run_list *list) {
    static const char *const numbers[] = {"steps",           "planned",   "training loss",
                                          "validation loss", "best loss", "accuracy",
                                          "tokens/s"};
    sr_table *table;
    SR_TRY(sr_table_create(&table, "runs", "Every run, from its metrics.jsonl"));
    sr_table_column(table, "run");
    sr_table_column(table, "attention");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    for (size_t i = 0; i < list->count; i++)
        add_row(table, &list->runs[i]);
    return sr_page_table(page, table);
}

/* ---- settings */

/* Settings that differ in every run, or that do not affect results. */
static bool is_own(const char *name) {
    static const char *const names[] = {"threads", "identity", "stop-step", "stop-tokens",
                                        "stop-seconds"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool differs(const run_list *list, const char *name) {
    char first[SR_SETTING_TEXT_BYTES], other[SR_SETTING_TEXT_BYTES];
    sr_run_setting(first, &list->runs[0], name);
    for (size_t i = 1; i < list->count; i++) {
        sr_run_setting(other, &list->runs[i], name);
        if (strcmp(first, other) != 0)
            return true;
    }
    return false;
}

static srnn_status put_differences(sr_page *page, const run_list *list) {
    char name[SR_SETTING_TEXT_BYTES], value[SR_SETTING_TEXT_BYTES];
    sr_table *table;
    SR_TRY(sr_table_create(&table, "settings", "Settings in which the runs differ"));
    sr_table_column(table, "setting");
    for (size_t i = 0; i < list->count; i++)
        sr_table_column(table, list->runs[i].name);
    for (size_t line = 0; sr_run_setting_name(name, &list->runs[0], line); line++) {
        if (!*name || is_own(name) || !differs(list, name))
            continue;
        sr_table_cell(table, "%s", name);
        for (size_t i = 0; i < list->count; i++) {
            sr_run_setting(value, &list->runs[i], name);
            sr_table_cell(table, "%s", value);
        }
    }
    if (sr_table_rows(table) > 0)
        return sr_page_table(page, table);
    sr_table_free(table);
    return SRNN_OK;
}

static void put_files(sr_page *page, const run_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        fputs("<details><summary>run.yaml of ", page->body);
        sr_escape_html(page->body, list->runs[i].folder);
        fputs("</summary><pre tabindex=\"0\">", page->body);
        sr_escape_html(page->body, list->runs[i].settings);
        fputs("</pre></details>\n", page->body);
    }
}

/* ---- curves */

typedef const sr_curve_bin *bins_of(const sr_curve *curve);

static const sr_curve_bin *validation_of(const sr_curve *curve) {
    return curve->validation;
}

static const sr_curve_bin *accuracy_of(const sr_curve *curve) {
    return curve->accuracy;
}

static const sr_curve_bin *loss_of(const sr_curve *curve) {
    return curve->loss;
}

static srnn_status put_curves(sr_page *page, const run_list *list, const char *name,
                              const char *what, bins_of *bins) {
    char title[64];
    sr_chart *chart;
    snprintf(title, sizeof title, "%s by step", what);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "step", what);
    sr_chart_describe(chart, "One line per run, named where it ends.");
    for (size_t i = 0; i < list->count; i++) {
        const sr_run_files *run = &list->runs[i];
        sr_chart_series(chart, run->name, (int)i);
        sr_chart_scale(chart, tokens_per_step(run), run->seconds / run->curve.last_step, 0);
        for (size_t b = 0; b < SR_CURVE_BINS; b++) {
            const sr_curve_bin *bin = &bins(&run->curve)[b];
            sr_chart_point(chart, sr_curve_bin_step(bin), sr_curve_bin_value(bin), NAN, NAN);
        }
    }
    return sr_page_chart(page, chart);
}

/* ---- the page */

static bool run_leaks(const sr_run_files *run) {
    char attention[SR_SETTING_TEXT_BYTES];
    sr_run_setting(attention, run, "attention");
    return sr_system_leaks(attention);
}

/* Names the runs of systems that are not causal. */
static void put_leaks(sr_page *page, const run_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        if (!run_leaks(&list->runs[i]))
            continue;
        fputs("<p class=\"warning\" role=\"note\"><strong>Not causal: ", page->body);
        sr_escape_html(page->body, list->runs[i].name);
        fprintf(page->body, ".</strong> %s</p>\n", sr_system_leak);
    }
}

/* Names the runs without records. */
static void put_empty(sr_page *page, const run_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->runs[i].curve.last_step > 0)
            continue;
        fputs("<p class=\"warning\" role=\"note\"><strong>No records: ", page->body);
        sr_escape_html(page->body, list->runs[i].name);
        fputs(".</strong> Its metrics.jsonl has no record of a step: the run has not ended one "
              "yet, or the file was moved or emptied.</p>\n",
              page->body);
    }
}

static srnn_status put_sections(sr_page *page, const run_list *list) {
    sr_page_section(page, "runs", "The runs");
    put_leaks(page, list);
    put_empty(page, list);
    SR_TRY(put_table(page, list));
    SR_TRY(put_differences(page, list));
    sr_page_section(page, "curves", "Losses");
    SR_TRY(put_curves(page, list, "validation-loss", "Validation loss", validation_of));
    SR_TRY(put_curves(page, list, "validation-accuracy", "Validation accuracy", accuracy_of));
    SR_TRY(put_curves(page, list, "training-loss", "Training loss", loss_of));
    sr_page_section(page, "settings", "All settings");
    put_files(page, list);
    return SRNN_OK;
}

static srnn_status write_page(const run_list *list, const char *folder, size_t *bytes) {
    char title[160];
    sr_page page;
    snprintf(title, sizeof title, list->count == 1 ? "%.120s" : "%.120s and %zu more",
             list->runs[0].name, list->count - 1);
    SR_TRY(sr_page_open(&page, folder));
    page.kicker = list->count == 1 ? "softrnn run" : "softrnn runs";
    srnn_status status = put_sections(&page, list);
    if (status == SRNN_OK)
        status = sr_page_write(&page, title, bytes);
    sr_page_free(&page);
    return status;
}

srnn_status sr_report_write_runs(char *const *runs, size_t count, const char *folder, size_t *bytes,
                                 bool *leaks) {
    void *memory;
    *leaks = false;
    SR_TRY(sr_alloc_zero(&memory, count, sizeof(sr_run_files)));
    const run_list list = {memory, count};
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < count && status == SRNN_OK; i++)
        status = sr_run_files_read(&list.runs[i], runs[i]);
    if (status == SRNN_OK)
        status = write_page(&list, folder, bytes);
    for (size_t i = 0; i < count; i++) {
        *leaks = *leaks || (status == SRNN_OK && run_leaks(&list.runs[i]));
        sr_run_files_free(&list.runs[i]);
    }
    free(memory);
    return status;
}
