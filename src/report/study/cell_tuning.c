/* cell_tuning.c: the learning rates tried before a study's runs. */
#include "files/json.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <math.h>
#include <string.h>

/* The tuning result of a variant in a cell; NULL: none. */
static const json_t *found(const sr_records *records, const sr_cell_record *cell,
                           const sr_variant_record *variant) {
    for (size_t i = 0; i < sr_json_count_of(records->tuning, "rates"); i++) {
        const json_t *object = sr_json_element_of(records->tuning, "rates", i);
        if (strcmp(sr_json_text_of(object, "task"), cell->task) == 0 &&
            strcmp(sr_json_text_of(object, "size"), cell->size) == 0 &&
            strcmp(sr_json_text_of(object, "variant"), variant->name) == 0)
            return object;
    }
    return NULL;
}

/* The mean of a trial's losses; NAN: one of them was not finite. */
static double loss_of(const json_t *trial) {
    const json_t *losses = json_object_get(trial, "losses");
    double sum = 0;
    for (size_t i = 0; i < json_array_size(losses); i++)
        sum += json_is_number(json_array_get(losses, i))
                   ? json_number_value(json_array_get(losses, i))
                   : NAN;
    return sum / (double)json_array_size(losses);
}

/* Rates of the first round, which has all of them, in increasing order. */
static void add_variant(sr_chart *chart, const json_t *object, const sr_variant_record *variant) {
    const size_t count = sr_json_count_of(object, "trials");
    sr_chart_series(chart, variant->name, variant->style);
    for (double above = 0;;) {
        const json_t *next = NULL;
        for (size_t i = 0; i < count; i++) {
            const json_t *trial = sr_json_element_of(object, "trials", i);
            const double rate = sr_json_number_of(trial, "learning_rate");
            if (sr_json_number_of(trial, "round") == 1 && rate > above &&
                (!next || rate < sr_json_number_of(next, "learning_rate")))
                next = trial;
        }
        if (!next)
            return;
        above = sr_json_number_of(next, "learning_rate");
        const double loss = loss_of(next);
        sr_chart_point(chart, above, loss, loss, loss);
    }
}

static srnn_status put_rates(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                             const char *stem) {
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-tuning", stem);
    SR_TRY(sr_table_create(&table, name,
                           "The learning rate that was chosen for each variant; one at the end of "
                           "the list may not be the best there is"));
    sr_table_column(table, "variant");
    sr_table_number_column(table, "learning rate");
    sr_table_column(table, "at the end of the list");
    for (size_t i = 0; i < cell->count; i++) {
        const json_t *object = found(records, cell, cell->entries[i].variant);
        const double rate = sr_json_number_of(object, "learning_rate");
        sr_table_cell(table, "%s", cell->entries[i].variant->name);
        sr_table_number(table, rate, sr_format_size(rate).text);
        sr_table_cell(table, "%s",
                      !object                                         ? ""
                      : json_is_true(json_object_get(object, "edge")) ? "yes"
                                                                      : "no");
    }
    return sr_page_table(page, table);
}

srnn_status sr_cell_tuning(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem) {
    char name[64];
    sr_chart *chart;
    if (!cell->tuned)
        return SRNN_OK;
    snprintf(name, sizeof name, "%s-sensitivity", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, "Sensitivity to the learning rate"));
    sr_chart_axes(chart, "learning rate", "validation loss");
    chart->x_log = true;
    sr_chart_describe(chart, "One line per variant: the loss after the first round of tuning, one "
                             "seed and a part of the steps, on rows that the comparison does not "
                             "have. A rate without a point ended without a finite loss.");
    for (size_t i = 0; i < cell->count; i++)
        add_variant(chart, found(records, cell, cell->entries[i].variant),
                    cell->entries[i].variant);
    SR_TRY(sr_page_chart(page, chart));
    return put_rates(page, records, cell, stem);
}

static bool has_best(const sr_records *records) {
    for (size_t i = 0; i < records->cell_count; i++)
        if (records->cells[i].at_best)
            return true;
    return false;
}

static double planned_flops(const sr_records *records) {
    double flops = 0;
    for (size_t i = 0; i < records->run_count; i++)
        flops += sr_json_number_of(records->runs[i].plan, "flops");
    return flops;
}

void sr_tuning_write(FILE *out, const sr_records *records) {
    if (records->tuning) {
        const double runs = sr_json_number_of(records->tuning, "runs");
        const double share = sr_json_number_of(records->tuning, "flops") / planned_flops(records);
        fprintf(out,
                "<p>Learning rates were tuned for each variant before the comparison, by "
                "successive halving on other seeds and rows: %s runs, %.0f\u202f%% of what the "
                "comparison costs.</p>\n",
                sr_format_count(runs).text, 100 * share);
    } else if (records->variant_count > 1 && !has_best(records)) {
        fputs("<p>Learning rates were <strong>not tuned</strong>: a variant that prefers another "
              "rate than the study\u2019s is at a disadvantage, and a verdict may change with the "
              "rate.</p>\n",
              out);
    }
}
