/* orders_show.c: the record of orders as text. */
#include "cli/model/orders_show.h"

#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double number(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double member(const json_t *object, const char *name) {
    return number(json_object_get(object, name));
}

static int whole(const json_t *object, const char *name) {
    return (int)json_integer_value(json_object_get(object, name));
}

/* A buffer for "64 / >168". */
typedef struct pair_text {
    char text[40];
} pair_text;

static const char *order_text(char text[16], const json_t *order, int most) {
    if (json_is_integer(order))
        snprintf(text, 16, "%d", (int)json_integer_value(order));
    else
        snprintf(text, 16, ">%d", most);
    return text;
}

/* The orders needed for both tolerances; ">32" if none up to 32 is enough, "-" if none was
 * tried. */
static pair_text orders_text(const json_t *both, int most) {
    char first[16], second[16];
    pair_text words = {"-"};
    if (json_is_array(both))
        snprintf(words.text, sizeof words.text, "%s / %4s",
                 order_text(first, json_array_get(both, 0), most),
                 order_text(second, json_array_get(both, 1), most));
    return words;
}

static void show_logits(const json_t *layers) {
    size_t i, h;
    const json_t *layer, *head;
    printf("\nLogits and dominant orders (over all pairs; weighted by attention; of a typical "
           "pair)\n");
    printf("%5s %4s %8s %8s %8s %7s %8s %8s %8s  %4s %8s %7s\n", "layer", "head", "min", "1%",
           "median", "99%", "max", "mean", "sd", "all", "weighted", "typical");
    json_array_foreach(layers, i, layer) {
        json_array_foreach(json_object_get(layer, "heads"), h, head) {
            const json_t *logits = json_object_get(head, "logits");
            const json_t *quantiles = json_object_get(logits, "quantiles");
            const json_t *dominant = json_object_get(head, "dominant");
            printf("%5zu %4zu %8.3f %8.3f %8.3f %7.3f %8.3f %8.3f %8.3f  %4d %8d %7d\n", i, h,
                   member(logits, "min"), number(json_array_get(json_array_get(quantiles, 1), 1)),
                   number(json_array_get(json_array_get(quantiles, 4), 1)),
                   number(json_array_get(json_array_get(quantiles, 7), 1)), member(logits, "max"),
                   member(logits, "mean"), member(logits, "sd"), whole(dominant, "log_mean"),
                   whole(dominant, "log_mean_weighted"), whole(dominant, "mean_log"));
        }
    }
}

static void show_sizes(const json_t *layers, bool reference) {
    enum { SHOWN = 13 };
    static const int orders[SHOWN] = {0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32};
    size_t i;
    const json_t *layer;
    printf("\nSize of the orders by layer: %s\n",
           reference ? "log10 of the reference's mean over T x T pairs, order 1 with its sign"
                     : "log10 of the mean of |x|^n / n!");
    printf("%5s", "layer");
    for (int n = 0; n < SHOWN; n++)
        printf(" %7d", orders[n]);
    printf("  dominant\n");
    json_array_foreach(layers, i, layer) {
        const char *name = reference ? "reference" : "log_mean";
        const json_t *sizes = json_object_get(json_object_get(layer, "sizes"), name);
        if (!sizes)
            continue;
        printf("%5zu", i);
        for (int n = 0; n < SHOWN && (size_t)orders[n] < json_array_size(sizes); n++) {
            const double size = number(json_array_get(sizes, (size_t)orders[n]));
            printf(" %7.2f", reference ? log10(fabs(size)) : size / M_LN10);
        }
        printf("  %d\n", whole(json_object_get(layer, "dominant"), name));
    }
}

static void show_needed_by_all(const char *centre, const json_t *both, int most) {
    printf("  all  %-12s %12s  %12s  %12s\n", centre, "", "", orders_text(both, most).text);
}

