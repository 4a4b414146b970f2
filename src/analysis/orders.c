/* orders.c: measures which orders of the series of exp a model uses. */
#include "analysis/orders.h"

#include "analysis/orders_cost.h"
#include "analysis/orders_record.h"
#include "analysis/orders_verdict.h"
#include "base/memory.h"
#include "base/text.h"
#include "equation/facts.h"
#include "files/json.h"
#include "model/mixers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs stop when the error is below this fraction of the narrowest tolerance. */
static const double enough = 0.1;

/* The rows on which truncated models are evaluated. */
typedef struct trial_rows {
    int32_t *ids, *targets; /* (most, T) */
    int most, count, T;
} trial_rows;

static bool should_stop(const sr_orders_request *r, const char *what, double share) {
    return r->progress && r->progress(r->progress_context, what, share);
}

static srnn_status stopped(void) {
    return SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped before the orders were measured");
}

/* Passes over the text; the first rows are stored for trials. */
static srnn_status read_rows(sr_survey_pass *pass, const sr_survey *survey, trial_rows *trial,
                             const sr_orders_request *r) {
    bool more;
    void *memory;
    const size_t T = (size_t)trial->T;
    SR_TRY(sr_alloc(&memory, 2 * T, sizeof(int32_t)));
    int32_t *ids = memory, *targets = ids + T;
    srnn_status status = SRNN_OK;
    while (status == SRNN_OK && survey->tokens + trial->T <= r->tokens) {
        status = sr_token_rows_next(r->rows, ids, targets, &more);
        if (status != SRNN_OK || !more)
            break;
        if (trial->count < trial->most) {
            memcpy(trial->ids + (size_t)trial->count * T, ids, T * sizeof *ids);
            memcpy(trial->targets + (size_t)trial->count++ * T, targets, T * sizeof *targets);
        }
        status = sr_survey_measure(pass, ids, targets);
        if (status == SRNN_OK &&
            should_stop(r, "reading", (double)survey->tokens / (double)r->tokens))
            status = stopped();
    }
    free(memory);
    if (status == SRNN_OK && survey->tokens == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "the data, or the number of tokens requested, is less "
                       "than one row of %d tokens; reduce --length",
                       trial->T);
    return status;
}

static srnn_status survey_text(sr_survey *survey, trial_rows *trial, const sr_orders_request *r) {
    sr_survey_pass *pass;
    SR_TRY(sr_survey_pass_create(&pass, survey, r->model, trial->T));
    srnn_status status = read_rows(pass, survey, trial, r);
    for (int row = 0; row < trial->count && status == SRNN_OK; row++) {
        const size_t at = (size_t)row * (size_t)trial->T;
        status = sr_survey_truncate(pass, trial->ids + at, trial->targets + at);
        if (status == SRNN_OK && should_stop(r, "truncating heads", (row + 1.0) / trial->count))
            status = stopped();
    }
    sr_survey_pass_free(pass);
    return status;
}

enum { ALL_LAYERS = -1 };

/* Name of a series of runs in the progress display, its index and their number. */
typedef struct part_of_work {
    const char *what;
    int index, count;
} part_of_work;

/* Runs order after order, with one layer or all truncated; gives the error curve and the needed
 * orders. */
static srnn_status run_cuts(json_t **curve, json_t **needed, const sr_orders_work *work, int layer,
                            sr_centre centre, part_of_work part) {
    const sr_orders_request *r = work->request;
    const double fine = enough * r->tolerances[SR_TOLERANCES - 1];
    double losses[SR_CUTS], errors[SR_CUTS];
    const int cuts = sr_cut_count(r->most_order);
    int count = 0;
    for (bool done = false; count < cuts && !done; count++) {
        for (int l = 0; l < r->model->config.L; l++)
            work->cuts[l] = layer == ALL_LAYERS || layer == l
                                ? (sr_cut){sr_cut_order(count), centre}
                                : (sr_cut){0};
        SR_TRY(sr_trial_run(&losses[count], &errors[count], work->trial, r->model, work->survey,
                            work->cuts));
        done = count > 0 && errors[count] < fine && errors[count - 1] < fine;
        if (should_stop(r, part.what, (part.index + (count + 1.0) / cuts) / part.count))
            return stopped();
    }
    *curve = json_pack("{so, so}", "loss", sr_record_numbers(losses, count), "logits_error",
                       sr_record_numbers(errors, count));
    *needed = sr_record_needed(errors, count, r->tolerances);
    return SRNN_OK;
}

