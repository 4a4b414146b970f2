/* survey.c: a model over text, every head of every layer measured. */
#include "analysis/survey.h"

#include "analysis/logit_rows.h"
#include "analysis/truncated_model.h"
#include "base/memory.h"
#include "model/pass.h"

#include <stdlib.h>

struct sr_survey_pass {
    sr_survey *survey;
    sr_model *model;
    sr_pass *pass;
    sr_logit_rows *rows;
    float *losses; /* (T) */
    int T;
    bool truncate; /* what the observer adds to */
    int layer;     /* that is being observed */
};

srnn_status sr_survey_create(sr_survey *survey, const sr_model *model) {
    const size_t heads = (size_t)model->config.L * (size_t)model->config.H;
    void *memory;
    *survey = (sr_survey){.L = model->config.L,
                          .H = model->config.H,
                          .orders = survey->orders,
                          .most_order = survey->most_order};
    SR_TRY(sr_alloc_zero(&memory, heads, sizeof *survey->sums));
    survey->sums = memory;
    SR_TRY(sr_alloc_zero(&memory, heads, sizeof *survey->truncation));
    survey->truncation = memory;
    return SRNN_OK;
}

void sr_survey_free(sr_survey *survey) {
    free(survey->sums);
    free(survey->truncation);
    *survey = (sr_survey){0};
}

static void visit_sums(void *context, const sr_logit_row *row) {
    const sr_survey_pass *pass = context;
    const sr_survey *survey = pass->survey;
    sr_order_sums_add(&survey->sums[pass->layer * survey->H + row->head], row->s, row->count,
                      survey->orders, row->scratch);
}

static void visit_truncation(void *context, const sr_logit_row *row) {
    const sr_survey_pass *pass = context;
    const sr_survey *survey = pass->survey;
    const int head = pass->layer * survey->H + row->head;
    const sr_truncation_row truncated = {
        .s = row->s,
        .v = row->v,
        .count = row->count,
        .D = pass->model->config.D,
        .head_mean = survey->sums[head].mean,
        .head_middle = (survey->sums[head].least + survey->sums[head].most) / 2};
    sr_truncation_add(&survey->truncation[head], &truncated, survey->most_order, row->scratch);
}

static srnn_status observe(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    sr_survey_pass *pass = context;
    (void)o;
    if (!sr_attention_has_orders(&pass->model->config.attention[layer]))
        return SRNN_OK;
    pass->layer = layer;
    sr_logit_rows_visit(pass->rows, in, pass->truncate ? visit_truncation : visit_sums, pass);
    return SRNN_OK;
}

/* Every layer that has orders scales its logits in the same way; a model that mixes scales is
 * refused. */
static srnn_status find_scale(double *scale, const sr_model_config *c) {
    int first = -1;
    for (int layer = 0; layer < c->L; layer++) {
        if (!sr_attention_has_orders(&c->attention[layer]))
            continue;
        first = first < 0 ? layer : first;
        if (c->attention[layer].scale != c->attention[first].scale)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layers %d and %d scale their logits differently",
                           first, layer);
    }
    if (first < 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "no layer of the model takes exp of q.k: each is a "
                                             "finite series already, or has features or decay");
    *scale = sr_scale_factor(&c->attention[first], c->D);
    return SRNN_OK;
}

static srnn_status fill(sr_survey_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const int T = pass->T;
    const size_t sums = (size_t)sr_order_sums_scratch(T);
    const size_t truncation = sr_truncation_scratch(T, c->D, pass->survey->most_order);
    sr_logit_rows_setup rows = {.B = 1,
                                .T = T,
                                .H = c->H,
                                .Hkv = c->Hkv,
                                .D = c->D,
                                .threads = pass->model->backend->threads,
                                .scratch = sums > truncation ? sums : truncation};
    const sr_pass_setup setup = {.B = 1, .T = T, .observer = {observe, pass}};
    void *memory;
    SR_TRY(find_scale(&rows.scale, c));
    SR_TRY(sr_logit_rows_create(&pass->rows, &rows));
    SR_TRY(sr_alloc(&memory, (size_t)T, sizeof *pass->losses));
    pass->losses = memory;
    return sr_pass_create(&pass->pass, pass->model, &setup);
}

srnn_status sr_survey_pass_create(sr_survey_pass **pass, sr_survey *survey, sr_model *model,
                                  int T) {
    void *memory;
    *pass = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **pass));
    sr_survey_pass *created = memory;
    created->survey = survey;
    created->model = model;
    created->T = T;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_survey_pass_free(created);
        return status;
    }
    *pass = created;
    return SRNN_OK;
}

void sr_survey_pass_free(sr_survey_pass *pass) {
    if (!pass)
        return;
    sr_pass_free(pass->pass);
    sr_logit_rows_free(pass->rows);
    free(pass->losses);
    free(pass);
}

srnn_status sr_survey_measure(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets) {
    sr_survey *survey = pass->survey;
    pass->truncate = false;
    SR_TRY(sr_pass_losses(pass->pass, pass->losses, ids, targets));
    for (int t = 0; t < pass->T; t++)
        if (targets[t] >= 0) {
            survey->loss_sum += (double)pass->losses[t];
            survey->targets++;
        }
    survey->tokens += pass->T;
    survey->square_pairs += (int64_t)pass->T * pass->T;
    return SRNN_OK;
}

srnn_status sr_survey_truncate(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets) {
    pass->truncate = true;
    return sr_pass_losses(pass->pass, pass->losses, ids, targets);
}

sr_truncation sr_survey_layer(const sr_survey *survey, int layer) {
    sr_truncation all = {0};
    for (int head = 0; head < survey->H; head++) {
        const sr_truncation *own = &survey->truncation[layer * survey->H + head];
        for (int centre = 0; centre < SR_CENTRES; centre++)
            for (int cut = 0; cut < SR_CUTS; cut++) {
                all.weights[centre][cut] += own->weights[centre][cut];
                all.outputs[centre][cut] += own->outputs[centre][cut];
            }
        all.weights_size += own->weights_size;
        all.outputs_size += own->outputs_size;
    }
    return all;
}