static void show_needed(const json_t *record) {
    size_t i, centre;
    const json_t *layer, *name, *run;
    const json_t *tolerances = json_object_get(record, "tolerances");
    const json_t *all = json_object_get(record, "all_layers");
    const int most = whole(record, "most_order");
    printf("\nOrder needed for a relative error of %g / %g (-: a centre that this attention does "
           "not leave free)\n",
           number(json_array_get(tolerances, 0)), number(json_array_get(tolerances, 1)));
    printf("%5s  %-12s %12s  %12s  %12s\n", "layer", "centre", "weights", "outputs",
           "final logits");
    json_array_foreach(json_object_get(record, "layers"), i, layer) {
        const json_t *needed = json_object_get(layer, "needed");
        if (!needed)
            continue;
        json_array_foreach(json_object_get(record, "centres"), centre, name) {
            const json_t *weights = json_array_get(json_object_get(needed, "weights"), centre);
            const json_t *outputs = json_array_get(json_object_get(needed, "outputs"), centre);
            printf("%5zu  %-12s %12s  %12s", i, json_string_value(name),
                   orders_text(weights, most).text, orders_text(outputs, most).text);
            if (centre == 0)
                printf("  %12s", orders_text(json_object_get(needed, "logits"), most).text);
            printf("\n");
        }
    }
    show_needed_by_all("zero", json_object_get(json_object_get(all, "needed"), "logits"), most);
    json_array_foreach(json_object_get(all, "centred"), i, run) {
        show_needed_by_all(json_string_value(json_object_get(run, "centre")),
                           json_object_get(run, "needed"), most);
    }
}

static void show_losses_of(const char *name, const json_t *truncated) {
    const json_t *values = json_object_get(truncated, "loss");
    printf("%-11s", name);
    for (size_t cut = 0; cut < json_array_size(values); cut++)
        if (json_is_number(json_array_get(values, cut)))
            printf(" %8.4f", number(json_array_get(values, cut)));
        else
            printf(" %8s", "-");
    printf("\n");
}

static void show_losses(const json_t *record) {
    size_t i;
    const json_t *layer, *cut, *cuts = json_object_get(record, "cuts");
    printf("\nLoss when truncated, no retraining (untruncated %.4f, %d tokens)\n%-11s",
           member(json_object_get(record, "data"), "trial_loss"),
           whole(json_object_get(record, "data"), "trial_tokens"), "order");
    json_array_foreach(cuts, i, cut) {
        printf(" %8d", (int)json_integer_value(cut));
    }
    printf("\n");
    show_losses_of("all", json_object_get(json_object_get(record, "all_layers"), "truncated"));
    json_array_foreach(json_object_get(json_object_get(record, "all_layers"), "centred"), i,
                       layer) {
        show_losses_of(json_string_value(json_object_get(layer, "centre")),
                       json_object_get(layer, "truncated"));
    }
    json_array_foreach(json_object_get(record, "layers"), i, layer) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        if (json_object_get(layer, "truncated"))
            show_losses_of(name, json_object_get(layer, "truncated"));
    }
}

static void show_texts(const json_t *record) {
    size_t i;
    const json_t *text, *texts = json_object_get(record, "texts");
    if (json_array_size(texts) > 0)
        printf("\nWhat the model says (all layers truncated, most probable token)\n");
    json_array_foreach(texts, i, text) {
        const int order = whole(text, "order");
        const char *said = json_string_value(json_object_get(text, "text"));
        if (order == 0)
            printf("untruncated: ");
        else
            printf("order %2d: ", order);
        printf("%s\n", said ? said : "(bytes that are not text)");
    }
}

static void show_cost(const json_t *row) {
    char state[SR_BYTES_WORDS], cache[SR_BYTES_WORDS];
    printf(" %10s %12s %14.4g %16.4g\n", sr_bytes_words(state, member(row, "state_bytes")),
           sr_bytes_words(cache, member(row, "cache_bytes_per_token")),
           member(row, "memory_break_even_tokens"), member(row, "arithmetic_break_even_tokens"));
}

