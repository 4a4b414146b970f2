/* cell_orders.c: quality over the order of the Taylor series. */
#include "base/memory.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 256 };

/* The order of a series that ends; linear attention is order 1. -1: it does not end, is not known, or
 * stands in the layer of another system, which differs in more than its order. */
static int order_of(const sr_entry *entry) {
    const srnn_attention *a = &entry->variant->descriptor;
    if (!entry->variant->known || a->layer != SRNN_LAYER_PLAIN)
        return -1;
    return a->score == SRNN_SCORE_TAYLOR ? a->order : a->score == SRNN_SCORE_LINEAR ? 1 : -1;
}

/* True if the two variants differ in nothing but their order. */
static bool same_but_order(const sr_entry *a, const sr_entry *b) {
    char texts[2][TEXT];
    const sr_entry *const both[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        srnn_attention alike = both[i]->variant->descriptor;
        if (alike.score == SRNN_SCORE_TAYLOR)
            alike.order = 1;
        srnn_attention_print(texts[i], TEXT, &alike);
    }
    return strcmp(texts[0], texts[1]) == 0;
}

/* The orders of a cell while they are put into series. */
typedef struct picture {
    const sr_cell_record *cell;
    bool *placed; /* (entries) */
    double first, last;
    size_t points;
} picture;

/* The entry of the same series with the next order above; NULL: none that is not yet placed. */
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

/* An entry that is not yet placed, of the least order; NULL: none. */
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
        p->first = fmin(p->first, order);
        p->last = fmax(p->last, order);
        p->points += isfinite(entry->mean) ? 1 : 0;
    }
}

/* Those without a number cannot be drawn, and are named. */
static void describe(sr_chart *chart, const sr_cell_record *cell) {
    char absent[TEXT] = "";
    for (size_t i = 0; i < cell->count; i++)
        if (order_of(&cell->entries[i]) >= 0 && !isfinite(cell->entries[i].mean)) {
            const size_t used = strlen(absent);
            snprintf(absent + used, sizeof absent - used, "%s%.60s",
                     used ? ", " : " Without a number, hence not drawn: ",
                     cell->entries[i].variant->name);
        }
    sr_chart_describe(chart,
                      "Means over seeds; bands are one standard deviation to each side. A line "
                      "joins variants that differ in nothing but the order; linear attention "
                      "stands at order 1. The level line is the baseline, which holds every "
                      "order.%s%s",
                      absent, *absent ? "." : "");
}

static void fill(sr_chart *chart, picture *p) {
    int style = 1;
    for (const sr_entry *first; (first = least_left(p));)
        add_series(chart, p, first, style++);
    if (p->cell->baseline && p->points && isfinite(p->cell->baseline->mean)) {
        sr_chart_series(chart, p->cell->baseline->variant->name, 0);
        sr_chart_point(chart, p->first, p->cell->baseline->mean, NAN, NAN);
        sr_chart_point(chart, p->last, p->cell->baseline->mean, NAN, NAN);
    }
    describe(chart, p->cell);
}

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
    if (p.points < 2) {
        sr_chart_free(chart);
        return SRNN_OK;
    }
    return sr_page_chart(page, chart);
}
