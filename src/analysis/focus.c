/* focus.c: where a model's attention looks, and which orders of exp it needs. */
#include "analysis/focus.h"

#include "analysis/survey.h"
#include "analysis/truncated/model.h"
#include "base/memory.h"
#include "model/pass.h"

#include <math.h>
#include <stdlib.h>

/* Sums over the queries of one head. */
typedef struct head_sums {
    int64_t queries;
    double entropy, distance, near, first;
} head_sums;

typedef struct looking {
    const sr_focus_request *request;
    sr_logit_rows *rows;
    head_sums *sums; /* (L, H) */
    float *losses;   /* (T) */
    int layer;
} looking;

static void visit(void *context, const sr_logit_row *row) {
    const looking *l = context;
    const sr_model_config *c = &l->request->model->config;
    head_sums *sums = &l->sums[l->layer * c->H + row->head];
    const int count = row->facts.count;
    double largest = -INFINITY, total = 0, entropy = 0, distance = 0, near = 0;
    for (int j = 0; j < count; j++)
        largest = fmax(largest, row->s[j]);
    for (int j = 0; j < count; j++) {
        const double w = sr_row_weight(row->facts.attention, row->s[j], largest);
        total += w;
        entropy -= w > 0 ? w * log(w) : 0;
        distance += w * (count - 1 - j);
        near += count - 1 - j < l->request->window ? w : 0;
    }
    sums->queries++;
    sums->entropy += entropy / total + log(total); /* of w / total */
    sums->distance += distance / total;
    sums->near += near / total;
    sums->first += sr_row_weight(row->facts.attention, row->s[0], largest) / total;
}

static srnn_status observe(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    looking *l = context;
    const srnn_attention *attention = &l->request->model->config.attention[layer];
    (void)o;
    l->layer = layer;
    if (sr_attention_has_orders(attention))
        sr_logit_rows_visit(l->rows, attention, in, visit, l);
    return SRNN_OK;
}

static srnn_status look_at_rows(looking *l) {
    const sr_focus_request *r = l->request;
    const sr_pass_setup setup = {.B = 1, .T = r->T, .observer = {observe, l}};
    sr_pass *pass;
    SR_TRY(sr_pass_create(&pass, r->model, &setup));
    srnn_status status = SRNN_OK;
    for (int row = 0; row < r->rows && status == SRNN_OK; row++)
        status = sr_pass_losses(pass, l->losses, r->ids + (int64_t)row * r->T,
                                r->targets + (int64_t)row * r->T);
    sr_pass_free(pass);
    return status;
}

static srnn_status prepare_look(looking *l) {
    const sr_focus_request *r = l->request;
    const sr_model_config *c = &r->model->config;
    const sr_logit_rows_setup rows = {.B = 1,
                                      .T = r->T,
                                      .H = c->H,
                                      .Hkv = c->Hkv,
                                      .D = c->D,
                                      .threads = r->model->backend->threads};
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)c->L * (size_t)c->H, sizeof *l->sums));
    l->sums = memory;
    SR_TRY(sr_alloc(&memory, (size_t)r->T, sizeof *l->losses));
    l->losses = memory;
    return sr_logit_rows_create(&l->rows, &rows);
}

static void average(sr_focus *layer, const head_sums *heads, int H) {
    head_sums all = {0};
    for (int head = 0; head < H; head++) {
        all.queries += heads[head].queries;
        all.entropy += heads[head].entropy;
        all.distance += heads[head].distance;
        all.near += heads[head].near;
        all.first += heads[head].first;
    }
    *layer = (sr_focus){.measured = all.queries > 0, .order = -1};
    if (!layer->measured)
        return;
    const double queries = (double)all.queries;
    layer->entropy = all.entropy / queries;
    layer->distance = all.distance / queries;
    layer->near = all.near / queries;
    layer->first = all.first / queries;
}

