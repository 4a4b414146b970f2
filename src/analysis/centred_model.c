/* centred_model.c: a model whose layers truncate the series of exp about a centre, in double. */
#include "analysis/centred_model.h"

#include "analysis/logit_rows.h"
#include "base/memory.h"
#include "model/pass.h"

#include <stdlib.h>

/* What the observer needs to replace a layer's output. */
typedef struct replacement {
    const sr_model *model;
    const sr_survey *survey;
    sr_logit_rows *rows;
    sr_centre centre;
    int order;
    int layer;
    srnn_tensor o;
} replacement;

static void replace_row(void *context, const sr_logit_row *row) {
    const replacement *r = context;
    const sr_order_sums *head = &r->survey->sums[r->layer * r->survey->H + row->head];
    const int D = r->model->config.D;
    const sr_truncation_row truncated = {.s = row->s,
                                         .v = row->v,
                                         .count = row->count,
                                         .D = D,
                                         .head_mean = head->mean,
                                         .head_middle = (head->least + head->most) / 2};
    double *out = row->scratch;
    sr_truncation_output(out, &truncated, r->centre, r->order, row->scratch + D);
    float *o =
        (float *)r->o.data + row->b * r->o.batch + row->head * r->o.head + row->t * r->o.time;
    for (int d = 0; d < D; d++)
        o[d] = (float)out[d];
}

static srnn_status replace_layer(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    replacement *r = context;
    if (!sr_attention_has_orders(&r->model->config.attention[layer]))
        return SRNN_OK;
    r->layer = layer;
    r->o = o;
    sr_logit_rows_visit(r->rows, in, replace_row, r);
    return SRNN_OK;
}

bool sr_model_has_centres(const sr_model_config *c) {
    const srnn_attention softmax = {0};
    for (int layer = 0; layer < c->L; layer++)
        if (sr_attention_has_orders(&c->attention[layer]) &&
            !sr_attention_same(&c->attention[layer], &softmax))
            return false;
    return true;
}

srnn_status sr_trial_run_centred(double *loss, double *error, const sr_trial *trial,
                                 sr_model *model, const sr_survey *survey, sr_centre centre,
                                 int order) {
    const sr_model_config *c = &model->config;
    const sr_logit_rows_setup rows = {.B = trial->B,
                                      .T = trial->T,
                                      .H = c->H,
                                      .Hkv = c->Hkv,
                                      .D = c->D,
                                      .scale = sr_scale_factor(&(srnn_attention){0}, c->D),
                                      .threads = model->backend->threads,
                                      .scratch = (size_t)c->D +
                                                 sr_truncation_scratch(trial->T, c->D, order)};
    replacement r = {.model = model, .survey = survey, .centre = centre, .order = order};
    SR_TRY(sr_logit_rows_create(&r.rows, &rows));
    const srnn_status status =
        sr_trial_observe(loss, error, trial, model, (sr_observer){replace_layer, &r});
    sr_logit_rows_free(r.rows);
    return status;
}