/* True if there is a layer whose logits may be shifted by a constant. */
static bool has_centres(const sr_model_config *c) {
    for (int layer = 0; layer < c->L; layer++)
        if (sr_attention_has_orders(&c->attention[layer]) &&
            sr_centre_count(&c->attention[layer]) > 1)
            return true;
    return false;
}

/* All layers truncated about each centre. */
static srnn_status run_centres(json_t *all, const sr_orders_work *work) {
    json_t *list = json_array();
    sr_json_set(all, "centred", list);
    if (!has_centres(&work->request->model->config))
        return SRNN_OK;
    for (int centre = SR_CENTRE_HEAD_MEAN; centre < SR_CENTRES; centre++) {
        json_t *curve, *needed;
        SR_TRY(run_cuts(&curve, &needed, work, ALL_LAYERS, (sr_centre)centre,
                        (part_of_work){"truncating about centres", centre - SR_CENTRE_HEAD_MEAN,
                                       SR_CENTRES - SR_CENTRE_HEAD_MEAN}));
        sr_json_append(list, json_pack("{ss, so, so}", "centre", sr_centre_name((sr_centre)centre),
                                       "truncated", curve, "needed", needed));
    }
    return SRNN_OK;
}

static srnn_status run_layers(json_t *record, const sr_orders_work *work) {
    const sr_model_config *c = &work->request->model->config;
    json_t *curve, *needed, *all = json_pack("{s{}}", "needed");
    sr_json_set(record, "all_layers", all);
    for (int layer = ALL_LAYERS; layer < c->L; layer++) {
        json_t *own = json_array_get(json_object_get(record, "layers"), (size_t)layer);
        json_t *to = layer == ALL_LAYERS ? all : own;
        if (layer != ALL_LAYERS && !sr_attention_has_orders(&c->attention[layer]))
            continue;
        SR_TRY(run_cuts(&curve, &needed, work, layer, SR_CENTRE_ZERO,
                        (part_of_work){"truncating layers", layer - ALL_LAYERS, c->L + 1}));
        sr_json_set(to, "truncated", curve);
        sr_json_set(json_object_get(to, "needed"), "logits", needed);
    }
    return run_centres(all, work);
}

static srnn_status add_text(json_t *texts, const sr_orders_request *r, int order) {
    sr_bytes text = {0};
    const srnn_status status =
        sr_truncated_text(&text, r->model, r->tokenizer, r->prompt, order, r->text_tokens);
    /* A strongly truncated model may generate bytes that are not UTF-8. */
    const bool plain = sr_text_is_utf8(text.data, text.count);
    if (status == SRNN_OK)
        sr_json_append(texts,
                       json_pack("{si, so}", "order", order, "text",
                                 plain ? json_stringn(text.count ? text.data : "", text.count)
                                       : json_null()));
    sr_bytes_free(&text);
    return status;
}

/* Untruncated (order 0), then orders 1, 2, 4, 8, ... */
static srnn_status run_texts(json_t *record, const sr_orders_request *r) {
    json_t *texts = json_array();
    sr_json_set(record, "texts", texts);
    if (!r->tokenizer)
        return SRNN_OK;
    SR_TRY(add_text(texts, r, 0));
    for (int order = 1; order <= r->most_order; order *= 2)
        SR_TRY(add_text(texts, r, order));
    return SRNN_OK;
}

static json_t *model_of(const sr_model_config *c) {
    json_t *attentions = json_array();
    for (int layer = 0; layer < c->L; layer++) {
        char text[2 * SR_ATTENTION_TEXT];
        sr_mixer_row_of(c)->print(text, sizeof text, c, layer);
        sr_json_append(attentions, json_string(text));
    }
    return json_pack("{si, si, si, si, si, si, so}", "layers", c->L, "heads", c->H, "kv_heads",
                     c->Hkv, "head_size", c->D, "vocab", c->V, "positions", c->positions,
                     "attention", attentions);
}

