/* cell.c: the section of one task: differences to the baseline, then orders, curves and costs. */
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <math.h>

/* Colours of the style sheet: 2 vermilion, 3 green, 5 ochre; a second dash makes a mark hollow, a
 * third one square. */
static int effect_style(sr_effect effect) {
    switch (effect) {
    case SR_EFFECT_BASELINE:
        return 0;
    case SR_EFFECT_WORSE:
        return 2;
    case SR_EFFECT_BETTER:
        return 3;
    case SR_EFFECT_UNSTABLE:
        return 5 + 2 * SR_CHART_COLOURS;
    case SR_EFFECT_TOO_FEW:
    case SR_EFFECT_UNCLEAR:
    case SR_EFFECT_UNKNOWN:
        break;
    }
    return SR_CHART_COLOURS;
}

/* A row of the figure. The remaining runs of an unstable variant are a biased sample: it gets no
 * bar. */
static void add_rank(sr_chart *chart, const sr_entry *entry) {
    char note[160] = "nothing to compare yet";
    sr_chart_series(chart, entry->variant->name, effect_style(entry->effect));
    const bool unstable = entry->effect == SR_EFFECT_UNSTABLE;
    if (unstable)
        sr_entry_write_broken(note, sizeof note, entry);
    if (entry->effect == SR_EFFECT_BASELINE)
        sr_chart_point(chart, 0, 0, NAN, NAN);
    else if (isfinite(entry->difference))
        sr_chart_point(chart, 0, entry->difference, unstable ? NAN : entry->low,
                       unstable ? NAN : entry->high);
    else
        sr_chart_note(chart, note);
    for (size_t i = 0; i < entry->seed_count; i++)
        sr_chart_dot(chart, entry->seeds[i]);
}

static size_t count_compared(const sr_cell_record *cell, bool of_accuracy) {
    size_t count = 0;
    for (size_t i = 0; i < cell->count; i++)
        count +=
            sr_entry_compared(&cell->entries[i]) && cell->entries[i].of_accuracy == of_accuracy;
    return count;
}

static bool has_effect(const sr_cell_record *cell, sr_effect effect) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].effect == effect)
            return true;
    return false;
}

/* The meaning of the marks that occur in this figure. */
static void describe_ranks(sr_chart *chart, const sr_records *records, const sr_cell_record *cell,
                           bool floor) {
    char bars[80] = "";
    const bool decided = has_effect(cell, SR_EFFECT_BETTER) || has_effect(cell, SR_EFFECT_WORSE);
    const bool unclear = has_effect(cell, SR_EFFECT_UNCLEAR);
    if (decided || unclear)
        snprintf(bars, sizeof bars, "Bars are %.0f\u202f%% confidence intervals, small dots ",
                 100 * records->confidence);
    sr_chart_describe(
        chart, "%sthe single seeds.%s%s%s%s%s The table below holds the same numbers.",
        *bars ? bars : "Small dots are ",
        floor ? " The band is the noise floor, by which two seeds of the baseline differ." : "",
        decided ? " Filled: the interval excludes zero." : "",
        unclear ? " Hollow: it includes zero, and no difference is shown." : "",
        has_effect(cell, SR_EFFECT_TOO_FEW) ? " Hollow without a bar: too few runs to judge." : "",
        has_effect(cell, SR_EFFECT_UNSTABLE) ? " Squares: unstable, only the seeds that are left."
                                             : "");
}

/* The variants whose difference is of one measure: usually all of a cell. */
static srnn_status put_ranks(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                             const char *stem, bool of_accuracy) {
    char name[64], title[160];
    const bool floor = of_accuracy == cell->accuracy && cell->noise_floor > 0;
    sr_chart *chart;
    if (count_compared(cell, of_accuracy) == 0)
        return SRNN_OK;
    snprintf(name, sizeof name, "%s-differences-in-%s", stem, of_accuracy ? "accuracy" : "loss");
    snprintf(title, sizeof title, "Difference to the baseline in %s, best first",
             of_accuracy ? "accuracy" : "validation loss");
    SR_TRY(sr_chart_create(&chart, SR_CHART_RANKS, name, title));
    sr_chart_axes(chart, "",
                  of_accuracy ? "accuracy minus the baseline's (more is better)"
                              : "loss minus the baseline's, nats (less is better)");
    describe_ranks(chart, records, cell, floor);
    chart->has_reference = true;
    if (floor)
        sr_chart_band(chart, cell->noise_floor);
    for (size_t i = 0; i < cell->count; i++)
        if (cell->ranked[i]->effect == SR_EFFECT_BASELINE ||
            cell->ranked[i]->of_accuracy == of_accuracy)
            add_rank(chart, cell->ranked[i]);
    return sr_page_chart(page, chart);
}

/* Rare events get a column only if they occurred. */
typedef struct troubles {
    bool diverged, skipped;
} troubles;

static troubles find_troubles(const sr_cell_record *cell) {
    troubles met = {false, false};
    for (size_t i = 0; i < cell->count; i++) {
        met.diverged = met.diverged || cell->entries[i].diverged > 0;
        met.skipped = met.skipped || cell->entries[i].skipped > 0;
    }
    return met;
}