static srnn_status look(sr_focus *layers, const sr_focus_request *r) {
    const sr_model_config *c = &r->model->config;
    looking l = {.request = r};
    srnn_status status = prepare_look(&l);
    if (status == SRNN_OK)
        status = look_at_rows(&l);
    for (int layer = 0; layer < c->L && status == SRNN_OK; layer++)
        average(&layers[layer], l.sums + layer * c->H, c->H);
    sr_logit_rows_free(l.rows);
    free(l.sums);
    free(l.losses);
    return status;
}

srnn_status sr_focus_distances(double *distances, const sr_focus_request *r) {
    const sr_model_config *c = &r->model->config;
    looking l = {.request = r};
    srnn_status status = prepare_look(&l);
    if (status == SRNN_OK)
        status = look_at_rows(&l);
    for (int i = 0; i < c->L * c->H && status == SRNN_OK; i++)
        distances[i] = l.sums[i].queries ? l.sums[i].distance / (double)l.sums[i].queries : NAN;
    sr_logit_rows_free(l.rows);
    free(l.sums);
    free(l.losses);
    return status;
}

/* ---- orders */

/* Order and error about the centre that needs the lowest order, or else errs least at order 2; a
 * finite state does not know the middle of a row. */
static void add_orders(sr_focus *layer, const sr_truncation *sums, const sr_focus_request *r,
                       int centres) {
    const int cuts = sr_cut_count(r->most_order);
    double relative[SR_CUTS];
    layer->order_error = INFINITY;
    for (int centre = 0; centre < centres && centre < SR_CENTRE_ROW_MIDDLE; centre++) {
        for (int cut = 0; cut < cuts; cut++) {
            relative[cut] = sr_truncation_error(sums->outputs[centre][cut], sums->outputs_size);
            if (sr_cut_order(cut) == 2)
                layer->order_error = fmin(layer->order_error, relative[cut]);
        }
        const int order = sr_order_needed(relative, cuts, r->tolerance);
        if (order >= 0 && (layer->order < 0 || order < layer->order))
            layer->order = order;
    }
}

static srnn_status survey_rows(sr_survey *survey, const sr_focus_request *r) {
    sr_survey_pass *pass;
    SR_TRY(sr_survey_pass_create(&pass, survey, r->model, r->T));
    srnn_status status = SRNN_OK;
    for (int row = 0; row < r->rows && status == SRNN_OK; row++)
        status =
            sr_survey_measure(pass, r->ids + (int64_t)row * r->T, r->targets + (int64_t)row * r->T);
    for (int row = 0; row < r->rows && status == SRNN_OK; row++)
        status = sr_survey_truncate(pass, r->ids + (int64_t)row * r->T,
                                    r->targets + (int64_t)row * r->T);
    sr_survey_pass_free(pass);
    return status;
}

static srnn_status order_layers(sr_focus *layers, const sr_focus_request *r) {
    const sr_model_config *c = &r->model->config;
    sr_survey survey = {.orders = 1, .most_order = r->most_order};
    srnn_status status = sr_survey_create(&survey, r->model);
    if (status == SRNN_OK)
        status = survey_rows(&survey, r);
    for (int layer = 0; layer < c->L && status == SRNN_OK; layer++) {
        const sr_truncation sums = sr_survey_layer(&survey, layer);
        if (layers[layer].measured)
            add_orders(&layers[layer], &sums, r, sr_centre_count(&c->attention[layer]));
    }
    sr_survey_free(&survey);
    return status;
}

srnn_status sr_focus_measure(sr_focus *layers, const sr_focus_request *r) {
    const sr_model_config *c = &r->model->config;
    bool any = false;
    for (int layer = 0; layer < c->L; layer++) {
        layers[layer] = (sr_focus){.order = -1};
        any = any || (layer < sr_model_config_attention_layers(c) &&
                      sr_attention_has_orders(&c->attention[layer]));
    }
    if (!any)
        return SRNN_OK;
    SR_TRY(look(layers, r));
    return order_layers(layers, r);
}
