/* cell.c: the section of one task: differences to the baseline, orders, then curves and costs. */
#include "report/format.h"
#include "report/sections.h"

#include <math.h>

static const char *effect_word(sr_effect effect) {
    switch (effect) {
    case SR_EFFECT_UNKNOWN:
        break;
    case SR_EFFECT_BASELINE:
        return "baseline";
    case SR_EFFECT_UNCLEAR:
        return "unclear";
    case SR_EFFECT_BETTER:
        return "better";
    case SR_EFFECT_WORSE:
        return "worse";
    }
    return "not known";
}

/* Colours of the style sheet: 2 vermilion, 3 green; a second dash makes a mark hollow. */
static int effect_style(sr_effect effect) {
    return effect == SR_EFFECT_WORSE ? 2 : effect == SR_EFFECT_BETTER ? 3 : SR_CHART_COLOURS;
}

static srnn_status put_ranks(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                             const char *stem) {
    char name[64], title[160];
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-differences", stem);
    snprintf(title, sizeof title, "Difference to the baseline in %s, best first",
             cell->accuracy ? "accuracy" : "validation loss");
    SR_TRY(sr_chart_create(&chart, SR_CHART_RANKS, name, title));
    sr_chart_axes(chart, "",
                  cell->accuracy ? "accuracy minus the baseline's (more is better)"
                                 : "loss minus the baseline's (less is better)");
    sr_chart_describe(
        chart,
        "Bars are %.0f\u202f%% confidence intervals. Filled marks: the interval excludes "
        "zero. Hollow marks: it includes zero, and no difference is shown. The table "
        "below holds the same numbers.",
        100 * records->confidence);
    chart->has_reference = true;
    for (size_t i = 0; i < cell->count; i++)
        if (isfinite(cell->ranked[i]->difference)) {
            sr_chart_series(chart, cell->ranked[i]->variant->name,
                            effect_style(cell->ranked[i]->effect));
            sr_chart_point(chart, 0, cell->ranked[i]->difference, cell->ranked[i]->low,
                           cell->ranked[i]->high);
        }
    return sr_page_chart(page, chart);
}

static srnn_status put_table(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                             const char *stem) {
    static const char *const numbers[] = {"mean", "std. dev.", "difference", "from", "to"};
    char name[64], caption[200];
    sr_table *table;
    snprintf(name, sizeof name, "%s-differences", stem);
    snprintf(caption, sizeof caption,
             "Final validation %s over seeds, and its difference to the baseline with its %.0f %% "
             "interval, best first",
             cell->accuracy ? "accuracy" : "loss (nats per token)", 100 * records->confidence);
    SR_TRY(sr_table_create(&table, name, caption));
    sr_table_column(table, "variant");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    sr_table_column(table, "verdict");
    sr_table_number_column(table, "best loss");
    sr_table_number_column(table, "runs");
    sr_table_number_column(table, "diverged");
    sr_table_number_column(table, "skipped steps");
    sr_table_column(table, "interval");
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = cell->ranked[i];
        sr_table_cell(table, "%s", entry->variant->name);
        sr_table_cell(table, "%s", sr_format_fixed(entry->mean, 4).text);
        sr_table_cell(table, "%s", sr_format_fixed(entry->deviation, 4).text);
        sr_table_cell(table, "%s", sr_format_signed(entry->difference, 4).text);
        sr_table_cell(table, "%s", sr_format_signed(entry->low, 4).text);
        sr_table_cell(table, "%s", sr_format_signed(entry->high, 4).text);
        sr_table_cell(table, "%s", effect_word(entry->effect));
        sr_table_cell(table, "%s", sr_format_fixed(entry->best_loss, 4).text);
        sr_table_cell(table, "%s/%s", sr_format_count(entry->finished).text,
                      sr_format_count(entry->runs).text);
        sr_table_cell(table, "%s", sr_format_count(entry->diverged).text);
        sr_table_cell(table, "%s", sr_format_count(entry->skipped).text);
        sr_table_cell(table, "%s", entry->method);
    }
    return sr_page_table(page, table);
}

/* The order of a series that ends; linear attention is order 1. -1: it does not end, or is not
 * known. */
static int order_of(const sr_entry *entry) {
    const srnn_attention *a = &entry->variant->descriptor;
    if (!entry->variant->known || !isfinite(entry->mean))
        return -1;
    return a->score == SRNN_SCORE_TAYLOR ? a->order : a->score == SRNN_SCORE_LINEAR ? 1 : -1;
}

/* The next entry of the feature above `order`; NULL: none. */
static const sr_entry *next_order(const sr_cell_record *cell, srnn_feature feature, int order) {
    const sr_entry *next = NULL;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (order_of(entry) > order && entry->variant->descriptor.feature == feature &&
            (!next || order_of(entry) < order_of(next)))
            next = entry;
    }
    return next;
}

static srnn_status put_orders(sr_page *page, const sr_cell_record *cell, const char *stem) {
    static const char *const features[] = {"plain q and k", "relu features", "elu + 1 features",
                                           "unit features", "unit features across heads"};
    char name[64];
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-orders", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name,
                           cell->accuracy ? "Accuracy against the order of the Taylor series"
                                          : "Loss against the order of the Taylor series"));
    sr_chart_axes(chart, "order", cell->accuracy ? "validation accuracy" : "validation loss");
    size_t points = 0;
    double last = 1, first = 1e9;
    for (int f = 0; f <= SRNN_FEATURE_UNIT_HEADS; f++) {
        const sr_entry *entry = next_order(cell, (srnn_feature)f, -1);
        if (!entry)
            continue;
        sr_chart_series(chart, features[f], f + 1);
        for (; entry; entry = next_order(cell, (srnn_feature)f, order_of(entry))) {
            const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
            const double order = order_of(entry);
            sr_chart_point(chart, order, entry->mean, entry->mean - spread, entry->mean + spread);
            last = fmax(last, order);
            first = fmin(first, order);
            points++;
        }
    }
    if (points < 2) {
        sr_chart_free(chart);
        return SRNN_OK;
    }
    if (cell->baseline && isfinite(cell->baseline->mean)) {
        sr_chart_series(chart, cell->baseline->variant->name, 0);
        sr_chart_point(chart, first, cell->baseline->mean, NAN, NAN);
        sr_chart_point(chart, last, cell->baseline->mean, NAN, NAN);
    }
    sr_chart_describe(chart, "Means over seeds; bands are one standard deviation to each side. The "
                             "level line is the baseline, which holds every order.");
    return sr_page_chart(page, chart);
}

srnn_status sr_section_cell(sr_page *page, const sr_records *records, size_t index) {
    const sr_cell_record *cell = &records->cells[index];
    char stem[48], id[64];
    sr_format_stem(stem, sizeof stem, index + 1, cell->task);
    snprintf(id, sizeof id, "task-%zu", index + 1);
    sr_page_section(page, id, cell->title);
    SR_TRY(put_ranks(page, records, cell, stem));
    SR_TRY(put_table(page, records, cell, stem));
    SR_TRY(put_orders(page, cell, stem));
    SR_TRY(sr_cell_curves(page, records, cell, stem));
    return sr_cell_costs(page, cell, stem);
}
