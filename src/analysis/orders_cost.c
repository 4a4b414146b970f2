/* orders_cost.c: the cost of a whole model with finite states, in the record of orders. */
#include "analysis/orders_cost.h"

#include "analysis/orders_record.h"
#include "analysis/state_cost.h"
#include "files/json.h"

#include <math.h>

/* The quantity that must stay within the tolerance. */
typedef enum criterion {
    LOGITS,          /* the final logits, this layer alone truncated about zero */
    LOGITS_CENTRED,  /* the final logits, all layers at one order about the best centre */
    OUTPUTS,         /* the outputs of the layer's heads, about zero */
    OUTPUTS_CENTRED, /* the same about the best centre available to a finite state */
    CRITERIA,
} criterion;

static const struct {
    const char *name, *title;
} criteria[CRITERIA] = {
    {"logits", "Final logits, each layer truncated alone about zero"},
    {"logits_centred", "Final logits, all layers at one order about the best centre"},
    {"outputs", "Each layer's outputs, about zero"},
    {"outputs_centred", "Each layer's outputs, about the best centre"},
};

static const sr_cut not_enough = {-1, SR_CENTRE_ZERO};

static int order_at(const json_t *needed, int tolerance) {
    const json_t *order = json_array_get(needed, (size_t)tolerance);
    return json_is_integer(order) ? (int)json_integer_value(order) : -1;
}

static sr_cut better(sr_cut one, int order, int centre) {
    return order >= 0 && (one.order < 0 || order < one.order) ? (sr_cut){order, (sr_centre)centre}
                                                              : one;
}

/* The centre with which all layers together need the lowest order, among those available to a
 * finite state: zero, and the others that were run. */
static sr_cut choose_for_all(const json_t *record, int tolerance) {
    const json_t *all = json_object_get(record, "all_layers");
    const json_t *zero = json_object_get(json_object_get(all, "needed"), "logits");
    sr_cut best = better(not_enough, order_at(zero, tolerance), SR_CENTRE_ZERO);
    for (int centre = SR_CENTRE_HEAD_MEAN; centre < SR_CENTRE_ROW_MIDDLE; centre++) {
        const json_t *run =
            json_array_get(json_object_get(all, "centred"), (size_t)centre - SR_CENTRE_HEAD_MEAN);
        best = better(best, order_at(json_object_get(run, "needed"), tolerance), centre);
    }
    return best;
}

/* The truncation that a layer needs; order -1 if no order that was tried suffices. */
static sr_cut choose(const json_t *record, const json_t *layer, criterion what, int tolerance) {
    const json_t *needed = json_object_get(layer, "needed");
    const json_t *outputs = json_object_get(needed, "outputs");
    const int centres = what == OUTPUTS_CENTRED ? SR_CENTRE_ROW_MIDDLE : 1;
    sr_cut best = not_enough;
    if (what == LOGITS_CENTRED)
        best = choose_for_all(record, tolerance);
    else if (what == LOGITS)
        best.order = order_at(json_object_get(needed, "logits"), tolerance);
    else
        for (int centre = 0; centre < centres; centre++)
            best =
                better(best, order_at(json_array_get(outputs, (size_t)centre), tolerance), centre);
    /* A layer whose logits may not be shifted was truncated about zero, whatever the others'
     * centre. */
    if (!json_is_true(json_object_get(layer, "free_shift")))
        best.centre = SR_CENTRE_ZERO;
    return best;
}

static json_t *row_of(const sr_state_cost *cost, int layer, sr_cut chosen) {
    return json_pack("{si, si, ss, so, so, so, so, so, so}", "layer", layer, "order", chosen.order,
                     "centre", sr_centre_name(chosen.centre), "state_bytes",
                     sr_record_number(cost->state_bytes), "cache_bytes_per_token",
                     sr_record_number(cost->cache_token_bytes), "memory_break_even_tokens",
                     sr_record_number(cost->memory_tokens), "state_multiply_adds",
                     sr_record_number(cost->state_products), "cache_multiply_adds_per_token",
                     sr_record_number(cost->cache_products), "arithmetic_break_even_tokens",
                     sr_record_number(cost->product_tokens));
}

static json_t *total_of(const sr_state_cost *total) {
    return json_pack("{so, so, so, so, so, so}", "state_bytes",
                     sr_record_number(total->state_bytes), "cache_bytes_per_token",
                     sr_record_number(total->cache_token_bytes), "memory_break_even_tokens",
                     sr_record_number(ceil(total->state_bytes / total->cache_token_bytes)),
                     "state_multiply_adds", sr_record_number(total->state_products),
                     "cache_multiply_adds_per_token", sr_record_number(total->cache_products),
                     "arithmetic_break_even_tokens",
                     sr_record_number(ceil(total->state_products / total->cache_products)));
}

static void add_to(sr_state_cost *total, const sr_state_cost *cost) {
    total->state_bytes += cost->state_bytes;
    total->cache_token_bytes += cost->cache_token_bytes;
    total->state_products += cost->state_products;
    total->cache_products += cost->cache_products;
}

/* Runs the model with all layers truncated to the orders that were chosen. */
static srnn_status run_together(json_t *cost, const sr_orders_work *work) {
    sr_model *model = work->request->model;
    double loss, error;
    SR_TRY(sr_trial_run(&loss, &error, work->trial, model, work->survey, work->cuts));
    sr_json_set(cost, "together",
                json_pack("{so, so}", "loss", sr_record_number(loss), "logits_error",
                          sr_record_number(error)));
    return SRNN_OK;
}

/* One criterion at one tolerance: every layer, and all together. */
static srnn_status add_cost(json_t *costs, const json_t *record, const sr_orders_work *work,
                            criterion what, int tolerance) {
    const sr_model_config *c = &work->request->model->config;
    json_t *rows = json_array();
    json_t *entry = json_pack("{ss, ss, si, so, sn, sn}", "criterion", criteria[what].name, "title",
                              criteria[what].title, "tolerance", tolerance, "layers", rows, "total",
                              "together");
    sr_state_cost total = {0};
    bool known = true;
    sr_json_append(costs, entry);
    for (int layer = 0; layer < c->L; layer++) {
        const json_t *own = json_array_get(json_object_get(record, "layers"), (size_t)layer);
        work->cuts[layer] = (sr_cut){0};
        if (!json_is_true(json_object_get(own, "analysed")))
            continue;
        const sr_cut chosen = work->cuts[layer] = choose(record, own, what, tolerance);
        if (chosen.order < 0) {
            sr_json_append(rows, json_pack("{si, sn}", "layer", layer, "order"));
            known = false;
            continue;
        }
        const sr_state_cost cost = sr_state_cost_of(c, layer, chosen.order);
        sr_json_append(rows, row_of(&cost, layer, chosen));
        add_to(&total, &cost);
    }
    if (!known)
        return SRNN_OK;
    sr_json_set(entry, "total", total_of(&total));
    return run_together(entry, work);
}

srnn_status sr_orders_cost(json_t *record, const sr_orders_work *work) {
    json_t *costs = json_array();
    sr_json_set(record, "costs", costs);
    for (int tolerance = 0; tolerance < SR_TOLERANCES; tolerance++)
        for (int what = 0; what < CRITERIA; what++)
            SR_TRY(add_cost(costs, record, work, (criterion)what, tolerance));
    return SRNN_OK;
}
