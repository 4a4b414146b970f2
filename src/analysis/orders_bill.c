/* orders_bill.c: the bill of a whole model in the record of orders, with a verdict in words. */
#include "analysis/orders_bill.h"

#include "analysis/bill.h"
#include "analysis/orders.h"
#include "analysis/orders_record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What must stay within the tolerance. */
typedef enum criterion {
    LOGITS,          /* the final logits, this layer alone truncated */
    LOGITS_CENTRED,  /* the final logits, all layers truncated about the best known centre */
    OUTPUTS,         /* the outputs of the layer's heads */
    OUTPUTS_CENTRED, /* the same about the best centre that a finite state knows */
    CRITERIA,
} criterion;

static const char *const criterion_names[CRITERIA] = {"logits", "logits_centred", "outputs",
                                                      "outputs_centred"};

/* The order one layer needs, and the centre; -1 if it needs more than was tried. */
typedef struct choice {
    int order, centre;
} choice;

static int order_at(const json_t *needed, int tolerance) {
    const json_t *order = json_array_get(needed, (size_t)tolerance);
    return json_is_integer(order) ? (int)json_integer_value(order) : -1;
}

/* The centre about which all layers together need the least order, of those that a finite state
 * knows. */
static choice choose_for_all(const json_t *record, int tolerance) {
    const json_t *centred = json_object_get(json_object_get(record, "all_layers"), "centred");
    choice best = {-1, SR_CENTRE_NONE};
    for (int centre = SR_CENTRE_HEAD_MEAN; centre < SR_CENTRE_ROW_MIDDLE; centre++) {
        const json_t *run = json_array_get(centred, (size_t)centre - SR_CENTRE_HEAD_MEAN);
        const int order = order_at(json_object_get(run, "needed"), tolerance);
        if (order >= 0 && (best.order < 0 || order < best.order))
            best = (choice){order, centre};
    }
    return best;
}

static choice choose(const json_t *record, const json_t *layer, criterion what, int tolerance) {
    const json_t *needed = json_object_get(layer, "needed");
    const json_t *outputs = json_object_get(needed, "outputs");
    if (what == LOGITS_CENTRED)
        return choose_for_all(record, tolerance);
    if (what == LOGITS)
        return (choice){order_at(json_object_get(needed, "logits"), tolerance), SR_CENTRE_NONE};
    choice best = {order_at(json_array_get(outputs, SR_CENTRE_NONE), tolerance), SR_CENTRE_NONE};
    for (int centre = 1; what == OUTPUTS_CENTRED && centre < SR_CENTRE_ROW_MIDDLE; centre++) {
        const int order = order_at(json_array_get(outputs, (size_t)centre), tolerance);
        if (order >= 0 && (best.order < 0 || order < best.order))
            best = (choice){order, centre};
    }
    return best;
}

static json_t *row_of(const sr_bill *bill, int layer, choice chosen) {
    return json_pack("{si, si, ss, so, so, so, so, so, so}", "layer", layer, "order", chosen.order,
                     "centre", sr_centre_name((sr_centre)chosen.centre), "state_bytes",
                     sr_record_number(bill->state_bytes), "cache_bytes_per_token",
                     sr_record_number(bill->cache_token_bytes), "memory_break_even_tokens",
                     sr_record_number(bill->memory_tokens), "state_multiply_adds",
                     sr_record_number(bill->state_products), "cache_multiply_adds_per_token",
                     sr_record_number(bill->cache_products), "arithmetic_break_even_tokens",
                     sr_record_number(bill->product_tokens));
}

/* One criterion at one tolerance: every layer, and all together. */
static json_t *bill_of(const json_t *record, const sr_model_config *c, criterion what,
                       int tolerance) {
    json_t *rows = json_array();
    sr_bill total = {0};
    bool known = true;
    for (int layer = 0; layer < c->L; layer++) {
        const json_t *own = json_array_get(json_object_get(record, "layers"), (size_t)layer);
        if (!json_is_true(json_object_get(own, "analysed")))
            continue;
        const choice chosen = choose(record, own, what, tolerance);
        if (chosen.order < 0) {
            json_array_append_new(rows, json_pack("{si, sn}", "layer", layer, "order"));
            known = false;
            continue;
        }
        const sr_bill bill = sr_bill_of(c, layer, chosen.order);
        json_array_append_new(rows, row_of(&bill, layer, chosen));
        total.state_bytes += bill.state_bytes;
        total.cache_token_bytes += bill.cache_token_bytes;
        total.state_products += bill.state_products;
        total.cache_products += bill.cache_products;
    }
    json_t *all = json_null();
    if (known)
        all = json_pack("{so, so, so, so, so, so}", "state_bytes",
                        sr_record_number(total.state_bytes), "cache_bytes_per_token",
                        sr_record_number(total.cache_token_bytes), "memory_break_even_tokens",
                        sr_record_number(ceil(total.state_bytes / total.cache_token_bytes)),
                        "state_multiply_adds", sr_record_number(total.state_products),
                        "cache_multiply_adds_per_token", sr_record_number(total.cache_products),
                        "arithmetic_break_even_tokens",
                        sr_record_number(ceil(total.state_products / total.cache_products)));
    return json_pack("{ss, si, so, so}", "criterion", criterion_names[what], "tolerance", tolerance,
                     "layers", rows, "total", all);
}

