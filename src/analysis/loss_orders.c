/* loss_orders.c: which order of exp each layer of a model needs so that the model loses little. */
#include "analysis/loss_orders.h"

#include "analysis/survey.h"
#include "analysis/truncated/model.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)SR_LOSS_ORDERS == (int)SR_CUTS, "every order that is tried has a place");

typedef struct work {
    const sr_loss_orders_request *request;
    sr_survey survey;
    sr_trial trial;
    sr_cut *cuts;         /* (L) */
    float *whole, *cut;   /* (rows, T): losses of the model, and with a layer cut */
    double *rises;        /* (rows) */
    sr_loss_order *layer; /* the one in work */
} work;

/* ---- one order of one layer */

/* Fills work->rises with the mean rises of the rows that have a target; *count of them. */
static void compare_rows(const work *w, size_t *count) {
    const int T = w->request->T;
    *count = 0;
    for (int row = 0; row < w->request->rows; row++) {
        double sum = 0;
        int targets = 0;
        for (int t = row * T; t < (row + 1) * T; t++)
            if (w->request->targets[t] >= 0) {
                sum += (double)w->cut[t] - (double)w->whole[t];
                targets++;
            }
        if (targets)
            w->rises[(*count)++] = sum / targets;
    }
}

static sr_interval interval_of(const work *w) {
    size_t count;
    compare_rows(w, &count);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(w->rises[i]))
            return (sr_interval){INFINITY, INFINITY, INFINITY, 0};
    return sr_interval_of(w->rises, count, SR_CONFIDENCE);
}

/* The largest rise or fall of a row. */
static double largest_change(const work *w) {
    size_t count;
    double largest = 0;
    compare_rows(w, &count);
    for (size_t i = 0; i < count; i++)
        largest = isfinite(w->rises[i]) ? fmax(largest, fabs(w->rises[i])) : INFINITY;
    return largest;
}

/* ---- one centre of one layer */

/* From which order on `of` each interval stays within the tolerance; -1: above all. */
static int order_within(const sr_loss_order *layer, double (*of)(const sr_interval *),
                        double tolerance) {
    double values[SR_LOSS_ORDERS];
    for (int i = 0; i < layer->count; i++)
        values[i] = of(&layer->rises[i].interval);
    return sr_order_needed(values, layer->count, tolerance);
}

static double mean_of(const sr_interval *i) {
    return i->mean;
}

static double low_of(const sr_interval *i) {
    return i->low;
}

static double high_of(const sr_interval *i) {
    return i->high;
}

/* Order after order, until two in a row change no row by more than a twentieth of what is
 * tolerated. */
static srnn_status try_centre(work *w, sr_loss_order *tried, int layer, sr_centre centre) {
    const sr_loss_orders_request *r = w->request;
    const int cuts = sr_cut_count(r->most_order);
    int still = 0;
    *tried = (sr_loss_order){.measured = true, .centre = sr_centre_name(centre)};
    for (int cut = 0; cut < cuts && still < 2; cut++) {
        w->cuts[layer] = (sr_cut){sr_cut_order(cut), centre};
        SR_TRY(sr_trial_losses(w->cut, &w->trial, r->model, &w->survey, w->cuts));
        tried->rises[tried->count++] = (sr_loss_rise){sr_cut_order(cut), interval_of(w)};
        still = largest_change(w) < r->tolerance / 20 ? still + 1 : 0;
    }
    w->cuts[layer] = (sr_cut){0};
    tried->order = order_within(tried, mean_of, r->tolerance);
    tried->low = order_within(tried, low_of, r->tolerance);
    tried->high = order_within(tried, high_of, r->tolerance);
    return SRNN_OK;
}

/* ---- one layer */

/* Orders that were not found are above all others. */
static int compare_orders(int a, int b) {
    return a == b ? 0 : a < 0 ? 1 : b < 0 ? -1 : a - b;
}

static bool is_better(const sr_loss_order *a, const sr_loss_order *b) {
    const int order = compare_orders(a->order, b->order), high = compare_orders(a->high, b->high);
    if (order || high)
        return order ? order < 0 : high < 0;
    return a->rises[a->count - 1].interval.mean < b->rises[b->count - 1].interval.mean;
}

static srnn_status try_layer(work *w, sr_loss_order *best, int layer) {
    const srnn_attention *attention = &w->request->model->config.attention[layer];
    *best = (sr_loss_order){.order = -1, .low = -1, .high = -1};
    if (!sr_attention_has_orders(attention))
        return SRNN_OK;
    for (int centre = 0; centre < sr_centre_count(attention) && centre < SR_CENTRE_ROW_MIDDLE;
         centre++) {
        sr_loss_order tried;
        SR_TRY(try_centre(w, &tried, layer, (sr_centre)centre));
        if (!best->measured || is_better(&tried, best))
            *best = tried;
    }
    return SRNN_OK;
}

/* ---- all of them */

/* The centres of the heads come from the rows after those that are judged. */
static srnn_status fit_centres(work *w) {
    const sr_loss_orders_request *r = w->request;
    sr_survey_pass *pass;
    SR_TRY(sr_survey_pass_create(&pass, &w->survey, r->model, r->T));
    srnn_status status = SRNN_OK;
    for (int row = 0; row < r->rows + r->fit_rows && status == SRNN_OK; row++)
        status =
            sr_survey_measure(pass, r->ids + (int64_t)row * r->T, r->targets + (int64_t)row * r->T);
    sr_survey_pass_free(pass);
    return status;
}

static srnn_status take_arrays(work *w) {
    const size_t rows = (size_t)w->request->rows, tokens = rows * (size_t)w->request->T;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)w->request->model->config.L, sizeof *w->cuts));
    w->cuts = memory;
    SR_TRY(sr_alloc(&memory, 2 * tokens, sizeof *w->whole));
    w->whole = memory;
    w->cut = w->whole + tokens;
    SR_TRY(sr_alloc(&memory, rows, sizeof *w->rises));
    w->rises = memory;
    return SRNN_OK;
}

static srnn_status measure(work *w, sr_loss_order *layers) {
    const sr_loss_orders_request *r = w->request;
    SR_TRY(take_arrays(w));
    SR_TRY(sr_survey_create(&w->survey, r->model));
    SR_TRY(fit_centres(w));
    SR_TRY(sr_trial_losses(w->whole, &w->trial, r->model, &w->survey, w->cuts));
    for (int layer = 0; layer < r->model->config.L; layer++) {
        SR_TRY(try_layer(w, &layers[layer], layer));
        if (r->progress && r->progress(r->context))
            return SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped before the orders were measured");
    }
    return SRNN_OK;
}

srnn_status sr_loss_orders_measure(sr_loss_order *layers, const sr_loss_orders_request *r) {
    const sr_model_config *c = &r->model->config;
    work w = {.request = r,
              .survey = {.orders = 1,
                         .most_order = r->most_order,
                         .apart = (int64_t)r->rows * r->T},
              .trial = {.ids = r->ids, .targets = r->targets, .B = r->rows, .T = r->T}};
    bool any = false;
    for (int layer = 0; layer < c->L; layer++) {
        layers[layer] = (sr_loss_order){.order = -1, .low = -1, .high = -1};
        any = any || (layer < sr_model_config_attention_layers(c) &&
                      sr_attention_has_orders(&c->attention[layer]));
    }
    const srnn_status status = any && r->rows > 0 ? measure(&w, layers) : SRNN_OK;
    sr_survey_free(&w.survey);
    free(w.cuts);
    free(w.whole);
    free(w.rises);
    return status;
}
