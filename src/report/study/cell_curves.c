/* cell_curves.c: the curves of a cell over the steps of its runs. */
#include "files/json.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* One of the curves of a run. */
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

static const sr_curve_bin *gradient_of(const sr_curve *curve) {
    return curve->gradient;
}

/* Points of all curves of a page together; a page of this many stays well below 2 MB. */
enum { POINTS_MAX = 16000 };

/* The number of bins joined into one point. */
static size_t stride_of(const sr_records *records) {
    size_t points = 0;
    for (size_t i = 0; i < records->cell_count; i++)
        points += records->cells[i].count * (records->cells[i].accuracy ? 4 : 3) * SR_CURVE_BINS;
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

/* Sets a step's tokens, seconds at the variant's speed, and FLOPs. */
static void set_scale(sr_chart *chart, const sr_entry *entry) {
    if (entry->member_count == 0)
        return;
    const json_t *plan = entry->members[0]->plan;
    const double steps = sr_json_number_of(plan, "steps");
    const double tokens = sr_json_number_of(plan, "tokens") / steps;
    sr_chart_scale(chart, tokens, tokens / entry->tokens_per_second,
                   sr_json_number_of(plan, "flops") / steps);
}

/* A variant's mean over seeds, with minimum and maximum. Only bins that every seed has are used, so
 * that a seed that ended early causes no jump. */
static void add_variant(sr_chart *chart, const sr_entry *entry, size_t stride, bins_of bins) {
    sr_chart_series(chart, entry->variant->name, entry->variant->style);
    set_scale(chart, entry);
    for (size_t i = 0; i < SR_CURVE_BINS; i += stride) {
        double sum = 0, step = NAN, least = DBL_MAX, most = -DBL_MAX;
        size_t count = 0;
        for (size_t r = 0; r < entry->member_count; r++) {
            const sr_curve *curve = &entry->members[r]->curve;
            if (curve->last_step == 0)
                continue;
            const sr_curve_bin bin = join(bins(curve), i, stride);
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

/* True if a run of the cell has not ended: its curve is shorter. */
static bool is_cut(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        for (size_t r = 0; r < cell->entries[i].member_count; r++)
            if (strcmp(cell->entries[i].members[r]->status, "finished") != 0)
                return true;
    return false;
}

static bool has_seeds(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].member_count > 1)
            return true;
    return false;
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
    sr_chart_describe(chart,
                      "One line per variant%s, named where it ends. %s Seconds are those of "
                      "the median speed.",
                      has_seeds(cell) ? ": the mean over its seeds, with a band from the least to "
                                        "the most of them"
                                      : "",
                      is_cut(cell) ? "A line ends where the first of its runs did; the table above "
                                     "is of the runs that finished."
                                   : "The table above holds the numbers there.");
    const size_t stride = stride_of(records);
    for (size_t i = 0; i < cell->count; i++)
        add_variant(chart, &cell->entries[i], stride, bins);
    return sr_page_chart(page, chart);
}

srnn_status sr_cell_curves(sr_page *page, const sr_records *records, const sr_cell_record *cell,
                           const char *stem) {
    if (cell->accuracy)
        SR_TRY(put_curves(page, records, cell, stem, "Validation accuracy", accuracy_of));
    SR_TRY(put_curves(page, records, cell, stem, "Validation loss", validation_of));
    SR_TRY(put_curves(page, records, cell, stem, "Training loss", loss_of));
    return put_curves(page, records, cell, stem, "Gradient norm", gradient_of);
}
