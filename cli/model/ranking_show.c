/* ranking_show.c: the ranking of layers as tables. */
#include "cli/model/ranking_show.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct measure {
    const char *name, *title;
} measure;

static const measure measures[] = {{"entropy", "entropy"},         {"mean_distance", "distance"},
                                   {"last_tokens", "last tokens"}, {"first_token", "first token"},
                                   {"order_2_error", "order 2"},   {"order", "order"},
                                   {"order_2_rise", "loss at 2"},  {"loss_order", "loss order"}};
enum { MEASURES = sizeof measures / sizeof *measures };

/* A number of an object, "-" where it is null. */
static void show_number(const json_t *object, const char *name, int width, const char *format) {
    char text[48] = "-";
    const json_t *value = json_object_get(object, name);
    if (json_is_number(value))
        snprintf(text, sizeof text, format, json_number_value(value));
    printf("  %*s", width, text);
}

static void show_layer(const json_t *layer) {
    const json_t *own = json_object_get(layer, "measures");
    printf("%5d", (int)json_integer_value(json_object_get(layer, "layer")));
    show_number(json_object_get(layer, "copied"), "loss", 8, "%.4f");
    show_number(json_object_get(layer, "copied"), "kl", 8, "%.4f");
    show_number(json_object_get(layer, "aligned"), "loss", 8, "%.4f");
    show_number(json_object_get(layer, "aligned"), "kl", 8, "%.4f");
    for (int i = 0; i < MEASURES; i++)
        show_number(own, measures[i].name, (int)strlen(measures[i].title), "%.3g");
    show_number(layer, "cache_bytes", 9, "%.0f");
    show_number(layer, "state_bytes", 9, "%.0f");
    printf("%s\n", json_is_true(json_object_get(layer, "keep")) ? "  keep" : "");
}

static void show_layers(const json_t *record) {
    printf("%5s  %18s  %18s\n%5s", "", "as copied", "aligned", "layer");
    for (int i = 0; i < 2; i++)
        printf("  %8s  %8s", "loss", "KL");
    for (int i = 0; i < MEASURES; i++)
        printf("  %s", measures[i].title);
    printf("  %9s  %9s\n", "cache", "state");
    size_t index;
    json_t *layer;
    json_array_foreach(json_object_get(record, "layers"), index, layer) show_layer(layer);
}

/* An order; "> 16" where none up to the last one tried suffices. */
static void print_order(char text[16], const json_t *orders, const char *name) {
    const json_t *rises = json_object_get(orders, "rises");
    const json_t *last = json_array_get(rises, json_array_size(rises) - 1);
    const json_t *value = json_object_get(orders, name);
    const bool found = json_is_integer(value);
    const json_t *order = found ? value : json_object_get(last, "order");
    snprintf(text, 16, "%s%d", found ? "" : "> ", (int)json_integer_value(order));
}

/* One row has no interval. */
static void show_layer_order(size_t layer, const json_t *orders, bool one_row) {
    char order[16], low[16], high[16], interval[40] = "-";
    size_t index;
    json_t *rise;
    print_order(order, orders, "order");
    print_order(low, orders, "low");
    print_order(high, orders, "high");
    if (!one_row)
        snprintf(interval, sizeof interval, "[%s, %s]", low, high);
    printf("%5zu  %5s  %-14s", layer, order, interval);
    json_array_foreach(json_object_get(orders, "rises"), index, rise) {
        if (json_integer_value(json_object_get(rise, "order")) != 2)
            continue;
        show_number(rise, "mean", 8, "%+.4f");
        show_number(rise, "low", 8, "%+.4f");
        show_number(rise, "high", 8, "%+.4f");
    }
    printf("  %s\n", json_string_value(json_object_get(orders, "centre")));
}

static void show_orders(const json_t *record) {
    size_t index;
    json_t *layer;
    printf("\nOrder of exp from which on the teacher loses less than %.3g nats with this layer "
           "alone cut, with\nits 95 %% interval over %d rows; nats lost at order 2, and their "
           "interval; the centre of the series\n%5s  %5s  %-14s  %8s  %18s  %s\n",
           json_number_value(json_object_get(record, "tolerable")),
           (int)json_integer_value(json_object_get(record, "order_rows")), "layer", "order",
           "interval", "order 2", "interval", "centre");
    json_array_foreach(json_object_get(record, "layers"), index, layer) {
        const json_t *orders = json_object_get(layer, "orders");
        if (json_is_object(orders))
            show_layer_order(index, orders,
                             json_integer_value(json_object_get(record, "order_rows")) < 2);
    }
}

static void show_correlation(const json_t *all, const char *name, const char *stage) {
    const json_t *one = json_object_get(json_object_get(all, name), stage);
    show_number(one, "rho", 6, "%+.2f");
    printf(" [");
    show_number(one, "low", 5, "%+.2f");
    printf(",");
    show_number(one, "high", 5, "%+.2f");
    printf("]");
}

static void show_correlations(const json_t *record) {
    const json_t *all = json_object_get(record, "correlations");
    printf("\nSpearman's rank correlation with the KL of the replaced layer, and its 95 %% "
           "interval\n%-14s  %24s  %24s\n",
           "measure", "as copied", "aligned");
    for (int i = 0; i <= MEASURES; i++) {
        const char *name = i < MEASURES ? measures[i].name : "number";
        printf("%-14s", i < MEASURES ? measures[i].title : "layer number");
        show_correlation(all, name, "copied");
        show_correlation(all, name, "aligned");
        putchar('\n');
    }
}

static void show_budget(const json_t *record) {
    const char *between = " --keep ";
    size_t index;
    json_t *layer;
    if (!json_is_number(json_object_get(record, "budget_bytes")))
        return;
    printf("\n%.0f bytes with a budget of %.0f:",
           json_number_value(json_object_get(record, "bytes")),
           json_number_value(json_object_get(record, "budget_bytes")));
    json_array_foreach(json_object_get(record, "layers"), index, layer) {
        if (!json_is_true(json_object_get(layer, "keep")))
            continue;
        printf("%s%zu", between, index);
        between = ",";
    }
    printf("%s\n", *between == ' ' ? " no layer is kept" : "");
}

void ranking_show(const json_t *record) {
    printf("loss of the teacher %.4f on %lld targets; with each layer alone replaced:\n\n",
           json_number_value(json_object_get(record, "loss")),
           (long long)json_integer_value(json_object_get(record, "targets")));
    show_layers(record);
    show_orders(record);
    show_correlations(record);
    show_budget(record);
}
