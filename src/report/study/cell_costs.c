/* cell_costs.c: quality against cost in a cell. */
#include "files/json.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <math.h>

static srnn_status put_memory(sr_page *page, const sr_cell_record *cell, const char *stem) {
    char name[64], x_title[200];
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-memory", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_POINTS, name,
                           "Quality against memory per token of context"));
    chart->x_log = true;
    snprintf(x_title, sizeof x_title,
             "bytes per token of %s: fixed-size state, else keys and values",
             sr_format_count(cell->length).text);
    sr_chart_describe(chart, "One mark a variant, all layers together. Variants without a state of "
                             "fixed size stand at the size of their keys and values, which grows "
                             "with the sequence; that of a state gets smaller per token the longer "
                             "the context is.");
    const double context = cell->length > 0 ? cell->length : 1;
    sr_chart_axes(chart, x_title, cell->accuracy ? "validation accuracy" : "validation loss");
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
        if (!isfinite(entry->mean) || !isfinite(sr_entry_memory(entry)))
            continue;
        sr_chart_series(chart, entry->variant->name, entry->variant->style);
        sr_chart_point(chart, sr_entry_memory(entry) / context, entry->mean, entry->mean - spread,
                       entry->mean + spread);
    }
    return sr_page_chart(page, chart);
}

/* Of the whole training of one run; NAN: unknown. */
static double flops_of(const sr_entry *entry) {
    return entry->member_count ? sr_json_number_of(entry->members[0]->plan, "flops") : NAN;
}

/* No chart if all variants have the same FLOPs. */
static srnn_status put_flops(sr_page *page, const sr_cell_record *cell, const char *stem) {
    char name[64];
    double least = INFINITY, most = 0;
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-flops", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_POINTS, name, "Quality against training FLOPs"));
    chart->x_log = true;
    sr_chart_describe(chart, "One mark a variant: floating-point operations of all its training "
                             "steps, forward and backward, as the plan estimates them. Attention "
                             "counts as softmax over all pairs, whatever the variant.");
    sr_chart_axes(chart, "training FLOPs",
                  cell->accuracy ? "validation accuracy" : "validation loss");
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
        if (!isfinite(entry->mean) || !isfinite(flops_of(entry)))
            continue;
        least = fmin(least, flops_of(entry));
        most = fmax(most, flops_of(entry));
        sr_chart_series(chart, entry->variant->name, entry->variant->style);
        sr_chart_point(chart, flops_of(entry), entry->mean, entry->mean - spread,
                       entry->mean + spread);
    }
    if (most > 1.01 * least)
        return sr_page_chart(page, chart);
    sr_chart_free(chart);
    return SRNN_OK;
}

static srnn_status put_table(sr_page *page, const sr_cell_record *cell, const char *stem) {
    char name[64];
    sr_table *table;
    bool apart = false;
    snprintf(name, sizeof name, "%s-costs", stem);
    SR_TRY(sr_table_create(&table, name, "What each variant costs"));
    sr_table_column(table, "variant");
    sr_table_number_column(table, cell->accuracy ? "accuracy" : "loss");
    sr_table_number_column(table, "fixed state, bytes");
    sr_table_number_column(table, "keys and values, bytes");
    sr_table_number_column(table, "tokens/s");
    sr_table_number_column(table, "training memory, bytes");
    sr_table_number_column(table, "parameters");
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        sr_table_cell(table, "%s", entry->variant->name);
        sr_table_number(table, entry->mean, sr_format_fixed(entry->mean, 4).text);
        sr_table_number(table, entry->state_bytes, sr_format_bytes(entry->state_bytes).text);
        sr_table_number(table, entry->cache_bytes, sr_format_bytes(entry->cache_bytes).text);
        char speed[100];
        snprintf(speed, sizeof speed, "%s%s", sr_format_count(entry->tokens_per_second).text,
                 entry->apart ? "*" : "");
        sr_table_number(table, entry->tokens_per_second, speed);
        apart = apart || entry->apart;
        sr_table_number(table, entry->memory_bytes, sr_format_bytes(entry->memory_bytes).text);
        sr_table_number(table, entry->parameters, sr_format_count(entry->parameters).text);
    }
    SR_TRY(sr_page_table(page, table));
    if (apart)
        sr_page_paragraph(page,
                          "* Not side by side with the baseline: on another machine, with another "
                          "number of threads, or next to more or fewer other runs. These speeds "
                          "cannot be compared with the baseline\u2019s.");
    return SRNN_OK;
}

srnn_status sr_cell_costs(sr_page *page, const sr_cell_record *cell, const char *stem) {
    fputs("<h3>Cost against quality</h3>\n", page->body);
    SR_TRY(put_memory(page, cell, stem));
    SR_TRY(put_flops(page, cell, stem));
    return put_table(page, cell, stem);
}
