/* lengths.c: accuracy over the length of the sequence. */
#include "report/sections.h"

#include <math.h>

static const sr_entry *entry_of(const sr_cell_record *cell, const sr_variant_record *variant) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].variant == variant)
            return &cell->entries[i];
    return NULL;
}

/* The next length above `length` among the cells that measure accuracy; NAN: none. */
static double next_length(const sr_records *records, double length) {
    double next = NAN;
    for (size_t i = 0; i < records->cell_count; i++)
        if (records->cells[i].accuracy && records->cells[i].length > length)
            next = fmin(next, records->cells[i].length); /* fmin passes over NAN */
    return next;
}

static void add_variant(sr_chart *chart, const sr_records *records,
                        const sr_variant_record *variant) {
    sr_chart_series(chart, variant->name, variant->style);
    for (double length = next_length(records, 0); isfinite(length);
         length = next_length(records, length))
        for (size_t i = 0; i < records->cell_count; i++) {
            const sr_entry *entry = entry_of(&records->cells[i], variant);
            if (records->cells[i].accuracy && records->cells[i].length == length && entry) {
                const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
                sr_chart_point(chart, length, entry->mean, entry->mean - spread,
                               entry->mean + spread);
            }
        }
}

srnn_status sr_section_lengths(sr_page *page, const sr_records *records) {
    const double first = next_length(records, 0);
    if (!isfinite(first) || !isfinite(next_length(records, first)))
        return SRNN_OK;
    sr_chart *chart;
    sr_page_section(page, "lengths", "Accuracy over length");
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, "lengths",
                           "Accuracy against the length of the sequence"));
    sr_chart_axes(chart, "tokens", "validation accuracy");
    sr_chart_describe(chart,
                      "One line a variant: means over seeds, bands of one standard deviation "
                      "to each side.");
    for (size_t i = 0; i < records->variant_count; i++)
        add_variant(chart, records, &records->variants[i]);
    return sr_page_chart(page, chart);
}
