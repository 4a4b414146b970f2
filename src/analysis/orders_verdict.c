/* orders_verdict.c: the cost in words. */
#include "analysis/orders_verdict.h"

#include "base/status.h"
#include "base/units.h"
#include "files/json.h"
#include "files/memory_stream.h"
#include "model/config/layers.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_BYTES = 512 };

static double number_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : INFINITY;
}

static int whole_of(const json_t *object, const char *name) {
    return (int)json_integer_value(json_object_get(object, name));
}

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

static bool same_cut(const json_t *one, const json_t *other) {
    return json_equal(json_object_get(one, "order"), json_object_get(other, "order")) &&
           strcmp(text_of(one, "centre"), text_of(other, "centre")) == 0;
}

/* Prints the layers from *index on that are truncated alike: "layers 3,5-7 ...", without those of a
 * hybrid that are not truncated. Moves *index past them. */
static void print_layers(FILE *out, const json_t *rows, size_t *index, const json_t *record,
                         const sr_model_config *c) {
    const json_t *first = json_array_get(rows, *index);
    bool same[SR_LAYERS_MAX] = {false};
    char layers[LAYERS_BYTES];
    int count = 0;
    for (; *index < json_array_size(rows) && same_cut(first, json_array_get(rows, *index));
         (*index)++, count++)
        same[whole_of(json_array_get(rows, *index), "layer")] = true;
    const bool one = count == 1;
    sr_layers_print(layers, sizeof layers, same, c->L);
    fprintf(out, "layer%s %s", one ? "" : "s", layers);
    if (!json_is_integer(json_object_get(first, "order"))) {
        fprintf(out, " need%s more than order %d, the highest tried", one ? "s" : "",
                whole_of(record, "most_order"));
        return;
    }
    char words[SR_BYTES_WORDS];
    fprintf(out,
            " could run at order %d about %s with %d-wide heads: %s%s, smaller than a cache beyond "
            "%.4g tokens",
            whole_of(first, "order"), text_of(first, "centre"), c->D,
            sr_bytes_words(words, number_of(first, "state_bytes")), one ? "" : " each",
            number_of(first, "memory_break_even_tokens"));
}

static double tolerance_at(const json_t *record, int index) {
    return json_number_value(json_array_get(json_object_get(record, "tolerances"), (size_t)index));
}

static void write_cost(FILE *out, const json_t *cost, const json_t *record,
                       const sr_model_config *c) {
    const json_t *rows = json_object_get(cost, "layers");
    const json_t *together = json_object_get(cost, "together");
    const bool alone = strcmp(text_of(cost, "criterion"), "logits") == 0;
    fprintf(out, "To keep the final logits within %g, %s: ",
            tolerance_at(record, whole_of(cost, "tolerance")),
            alone ? "one layer truncated at a time about zero"
                  : "all layers at one order about the best centre of a finite state");
    for (size_t i = 0; i < json_array_size(rows);) {
        print_layers(out, rows, &i, record, c);
        fputs(i < json_array_size(rows) ? "; " : ".", out);
    }
    if (json_is_object(together))
        fprintf(out,
                " Run so all together, the logits are off by %.2g and the loss is %.4f (%.4f).",
                number_of(together, "logits_error"), number_of(together, "loss"),
                number_of(json_object_get(record, "data"), "trial_loss"));
    fputc('\n', out);
}

/* The smallest state with which a run of the whole model kept the logits within the tolerance;
 * NULL: none. */
static const json_t *best_of(const json_t *record, int tolerance) {
    size_t i;
    const json_t *cost, *best = NULL;
    json_array_foreach(json_object_get(record, "costs"), i, cost) {
        const json_t *total = json_object_get(cost, "total");
        const double error = number_of(json_object_get(cost, "together"), "logits_error");
        if (whole_of(cost, "tolerance") != tolerance || !(error <= tolerance_at(record, tolerance)))
            continue;
        if (!best || number_of(total, "state_bytes") < number_of(best, "state_bytes"))
            best = total;
    }
    return best;
}

static void say_why_not(FILE *out, const json_t *record, const sr_model_config *c) {
    const bool centred =
        json_array_size(json_object_get(json_object_get(record, "all_layers"), "centred")) > 0;
    bool clamped = false;
    for (int layer = 0; layer < c->L; layer++)
        clamped = clamped || c->attention[layer].clamp > 0;
    fprintf(out, "No: no order up to %d, the highest tried, keeps them so about %s.",
            whole_of(record, "most_order"),
            centred ? "any centre of a finite state"
                    : "zero, the only centre of layers whose rows may not be shifted");
    if (clamped)
        fputs(" (Where a clamp acts no order is enough: it is not a power series.)", out);
    fputc('\n', out);
}

static void answer(FILE *out, const json_t *record, int tolerance, const sr_model_config *c) {
    const json_t *total = best_of(record, tolerance);
    const double tokens = number_of(total, "memory_break_even_tokens");
    char words[SR_BYTES_WORDS];
    fprintf(out, "Could this model run with a finite state, its logits within %g? ",
            tolerance_at(record, tolerance));
    if (!total) {
        say_why_not(out, record, c);
        return;
    }
    sr_bytes_words(words, number_of(total, "state_bytes"));
    if (tokens > c->positions)
        fprintf(out,
                "Not to advantage: the smallest state that was run and kept them so, %s, is "
                "smaller than the cache only beyond %.4g tokens, and the model reads at most %d.\n",
                words, tokens, c->positions);
    else
        fprintf(out,
                "Yes: with a state of %s, run and found to keep them so, smaller than the cache "
                "beyond %.0f of its %d tokens.\n",
                words, tokens, c->positions);
}

srnn_status sr_orders_verdict(json_t *record, const sr_model_config *c) {
    size_t i, length = 0;
    const json_t *cost;
    char *verdict = NULL;
    FILE *out = sr_memory_stream(&verdict, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the verdict");
    for (int tolerance = 0; tolerance < SR_TOLERANCES; tolerance++) {
        answer(out, record, tolerance, c);
        json_array_foreach(json_object_get(record, "costs"), i, cost) {
            if (whole_of(cost, "tolerance") == tolerance &&
                strncmp(text_of(cost, "criterion"), "logits", 6) == 0)
                write_cost(out, cost, record, c);
        }
    }
    const bool whole = fclose(out) == 0;
    sr_json_set(record, "verdict", whole ? json_string(verdict) : NULL);
    free(verdict);
    return SRNN_OK;
}