static void show_one_cost(const json_t *record, const json_t *cost) {
    size_t i;
    const json_t *row, *total = json_object_get(cost, "total");
    const json_t *together = json_object_get(cost, "together");
    const json_t *tolerances = json_object_get(record, "tolerances");
    printf("%s, within %g\n", json_string_value(json_object_get(cost, "title")),
           number(json_array_get(tolerances, (size_t)whole(cost, "tolerance"))));
    json_array_foreach(json_object_get(cost, "layers"), i, row) {
        if (!json_is_integer(json_object_get(row, "order"))) {
            printf("%7d  >%d\n", whole(row, "layer"), whole(record, "most_order"));
            continue;
        }
        printf("%7d %5d %-12s", whole(row, "layer"), whole(row, "order"),
               json_string_value(json_object_get(row, "centre")));
        show_cost(row);
    }
    if (!json_is_object(total))
        return;
    printf("%7s %5s %-12s", "all", "", "");
    show_cost(total);
    printf("        run together: logits off by %.2g, loss %.4f\n",
           member(together, "logits_error"), member(together, "loss"));
}

static void show_costs(const json_t *record) {
    size_t b;
    const json_t *cost;
    printf("\nThe cost: a state of the needed order against a cache of keys and values (float)\n");
    printf("%7s %5s %-12s %10s %12s %14s %16s\n", "layer", "order", "centre", "state",
           "cache/token", "smaller beyond", "less work beyond");
    json_array_foreach(json_object_get(record, "costs"), b, cost) show_one_cost(record, cost);
}

static void show_origin(const json_t *record) {
    const json_t *origin = json_object_get(record, "origin");
    const char *model = json_string_value(json_object_get(origin, "model"));
    const char *data = json_string_value(json_object_get(origin, "data"));
    printf("%s on %s\n", model ? model : "a model", data ? data : "a text");
}

void orders_show(const json_t *record, bool reference) {
    const json_t *model = json_object_get(record, "model"), *data = json_object_get(record, "data");
    const json_t *layers = json_object_get(record, "layers");
    show_origin(record);
    printf("%d layers, %d heads (%d kv) of %d; %d tokens in rows of %d, loss %.4f\n",
           whole(model, "layers"), whole(model, "heads"), whole(model, "kv_heads"),
           whole(model, "head_size"), whole(data, "tokens"), whole(data, "row_length"),
           member(data, "loss"));
    show_logits(layers);
    show_sizes(layers, reference);
    show_needed(record);
    show_losses(record);
    show_texts(record);
    show_costs(record);
    printf("\n%s", json_string_value(json_object_get(record, "verdict")));
}

static double largest_of(const json_t *layer, const char *name) {
    size_t h;
    const json_t *head;
    double largest = -INFINITY;
    json_array_foreach(json_object_get(layer, "heads"), h, head) largest =
        fmax(largest, member(json_object_get(head, "logits"), name));
    return largest;
}

void orders_show_checkpoints(const json_t *record) {
    size_t i, l;
    const json_t *checkpoint, *layer;
    printf("%9s %7s %5s %9s %9s %8s %8s %15s %15s\n", "step", "loss", "layer", "largest sd",
           "largest", "dominant", "weighted", "outputs need", "logits need");
    json_array_foreach(json_object_get(record, "checkpoints"), i, checkpoint) {
        const json_t *orders = json_object_get(checkpoint, "orders");
        const int most = whole(orders, "most_order");
        json_array_foreach(json_object_get(orders, "layers"), l, layer) {
            const json_t *needed = json_object_get(layer, "needed");
            const json_t *outputs = json_array_get(json_object_get(needed, "outputs"), 0);
            const json_t *logits = json_object_get(needed, "logits");
            if (!needed)
                continue;
            printf("%9d %7.4f %5zu %9.3f %9.3f %8d %8d", whole(checkpoint, "step"),
                   member(json_object_get(orders, "data"), "loss"), l, largest_of(layer, "sd"),
                   largest_of(layer, "max"), whole(json_object_get(layer, "dominant"), "log_mean"),
                   whole(json_object_get(layer, "dominant"), "log_mean_weighted"));
            printf("   %12s   %12s\n", orders_text(outputs, most).text,
                   orders_text(logits, most).text);
        }
    }
}
