/* survey.c: measures every head of every layer of a model over a text. */
#include "analysis/survey.h"

#include "analysis/truncated/model.h"
#include "base/memory.h"
#include "model/mixers.h"
#include "model/pass.h"

#include <stdlib.h>

struct sr_survey_pass {
    sr_survey *survey;
    sr_model *model;
    sr_pass *pass;
    sr_logit_rows *rows;
    float *losses; /* (T) */
    int T;
    bool truncate; /* the observer adds to the truncation sums, else to the logit sums */
    int layer;     /* the layer being observed */
};

srnn_status sr_survey_create(sr_survey *survey, const sr_model *model) {
    const size_t heads = (size_t)model->config.L * (size_t)model->config.H;
    void *memory;
    *survey = (sr_survey){.L = model->config.L,
                          .H = model->config.H,
                          .orders = survey->orders,
                          .most_order = survey->most_order,
                          .apart = survey->apart};
    SR_TRY(sr_alloc_zero(&memory, heads, sizeof *survey->sums));
    survey->sums = memory;
    SR_TRY(sr_alloc_zero(&memory, heads, sizeof *survey->fits));
    survey->fits = memory;
    SR_TRY(sr_alloc_zero(&memory, heads, sizeof *survey->truncation));
    survey->truncation = memory;
    return SRNN_OK;
}

void sr_survey_free(sr_survey *survey) {
    free(survey->sums);
    free(survey->fits);
    free(survey->truncation);
    *survey = (sr_survey){0};
}

static void fit(sr_head_fit *head, const double *s, int count) {
    double sum = 0, least = s[0], most = s[0];
    for (int j = 0; j < count; j++) {
        sum += s[j];
        least = s[j] < least ? s[j] : least;
        most = s[j] > most ? s[j] : most;
    }
    head->least = head->pairs && head->least < least ? head->least : least;
    head->most = head->pairs && head->most > most ? head->most : most;
    head->pairs += count;
    head->mean += (sum - count * head->mean) / (double)head->pairs;
}

static void visit_sums(void *context, const sr_logit_row *row) {
    const sr_survey_pass *pass = context;
    const sr_survey *survey = pass->survey;
    const int head = pass->layer * survey->H + row->head;
    sr_order_sums_add(&survey->sums[head], row->s, row->facts.count, row->facts.attention->clamp,
                      survey->orders, row->scratch);
    if (survey->tokens >= survey->apart)
        fit(&survey->fits[head], row->s, row->facts.count);
}

int64_t sr_survey_fit_tokens(const sr_survey *survey) {
    return survey->tokens > survey->apart ? survey->tokens - survey->apart : 0;
}

sr_truncation_row sr_survey_row(const sr_survey *survey, int layer, const sr_logit_row *row) {
    const int head = layer * survey->H + row->head;
    const sr_order_sums *sums = &survey->sums[head];
    sr_head_fit from = survey->fits[head];
    if (from.pairs == 0)
        from = (sr_head_fit){sums->pairs, sums->mean, sums->least, sums->most};
    return (sr_truncation_row){.facts = row->facts,
                               .s = row->s,
                               .v = row->v,
                               .head_mean = from.mean,
                               .head_middle = (from.least + from.most) / 2};
}

static void visit_truncation(void *context, const sr_logit_row *row) {
    const sr_survey_pass *pass = context;
    const sr_survey *survey = pass->survey;
    const sr_truncation_row truncated = sr_survey_row(survey, pass->layer, row);
    sr_truncation_add(&survey->truncation[pass->layer * survey->H + row->head], &truncated,
                      survey->most_order, row->scratch);
}

static srnn_status observe(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    sr_survey_pass *pass = context;
    const srnn_attention *attention = &pass->model->config.attention[layer];
    (void)o;
    if (!sr_attention_has_orders(attention))
        return SRNN_OK;
    pass->layer = layer;
    sr_logit_rows_visit(pass->rows, attention, in, pass->truncate ? visit_truncation : visit_sums,
                        pass);
    return SRNN_OK;
}

/* Sums, states and costs assume heads as the model stores them. */
static srnn_status check_heads(const sr_model_config *c, int layer) {
    const sr_layer_sizes *s = &c->sizes[layer];
    if (s->H == c->H && s->Hkv == c->Hkv && s->D == c->D && s->Dv == c->D)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "layer %d has %d heads with keys of %d and values of %d, the model %d of %d: "
                   "orders are measured only in layers with the model's own heads",
                   layer, s->H, s->D, s->Dv, c->H, c->D);
}

static srnn_status check_orders(const sr_model_config *c) {
    if (!sr_mixer_row_of(c)->attends)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s has no attention: no layer of the model takes exp of q.k",
                       sr_mixer_row_of(c)->title);
    bool any = false;
    for (int layer = 0; layer < c->L; layer++) {
        if (!sr_attention_has_orders(&c->attention[layer]))
            continue;
        SR_TRY(check_heads(c, layer));
        any = true;
    }
    if (any)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "no layer of the model takes exp of q.k and nothing else: each is a finite "
                   "series already, or has features, decay, levels, pool, a window, a sink, a cap "
                   "or the delta rule");
}

static srnn_status fill(sr_survey_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const int T = pass->T;
    const size_t sums = (size_t)sr_order_sums_scratch(T);
    const size_t truncation = sr_truncation_scratch(T, c->D, pass->survey->most_order);
    const sr_logit_rows_setup rows = {.B = 1,
                                      .T = T,
                                      .H = c->H,
                                      .Hkv = c->Hkv,
                                      .D = c->D,
                                      .threads = pass->model->backend->threads,
                                      .scratch = sums > truncation ? sums : truncation};
    const sr_pass_setup setup = {.B = 1, .T = T, .observer = {observe, pass}};
    void *memory;
    SR_TRY(check_orders(c));
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