/* 202 MB; 10 KB. */
static void print_bytes(char *text, size_t size, double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, size, "%.3g %s", bytes, units[unit]);
}

/* The context beyond which the state is smaller; INFINITY: none. */
static double tokens_of(const json_t *bill) {
    const json_t *tokens = json_object_get(bill, "memory_break_even_tokens");
    return json_is_number(tokens) ? json_number_value(tokens) : INFINITY;
}

/* The layers from *index on that need the same order: "layers 3-7 ...". Moves *index past them. */
static void say_layers(FILE *out, const json_t *rows, size_t *index, const sr_model_config *c) {
    const json_t *first = json_array_get(rows, *index), *last = first;
    const json_t *order = json_object_get(first, "order");
    for (; *index < json_array_size(rows); (*index)++) {
        const json_t *row = json_array_get(rows, *index);
        if (!json_equal(json_object_get(row, "order"), order))
            break;
        last = row;
    }
    const int from = (int)json_integer_value(json_object_get(first, "layer"));
    const int to = (int)json_integer_value(json_object_get(last, "layer"));
    if (from == to)
        fprintf(out, "layer %d ", from);
    else
        fprintf(out, "layers %d-%d ", from, to);
    if (!json_is_integer(order)) {
        fprintf(out, "%s more than the orders tried", from == to ? "needs" : "need");
        return;
    }
    char bytes[32];
    const json_t *state = json_object_get(first, "state_bytes");
    print_bytes(bytes, sizeof bytes, json_is_number(state) ? json_number_value(state) : INFINITY);
    fprintf(out,
            "could run at order %d with %d-wide heads: %s%s, smaller than a cache beyond %.4g "
            "tokens",
            (int)json_integer_value(order), c->D, bytes, from == to ? "" : " each",
            tokens_of(first));
}

/* The judgement about one bill. */
static void say(FILE *out, const json_t *bill, const json_t *tolerances, const sr_model_config *c) {
    const json_t *rows = json_object_get(bill, "layers"), *total = json_object_get(bill, "total");
    const size_t tolerance = (size_t)json_integer_value(json_object_get(bill, "tolerance"));
    const char *name = json_string_value(json_object_get(bill, "criterion"));
    const bool centred = strcmp(name, criterion_names[LOGITS_CENTRED]) == 0;
    fprintf(out, "To keep the final logits within %g, %s: ",
            json_number_value(json_array_get(tolerances, tolerance)),
            centred ? "all layers truncated about the best centre that a state knows"
                    : "one layer truncated at a time about zero");
    for (size_t i = 0; i < json_array_size(rows);) {
        say_layers(out, rows, &i, c);
        fputs(i < json_array_size(rows) ? "; " : ". ", out);
    }
    const double tokens = tokens_of(total);
    if (json_is_null(total))
        fprintf(out, "Could this model run with a finite state? No: not with any order tried.\n");
    else if (tokens > c->positions)
        fprintf(out,
                "Could this model run with a finite state? Not to advantage: it reads at most "
                "%d tokens, and the state is smaller than the cache only beyond %.4g.\n",
                c->positions, tokens);
    else
        fprintf(out,
                "Could this model run with a finite state? Yes: beyond %.0f of its %d tokens "
                "the state is smaller than the cache.\n",
                tokens, c->positions);
}

srnn_status sr_orders_bill(json_t *record, const sr_model_config *c) {
    json_t *bills = json_array();
    char *verdict = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&verdict, &length);
    if (!out) {
        json_decref(bills);
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the verdict");
    }
    for (int tolerance = 0; tolerance < SR_TOLERANCES; tolerance++)
        for (int what = 0; what < CRITERIA; what++) {
            json_t *bill = bill_of(record, c, (criterion)what, tolerance);
            if (what == LOGITS || what == LOGITS_CENTRED)
                say(out, bill, json_object_get(record, "tolerances"), c);
            json_array_append_new(bills, bill);
        }
    fclose(out);
    json_object_set_new(record, "bill", bills);
    json_object_set_new(record, "verdict", json_string(verdict ? verdict : ""));
    free(verdict);
    return SRNN_OK;
}
