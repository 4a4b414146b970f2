/* ranking_record.c: the ranking of layers as a record. */
#include "base/memory.h"
#include "distil/ranking.h"
#include "distil/spearman.h"
#include "files/json.h"

#include <math.h>
#include <stdlib.h>

/* In the order of sr_ranking_measure_name. */
enum { ORDER = 5, LOSS_ORDER = 7, NUMBER = 8 };
static const char *const names[SR_RANKING_MEASURES] = {"entropy",       "mean_distance",
                                                       "last_tokens",   "first_token",
                                                       "order_2_error", "order",
                                                       "order_2_rise",  "loss_order",
                                                       "number"};

const char *sr_ranking_measure_name(int measure) {
    return names[measure];
}

/* How much the loss rises with exp cut at order 2; it is tried always. */
static double rise_at_2(const sr_loss_order *o) {
    for (int i = 0; i < o->count; i++)
        if (o->rises[i].order == 2)
            return o->rises[i].interval.mean;
    return NAN;
}

/* An order that was not found is above all that were tried. */
static double order_value(int order) {
    return order < 0 ? SR_TAYLOR_ORDER_MAX + 1 : order;
}

/* NaN: not measured. */
static double value_of(const sr_ranking_result *result, int layer, int measure) {
    const sr_focus *f = &result->layers[layer].focus;
    const sr_loss_order *o = &result->layers[layer].orders;
    const double values[SR_RANKING_MEASURES] = {f->entropy,     f->distance,
                                                f->near,        f->first,
                                                f->order_error, order_value(f->order),
                                                rise_at_2(o),   order_value(o->order),
                                                layer};
    return f->measured || measure == NUMBER ? values[measure] : NAN;
}

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

/* How well the measure ranks the layers by these costs; layers without a measure are left out. */
static srnn_status add_correlation(json_t *to, const char *name, const sr_ranking_result *result,
                                   int measure, bool aligned) {
    void *memory;
    size_t count = 0;
    sr_spearman s;
    SR_TRY(sr_alloc(&memory, 2 * (size_t)result->L, sizeof(double)));
    double *x = memory, *y = x + result->L;
    for (int layer = 0; layer < result->L; layer++) {
        const sr_ranked_layer *own = &result->layers[layer];
        x[count] = value_of(result, layer, measure);
        y[count] = aligned ? own->aligned.kl : own->copied.kl;
        count += isnan(x[count]) ? 0 : 1;
    }
    const srnn_status status = sr_spearman_of(&s, x, y, count);
    free(memory);
    sr_json_set(to, name,
                json_pack("{so, so, so}", "rho", number(s.rho), "low", number(s.low), "high",
                          number(s.high)));
    return status;
}

static srnn_status add_correlations(json_t *record, const sr_ranking_result *result) {
    json_t *all = json_object();
    sr_json_set(record, "correlations", all);
    for (int measure = 0; measure < SR_RANKING_MEASURES; measure++) {
        json_t *one = json_object();
        sr_json_set(all, names[measure], one);
        SR_TRY(add_correlation(one, "copied", result, measure, false));
        SR_TRY(add_correlation(one, "aligned", result, measure, true));
    }
    return SRNN_OK;
}

static json_t *cost_json(const sr_replacement_cost *cost) {
    return json_pack("{so, so}", "loss", number(cost->loss), "kl", number(cost->kl));
}

static json_t *order_json(int order) {
    return order < 0 ? json_null() : json_integer(order);
}

/* null: its score is not exp of q.k. */
static json_t *orders_json(const sr_loss_order *o) {
    json_t *rises = json_array();
    if (!o->measured) {
        json_decref(rises);
        return json_null();
    }
    for (int i = 0; i < o->count; i++)
        sr_json_append(rises, json_pack("{si, so, so, so}", "order", o->rises[i].order, "mean",
                                        number(o->rises[i].interval.mean), "low",
                                        number(o->rises[i].interval.low), "high",
                                        number(o->rises[i].interval.high)));
    return json_pack("{ss, so, so, so, so}", "centre", o->centre, "order", order_json(o->order),
                     "low", order_json(o->low), "high", order_json(o->high), "rises", rises);
}

/* Orders that were not found are null. */
static json_t *measure_json(const sr_ranking_result *result, int layer, int measure) {
    const double value = value_of(result, layer, measure);
    const bool is_order = measure == ORDER || measure == LOSS_ORDER;
    return is_order && value > SR_TAYLOR_ORDER_MAX ? json_null() : number(value);
}

static json_t *layer_json(const sr_ranking_result *result, int number_of_layer) {
    const sr_ranked_layer *layer = &result->layers[number_of_layer];
    json_t *measures = json_object();
    for (int measure = 0; measure < SR_RANKING_MEASURES; measure++)
        sr_json_set(measures, names[measure], measure_json(result, number_of_layer, measure));
    return json_pack("{si, so, so, so, so, so, so, so}", "layer", number_of_layer, "copied",
                     cost_json(&layer->copied), "aligned", cost_json(&layer->aligned), "measures",
                     measures, "orders", orders_json(&layer->orders), "cache_bytes",
                     number(layer->cache_bytes), "state_bytes", number(layer->state_bytes), "keep",
                     isnan(result->budget) ? json_null() : json_boolean(layer->keep));
}

srnn_status sr_ranking_record(json_t **record, const sr_ranking_result *result) {
    json_t *layers = json_array();
    *record =
        json_pack("{ss, si, ss, si, sI, si, so, so, so, so, so}", "format", "softrnn-layers",
                  "version", 1, "attention", result->attention, "length", result->T, "targets",
                  (json_int_t)result->targets, "order_rows", result->order_rows, "tolerable",
                  number(result->tolerable), "loss", number(result->loss), "budget_bytes",
                  number(result->budget), "bytes",
                  isnan(result->budget) ? json_null() : number(result->bytes), "layers", layers);
    for (int layer = 0; layer < result->L; layer++)
        sr_json_append(layers, layer_json(result, layer));
    srnn_status status = add_correlations(*record, result);
    if (status == SRNN_OK)
        status = sr_json_complete(*record, "the ranking of layers");
    if (status != SRNN_OK) {
        json_decref(*record);
        *record = NULL;
    }
    return status;
}
