/* survey.h (private): a model over text, every head of every layer measured. */
#ifndef SR_ANALYSIS_SURVEY_H
#define SR_ANALYSIS_SURVEY_H

#include "analysis/logit_rows.h"
#include "analysis/order_sums.h"
#include "analysis/token_rows.h"
#include "analysis/truncated/head.h"
#include "model/model.h"

/* Logits of one head on the text that its centres are taken from. */
typedef struct sr_head_fit {
    int64_t pairs;
    double mean, least, most;
} sr_head_fit;

typedef struct sr_survey {
    int L, H;
    int orders;     /* whose size is measured, at most SR_TAYLOR_ORDER_MAX */
    int most_order; /* that truncation is tried at, 2 .. SR_TAYLOR_ORDER_MAX */
    int64_t apart;  /* the first tokens, on which the heads' centres are judged: they are taken from
                       those after them, where there are any */
    int64_t tokens;
    int64_t square_pairs; /* queries times keys, seen or not: what the reference divides by */
    double loss_sum;
    int64_t targets;
    sr_order_sums *sums;       /* (L, H) */
    sr_head_fit *fits;         /* (L, H) */
    sr_truncation *truncation; /* (L, H) */
} sr_survey;

/* Orders, most_order and apart are set; everything else is made here. */
srnn_status sr_survey_create(sr_survey *survey, const sr_model *model);
void sr_survey_free(sr_survey *survey);

/* Adds ids and targets (T) to sums and losses. Layers that have no orders
 * (sr_attention_has_orders) stay empty. The model is on the CPU. */
typedef struct sr_survey_pass sr_survey_pass;
srnn_status sr_survey_pass_create(sr_survey_pass **pass, sr_survey *survey, sr_model *model, int T);
void sr_survey_pass_free(sr_survey_pass *pass);
srnn_status sr_survey_measure(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets);

/* Adds the same kind of row to truncation; the sums must be there, for they hold the heads'
 * centres. */
srnn_status sr_survey_truncate(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets);

/* The tokens that the heads' centres come from; 0: those they are judged on. */
int64_t sr_survey_fit_tokens(const sr_survey *survey);

/* A row of logits as truncation wants it, with its head's centres. */
sr_truncation_row sr_survey_row(const sr_survey *survey, int layer, const sr_logit_row *row);

/* What the heads of a layer make together: sums of squares over all of them. */
sr_truncation sr_survey_layer(const sr_survey *survey, int layer);

#endif
