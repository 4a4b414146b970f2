/* lengths.c: accuracy over the length of the sequence, and over the number of pairs to recall. */
#include "base/memory.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The quantity in which the cells of a family differ. */
typedef enum dimension { LENGTH, PAIRS, DIMENSIONS } dimension;

static const struct {
    const char *name, *title, *axis;
} dimensions[DIMENSIONS] = {
    {"lengths", "Accuracy against the length of the sequence", "tokens"},
    {"pairs", "Accuracy against the number of pairs to recall", "pairs"},
};

/* Cells that measure accuracy, of one size, with distinct values of the dimension; of several
 * learning rates the main cell. */
typedef struct family {
    dimension of;
    const sr_cell_record **cells; /* (count), by value */
    size_t count;
    bool *taken; /* (cells of the study): in an earlier family of this dimension */
} family;

static double place_of(const sr_cell_record *cell, dimension of) {
    return of == LENGTH ? cell->length : cell->pairs;
}

static bool same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

/* "recall:pairs=8" and "recall" are one kind of task; lengths of different kinds are no curve. A
 * mixture is a kind of its own. */
static bool same_kind(const char *a, const char *b) {
    if (strstr(a, " + ") || strstr(b, " + "))
        return strcmp(a, b) == 0;
    const size_t length = strcspn(a, ":");
    return length == strcspn(b, ":") && strncmp(a, b, length) == 0;
}

/* True if a cell belongs to the family of the first, with another value. Lengths are compared at
 * the same number of pairs; `also_same_length`: also pairs at the same length. */
static bool belongs(const family *f, const sr_cell_record *cell, bool also_same_length) {
    const sr_cell_record *first = f->cells[0];
    const dimension other = f->of == LENGTH ? PAIRS : LENGTH;
    if (!cell->accuracy || !cell->leads || !isfinite(place_of(cell, f->of)) ||
        strcmp(first->size, cell->size) != 0 || !same_kind(first->data, cell->data))
        return false;
    for (size_t i = 0; i < f->count; i++)
        if (place_of(f->cells[i], f->of) == place_of(cell, f->of))
            return false;
    return (f->of == PAIRS && !also_same_length) ||
           same(place_of(first, other), place_of(cell, other));
}

static int compare_places(const void *a, const void *b, void *of) {
    const double left = place_of(*(const sr_cell_record *const *)a, *(dimension *)of);
    const double right = place_of(*(const sr_cell_record *const *)b, *(dimension *)of);
    return (left > right) - (left < right);
}

/* The family of cell `first`; pairs at the same length come before those at others. */
static void make_family(family *f, const sr_records *records, size_t first) {
    f->cells[0] = &records->cells[first];
    f->count =
        f->cells[0]->accuracy && f->cells[0]->leads && isfinite(place_of(f->cells[0], f->of));
    for (int pass = 0; f->count && pass < 2; pass++)
        for (size_t i = first + 1; i < records->cell_count; i++)
            if (!f->taken[i] && belongs(f, &records->cells[i], pass == 0))
                f->cells[f->count++] = &records->cells[i];
    qsort_r(f->cells, f->count, sizeof *f->cells, compare_places, &f->of);
}

static void add_variant(sr_chart *chart, const family *f, const sr_variant_record *variant) {
    size_t points = 0;
    for (size_t i = 0; i < f->count; i++)
        points += sr_cell_entry(f->cells[i], variant) != NULL;
    if (points < 2)
        return;
    sr_chart_series(chart, variant->name, variant->style);
    for (size_t i = 0; i < f->count; i++) {
        const sr_entry *entry = sr_cell_entry(f->cells[i], variant);
        if (!entry)
            continue;
        const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
        sr_chart_point(chart, place_of(f->cells[i], f->of), entry->mean, entry->mean - spread,
                       entry->mean + spread);
    }
}

static srnn_status put_family(sr_page *page, const sr_records *records, const family *f,
                              size_t number) {
    char name[48], title[160], ending[16] = "";
    sr_chart *chart;
    if (number)
        snprintf(ending, sizeof ending, "-%zu", number + 1);
    snprintf(name, sizeof name, "%s%s", dimensions[f->of].name, ending);
    snprintf(title, sizeof title, "%s%s%.60s", dimensions[f->of].title,
             *f->cells[0]->size ? ", " : "", f->cells[0]->size);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, dimensions[f->of].axis, "validation accuracy");
    sr_chart_describe(chart,
                      "One line per variant: means over seeds, bands of one standard deviation "
                      "to each side. From \u201c%s\u201d to \u201c%s\u201d.",
                      f->cells[0]->title, f->cells[f->count - 1]->title);
    for (size_t i = 0; i < records->variant_count; i++)
        add_variant(chart, f, &records->variants[i]);
    return sr_page_chart(page, chart);
}

static srnn_status put_families(sr_page *page, const sr_records *records, family *f) {
    size_t sections = 0;
    for (f->of = LENGTH; f->of < DIMENSIONS; f->of++) {
        size_t number = 0;
        memset(f->taken, 0, records->cell_count * sizeof *f->taken);
        for (size_t first = 0; first < records->cell_count; first++) {
            if (f->taken[first])
                continue;
            make_family(f, records, first);
            if (f->count < 2)
                continue;
            for (size_t i = 0; i < f->count; i++)
                f->taken[f->cells[i] - records->cells] = true;
            if (sections++ == 0)
                sr_page_section(page, "lengths", "Accuracy over length and pairs");
            SR_TRY(put_family(page, records, f, number++));
        }
    }
    return SRNN_OK;
}

srnn_status sr_section_lengths(sr_page *page, const sr_records *records) {
    void *cells, *taken = NULL;
    SR_TRY(sr_alloc(&cells, records->cell_count + 1, sizeof(sr_cell_record *)));
    srnn_status status = sr_alloc(&taken, records->cell_count + 1, sizeof(bool));
    if (status == SRNN_OK)
        status = put_families(page, records, &(family){.cells = cells, .taken = taken});
    free(cells);
    free(taken);
    return status;
}