static json_t *begin_record(const sr_survey *survey, const sr_trial *trial,
                            const sr_orders_request *r) {
    json_t *cuts = json_array(), *centres = json_array(), *layers = json_array();
    for (int cut = 0; cut < sr_cut_count(r->most_order); cut++)
        sr_json_append(cuts, json_integer(sr_cut_order(cut)));
    for (int centre = 0; centre < SR_CENTRES; centre++)
        sr_json_append(centres, json_string(sr_centre_name((sr_centre)centre)));
    for (int layer = 0; layer < survey->L; layer++)
        sr_json_append(layers, sr_record_layer(survey, layer, &r->model->config.attention[layer],
                                               r->tolerances));
    const double loss = survey->targets ? survey->loss_sum / (double)survey->targets : 0;
    return json_pack("{ss, si, so, s{sI, si, so, sI, so, sI}, si, si, so, so, so, so}", "format",
                     "softrnn-orders", "version", 1, "model", model_of(&r->model->config), "data",
                     "tokens", (json_int_t)survey->tokens, "row_length", trial->T, "loss",
                     sr_record_number(loss), "trial_tokens", (json_int_t)trial->B * trial->T,
                     "trial_loss", sr_record_number(trial->loss), "centre_tokens",
                     (json_int_t)sr_survey_fit_tokens(survey), "orders", survey->orders,
                     "most_order", r->most_order, "cuts", cuts, "centres", centres, "tolerances",
                     sr_record_numbers(r->tolerances, SR_TOLERANCES), "layers", layers);
}

/* Everything that runs truncated models. */
static srnn_status run_all(json_t *record, const sr_trial *trial, const sr_survey *survey,
                           const sr_orders_request *r) {
    void *cuts;
    SR_TRY(sr_alloc(&cuts, (size_t)r->model->config.L, sizeof(sr_cut)));
    const sr_orders_work work = {r, trial, survey, cuts};
    srnn_status status = run_layers(record, &work);
    if (status == SRNN_OK)
        status = sr_orders_cost(record, &work);
    free(cuts);
    return status;
}

static srnn_status measure(json_t **record, sr_survey *survey, trial_rows *rows,
                           const sr_orders_request *r) {
    SR_TRY(survey_text(survey, rows, r));
    sr_trial trial = {.ids = rows->ids, .targets = rows->targets, .B = rows->count, .T = rows->T};
    srnn_status status = sr_trial_begin(&trial, r->model);
    if (status == SRNN_OK) {
        *record = begin_record(survey, &trial, r);
        if (!*record)
            status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the record of orders");
    }
    if (status == SRNN_OK)
        status = run_all(*record, &trial, survey, r);
    sr_trial_end(&trial);
    SR_TRY(status);
    SR_TRY(sr_orders_verdict(*record, &r->model->config));
    SR_TRY(run_texts(*record, r));
    return sr_json_complete(*record, "the record of orders");
}

srnn_status sr_orders_measure(json_t **record, const sr_orders_request *r) {
    const int T = sr_token_rows_length(r->rows);
    const int64_t wanted = r->trial_tokens / T;
    trial_rows rows = {.T = T, .most = wanted < 1 ? 1 : (int)wanted};
    sr_survey survey = {.orders = r->orders,
                        .most_order = r->most_order,
                        .apart = (int64_t)rows.most * T};
    void *memory;
    *record = NULL;
    SR_TRY(sr_alloc(&memory, 2 * (size_t)rows.most * (size_t)T, sizeof(int32_t)));
    rows.ids = memory;
    rows.targets = rows.ids + (size_t)rows.most * (size_t)T;
    srnn_status status = sr_survey_create(&survey, r->model);
    if (status == SRNN_OK)
        status = measure(record, &survey, &rows, r);
    sr_survey_free(&survey);
    free(memory);
    if (status != SRNN_OK) {
        json_decref(*record);
        *record = NULL;
    }
    return status;
}