/* A better variant may owe it to its size. */
static void add_verdict(sr_table *table, const sr_entry *entry) {
    char parameters[48] = "";
    if (entry->effect == SR_EFFECT_BETTER)
        sr_entry_write_parameters(parameters, entry);
    sr_table_cell(table, "%s%s%s", sr_effect_word(entry->effect), *parameters ? ", " : "",
                  parameters);
}

static void add_row(sr_table *table, const sr_cell_record *cell, const sr_entry *entry,
                    const troubles *met) {
    const int decimals = sr_format_decimals(entry->low, entry->high, 4);
    const bool baseline = entry->effect == SR_EFFECT_BASELINE;
    sr_table_cell(table, "%s", entry->variant->name);
    if (cell->at_best || cell->tuned)
        sr_table_number(table, entry->learning_rate, sr_format_size(entry->learning_rate).text);
    sr_table_number(table, entry->mean, sr_format_fixed(entry->mean, 4).text);
    sr_table_number(table, entry->deviation, sr_format_fixed(entry->deviation, 4).text);
    sr_table_cell(table, "%s", baseline ? "" : entry->of_accuracy ? "accuracy" : "loss");
    sr_table_number(table, entry->difference, sr_format_signed(entry->difference, decimals).text);
    sr_table_number(table, entry->low, sr_format_signed(entry->low, decimals).text);
    sr_table_number(table, entry->high, sr_format_signed(entry->high, decimals).text);
    add_verdict(table, entry);
    sr_table_cell(table, "%s", entry->method);
    sr_table_number(table, baseline ? NAN : (double)entry->seed_count,
                    baseline ? "" : sr_format_count((double)entry->seed_count).text);
    sr_table_number(table, entry->best_loss, sr_format_fixed(entry->best_loss, 4).text);
    sr_table_number(table, entry->finished, sr_format_count(entry->finished).text);
    sr_table_number(table, entry->runs, sr_format_count(entry->runs).text);
    if (met->diverged)
        sr_table_number(table, entry->diverged, sr_format_count(entry->diverged).text);
    if (met->skipped)
        sr_table_number(table, entry->skipped, sr_format_count(entry->skipped).text);
}

static srnn_status put_table(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                             const char *stem) {
    static const struct {
        const char *title;
        bool number;
    } columns[] = {{"variant", false},   {"mean", true},
                   {"std. dev.", true},  {"difference of", false},
                   {"difference", true}, {"from", true},
                   {"to", true},         {"verdict", false},
                   {"interval", false},  {"pairs", true},
                   {"best loss", true},  {"finished", true},
                   {"planned", true}};
    const troubles met = find_troubles(cell);
    char name[64], caption[200];
    sr_table *table;
    snprintf(name, sizeof name, "%s-differences", stem);
    snprintf(caption, sizeof caption,
             "Final validation %s over seeds, and the difference to the baseline with its %.0f %% "
             "interval, best first",
             cell->accuracy ? "accuracy" : "loss (nats per token)", 100 * records->confidence);
    SR_TRY(sr_table_create(&table, name, caption));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        if (i == 1 && (cell->at_best || cell->tuned))
            sr_table_number_column(table, "learning rate");
        if (columns[i].number)
            sr_table_number_column(table, columns[i].title);
        else
            sr_table_column(table, columns[i].title);
    }
    if (met.diverged)
        sr_table_number_column(table, "diverged");
    if (met.skipped)
        sr_table_number_column(table, "skipped steps");
    for (size_t i = 0; i < cell->count; i++)
        add_row(table, cell, cell->ranked[i], &met);
    return sr_page_table(page, table);
}

srnn_status sr_section_cell(sr_page *page, const sr_records *records, size_t index) {
    const sr_cell_record *cell = &records->cells[index];
    char stem[48], id[64];
    sr_format_stem(stem, sizeof stem, index + 1, cell->task);
    snprintf(id, sizeof id, "task-%zu", index + 1);
    sr_page_section(page, id, cell->title);
    if (cell->at_best)
        sr_page_paragraph(page, "Of the learning rates below, each variant and the baseline are "
                                "taken at the one where they end best, by the same validation: "
                                "of more rates, the best is a little better by chance.");
    SR_TRY(put_ranks(page, records, cell, stem, cell->accuracy));
    SR_TRY(put_ranks(page, records, cell, stem, !cell->accuracy));
    SR_TRY(put_table(page, records, cell, stem));
    SR_TRY(sr_cell_tuning(page, records, cell, stem));
    SR_TRY(sr_cell_tests(page, cell, stem));
    SR_TRY(sr_cell_axes(page, cell, stem));
    SR_TRY(sr_cell_orders(page, cell, stem));
    SR_TRY(sr_cell_curves(page, records, cell, stem));
    SR_TRY(sr_cell_costs(page, cell, stem));
    sr_cell_samples(page, cell);
    return SRNN_OK;
}
