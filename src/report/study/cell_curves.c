/* cell_curves.c: the curves of a cell over the steps of its runs. */
#include "files/json.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <float.h>
#include <math.h>

/* One of the three curves of a run. */
typedef const sr_curve_bin *(*bins_of)(const sr_curve *curve);

static const sr_curve_bin *loss_of(const sr_curve *curve) {
    return curve->loss;
}

static const sr_curve_bin *validation_of(const sr_curve *curve) {
    return curve->validation;
}

static const sr_curve_bin *accuracy_of(const sr_curve *curve) {
    return curve->accuracy;
}

/* Points of all curves of a page together; a page of this many stays well below 2 MB. */
enum { POINTS_MAX = 16000 };

/* How many bins to join into one point. */
static size_t stride_of(const sr_records *records) {
    size_t points = 0;
    for (size_t i = 0; i < records->cell_count; i++)
        points += records->cells[i].count * (records->cells[i].accuracy ? 3 : 2) * SR_CURVE_BINS;
    const size_t stride = 1 + points / POINTS_MAX;
    return stride < SR_CURVE_BINS ? stride : SR_CURVE_BINS;
}

static sr_curve_bin join(const sr_curve_bin *bins, size_t from, size_t stride) {
    sr_curve_bin joined = {0};
    for (size_t i = from; i < from + stride && i < SR_CURVE_BINS; i++) {
        joined.values += bins[i].values;
        joined.steps += bins[i].steps;
        joined.count += bins[i].count;
    }
    return joined;
}

/* What a step is in tokens, and in seconds at the variant's speed. */
static void set_scale(sr_chart *chart, const sr_records *records, const sr_cell_record *cell,
                      const sr_entry *entry) {
    for (size_t r = 0; r < records->run_count; r++)
        if (sr_run_in_cell(&records->runs[r], cell)) {
            const json_t *plan = records->runs[r].plan;
            const double tokens =
                sr_json_number_of(plan, "tokens") / sr_json_number_of(plan, "steps");
            sr_chart_scale(chart, tokens, tokens / entry->tokens_per_second);
            return;
        }
}

/* A variant's mean over seeds, with the least and the most of them. Only bins that every seed has
 * count, so that a seed that ended early makes no jump. */
static void add_variant(sr_chart *chart, const sr_records *records, const sr_cell_record *cell,
                        const sr_entry *entry, bins_of bins) {
    const sr_variant_record *variant = entry->variant;
    sr_chart_series(chart, variant->name, variant->style);
    set_scale(chart, records, cell, entry);
    const size_t stride = stride_of(records);
    for (size_t i = 0; i < SR_CURVE_BINS; i += stride) {
        double sum = 0, step = NAN, least = DBL_MAX, most = -DBL_MAX;
        size_t count = 0;
        for (size_t r = 0; r < records->run_count; r++) {
            const sr_run_record *run = &records->runs[r];
            if (!sr_run_in_cell(run, cell) || run->variant != variant || run->curve.last_step == 0)
                continue;
            const sr_curve_bin bin = join(bins(&run->curve), i, stride);
            const double value = sr_curve_bin_value(&bin);
            sum += value;
            step = sr_curve_bin_step(&bin);
            least = fmin(least, value);
            most = fmax(most, value);
            count++;
        }
        if (count)
            sr_chart_point(chart, step, sum / (double)count, least, most);
    }
}

static srnn_status put_curves(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                              const char *stem, const char *what, bins_of bins) {
    char name[80], title[120];
    sr_chart *chart;
    snprintf(title, sizeof title, "%s by step", what);
    sr_format_stem(name, sizeof name, 0, what);
    char full[160];
    snprintf(full, sizeof full, "%s%s", stem, name + 1);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, full, title));
    sr_chart_axes(chart, "step", what);
    sr_chart_describe(
        chart, "One line per variant: the mean over its seeds, with a band from the "
               "least to the most of them, named where it ends. The table above holds the numbers "
               "there. Seconds are those of the median speed.");
    for (size_t i = 0; i < cell->count; i++)
        add_variant(chart, records, cell, &cell->entries[i], bins);
    return sr_page_chart(page, chart);
}

srnn_status sr_cell_curves(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem) {
    if (cell->accuracy)
        SR_TRY(put_curves(page, records, cell, stem, "Validation accuracy", accuracy_of));
    SR_TRY(put_curves(page, records, cell, stem, "Validation loss", validation_of));
    return put_curves(page, records, cell, stem, "Training loss", loss_of);
}
