/* lengths.c: accuracy over the length of the sequence. */
#include "base/memory.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cells that measure accuracy and differ in their length alone: one size, the same learning rate of
 * their tasks, each length once. */
typedef struct family {
    const sr_cell_record **cells; /* (count), by length */
    size_t count;
} family;

static const sr_entry *entry_of(const sr_cell_record *cell, const sr_variant_record *variant) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].variant == variant)
            return &cell->entries[i];
    return NULL;
}

static bool belongs(const sr_records *records, const family *f, const sr_cell_record *cell) {
    bool others;
    if (!cell->accuracy || !isfinite(cell->length))
        return false;
    for (size_t i = 0; i < f->count; i++)
        if (f->cells[i]->length == cell->length)
            return false;
    return f->count == 0 ||
           (strcmp(f->cells[0]->size, cell->size) == 0 &&
            sr_cell_rate(records, f->cells[0], &others) == sr_cell_rate(records, cell, &others));
}

static int by_length(const void *a, const void *b) {
    const double left = (*(const sr_cell_record *const *)a)->length;
    const double right = (*(const sr_cell_record *const *)b)->length;
    return (left > right) - (left < right);
}

/* Takes a family out of the cells that are not `taken` yet. */
static void take_family(family *f, const sr_records *records, bool *taken) {
    f->count = 0;
    for (size_t i = 0; i < records->cell_count; i++)
        if (!taken[i] && belongs(records, f, &records->cells[i])) {
            f->cells[f->count++] = &records->cells[i];
            taken[i] = true;
        }
    qsort(f->cells, f->count, sizeof *f->cells, by_length);
}

static void add_variant(sr_chart *chart, const family *f, const sr_variant_record *variant) {
    sr_chart_series(chart, variant->name, variant->style);
    for (size_t i = 0; i < f->count; i++) {
        const sr_entry *entry = entry_of(f->cells[i], variant);
        if (!entry)
            continue;
        const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
        sr_chart_point(chart, f->cells[i]->length, entry->mean, entry->mean - spread,
                       entry->mean + spread);
    }
}

static srnn_status put_family(sr_page *page, const sr_records *records, const family *f,
                              size_t number) {
    char name[48], title[160], rate[48] = "";
    bool others;
    sr_chart *chart;
    (void)sr_cell_rate(records, f->cells[0], &others);
    if (others)
        snprintf(rate, sizeof rate, ", learning rate %g", f->cells[0]->learning_rate);
    snprintf(name, sizeof name, number ? "lengths-%zu" : "lengths", number + 1);
    snprintf(title, sizeof title, "Accuracy against the length of the sequence%s%.60s%s",
             *f->cells[0]->size ? ", " : "", f->cells[0]->size, rate);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "tokens", "validation accuracy");
    sr_chart_describe(chart,
                      "One line per variant: means over seeds, bands of one standard deviation "
                      "to each side. From \u201c%s\u201d to \u201c%s\u201d.",
                      f->cells[0]->title, f->cells[f->count - 1]->title);
    for (size_t i = 0; i < records->variant_count; i++)
        add_variant(chart, f, &records->variants[i]);
    return sr_page_chart(page, chart);
}

static srnn_status put_families(sr_page *page, const sr_records *records, family *f, bool *taken) {
    size_t number = 0;
    for (take_family(f, records, taken); f->count; take_family(f, records, taken)) {
        if (f->count < 2)
            continue;
        if (number == 0)
            sr_page_section(page, "lengths", "Accuracy over length");
        SR_TRY(put_family(page, records, f, number++));
    }
    return SRNN_OK;
}

srnn_status sr_section_lengths(sr_page *page, const sr_records *records) {
    void *memory;
    family f = {0};
    SR_TRY(sr_alloc(&memory, records->cell_count, sizeof *f.cells));
    f.cells = memory;
    srnn_status status = sr_alloc_zero(&memory, records->cell_count, sizeof(bool));
    if (status == SRNN_OK) {
        status = put_families(page, records, &f, memory);
        free(memory);
    }
    free(f.cells);
    return status;
}
