/* cell_orders.c: quality over the order of the Taylor series. */
#include "base/memory.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 256 };

/* The order of a truncated series; linear attention is order 1. -1: not truncated, unknown, or part
 * of another system's layer, which differs in more than its order. */
static int order_of(const sr_entry *entry) {
    const srnn_attention *a = &entry->variant->descriptor;
    if (!entry->variant->known || a->wiring.layer != SRNN_LAYER_PLAIN)
        return -1;
    return a->score == SRNN_SCORE_TAYLOR ? a->order : a->score == SRNN_SCORE_LINEAR ? 1 : -1;
}

/* True if the two variants differ in nothing but their order. */
static bool same_but_order(const sr_entry *a, const sr_entry *b) {
    if (!sr_variant_same_settings(a->variant, b->variant))
        return false;
    char texts[2][TEXT];
    const sr_entry *const both[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        srnn_attention first_order = both[i]->variant->descriptor;
        if (first_order.score == SRNN_SCORE_TAYLOR)
            first_order.order = 1;
        srnn_attention_print(texts[i], TEXT, &first_order);
    }
    return strcmp(texts[0], texts[1]) == 0;
}

/* The orders of a cell being grouped into series. */
typedef struct picture {
    const sr_cell_record *cell;
    bool *placed;       /* (entries) */
    double first, last; /* lowest and highest order with a result */
    bool joins;         /* some line has two points */
} picture;

/* The unplaced entry of the same series with the next higher order; NULL: none. */
static const sr_entry *next_of(const picture *p, const sr_entry *entry) {
    const sr_entry *next = NULL;
    for (size_t i = 0; i < p->cell->count; i++) {
        const sr_entry *other = &p->cell->entries[i];
        if (!p->placed[i] && order_of(other) > order_of(entry) && same_but_order(entry, other) &&
            (!next || order_of(other) < order_of(next)))
            next = other;
    }
    return next;
}

/* An unplaced entry of the lowest order; NULL: none. */
static const sr_entry *least_left(const picture *p) {
    const sr_entry *least = NULL;
    for (size_t i = 0; i < p->cell->count; i++) {
        const sr_entry *entry = &p->cell->entries[i];
        if (!p->placed[i] && order_of(entry) >= 0 && (!least || order_of(entry) < order_of(least)))
            least = entry;
    }
    return least;
}

/* "order 2 … order 8": the first and the last name of a series. */
static void add_series(sr_chart *chart, picture *p, const sr_entry *first, int style) {
    char name[TEXT];
    const sr_entry *last = first;
    for (const sr_entry *next; (next = next_of(p, last));)
        last = next;
    snprintf(name, sizeof name, "%.100s%s%.100s", first->variant->name,
             last == first ? "" : " \u2026 ", last == first ? "" : last->variant->name);
    sr_chart_series(chart, name, style);
    for (const sr_entry *entry = first; entry; entry = next_of(p, entry)) {
        const double spread = isfinite(entry->deviation) ? entry->deviation : 0;
        const double order = order_of(entry);
        p->placed[entry - p->cell->entries] = true;
        sr_chart_point(chart, order, entry->mean, entry->mean - spread, entry->mean + spread);
        p->joins = p->joins || entry != first;
        if (!isfinite(entry->mean))
            continue;
        p->first = fmin(p->first, order);
        p->last = fmax(p->last, order);
    }
}

/* Lists the entries without a result, which cannot be drawn. */
static void list_absent(char absent[TEXT], const sr_cell_record *cell) {
    *absent = '\0';
    for (size_t i = 0; i < cell->count; i++)
        if (order_of(&cell->entries[i]) >= 0 && !isfinite(cell->entries[i].mean)) {
            const size_t used = strlen(absent);
            snprintf(absent + used, TEXT - used, "%s%.60s",
                     used ? ", " : " Without a number, hence not drawn: ",
                     cell->entries[i].variant->name);
        }
}

static bool has_linear(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (order_of(&cell->entries[i]) == 1 &&
            cell->entries[i].variant->descriptor.score == SRNN_SCORE_LINEAR)
            return true;
    return false;
}

/* Describes the baseline's horizontal line. */
static const char *baseline_words(const sr_cell_record *cell) {
    if (!cell->baseline || !isfinite(cell->baseline->mean))
        return "";
    return cell->baseline->variant->known &&
                   cell->baseline->variant->descriptor.score == SRNN_SCORE_EXP
               ? " The level line is the baseline, which holds every order."
               : " The level line is the baseline.";
}

static bool has_deviation(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (order_of(&cell->entries[i]) >= 0 && isfinite(cell->entries[i].deviation))
            return true;
    return false;
}

static void describe(sr_chart *chart, const picture *p) {
    char absent[TEXT];
    list_absent(absent, p->cell);
    sr_chart_describe(chart, "%s%s%s%s%s%s",
                      has_deviation(p->cell)
                          ? "Means over seeds; bands are one standard deviation to each side."
                          : "Of one seed each.",
                      p->joins ? " A line joins variants that differ in nothing but the order."
                               : "",
                      has_linear(p->cell) ? " Linear attention stands at order 1." : "",
                      baseline_words(p->cell), absent, *absent ? "." : "");
}

static void fill(sr_chart *chart, picture *p) {
    int style = 1;
    for (const sr_entry *first; (first = least_left(p));)
        add_series(chart, p, first, style++);
    if (p->cell->baseline && isfinite(p->first) && isfinite(p->cell->baseline->mean)) {
        sr_chart_series(chart, p->cell->baseline->variant->name, 0);
        sr_chart_point(chart, p->first, p->cell->baseline->mean, NAN, NAN);
        sr_chart_point(chart, p->last, p->cell->baseline->mean, NAN, NAN);
    }
    describe(chart, p);
}

/* Needs at least two orders. */
srnn_status sr_cell_orders(sr_page *page, const sr_cell_record *cell, const char *stem) {
    char name[64];
    void *placed;
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-orders", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name,
                           cell->accuracy ? "Accuracy against the order of the Taylor series"
                                          : "Loss against the order of the Taylor series"));
    sr_chart_axes(chart, "order", cell->accuracy ? "validation accuracy" : "validation loss");
    if (sr_alloc_zero(&placed, cell->count, sizeof(bool)) != SRNN_OK) {
        sr_chart_free(chart);
        return SRNN_ERR_MEMORY;
    }
    picture p = {.cell = cell, .placed = placed, .first = INFINITY, .last = -INFINITY};
    fill(chart, &p);
    free(placed);
    if (!(p.first < p.last)) {
        sr_chart_free(chart);
        return SRNN_OK;
    }
    return sr_page_chart(page, chart);
}
