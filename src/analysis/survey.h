/* survey.h (private): measures every head of every layer of a model over a text. */
#ifndef SR_ANALYSIS_SURVEY_H
#define SR_ANALYSIS_SURVEY_H

#include "analysis/logit_rows.h"
#include "analysis/order_sums.h"
#include "analysis/token_rows.h"
#include "analysis/truncated/head.h"
#include "model/model.h"

/* Logits of one head on the text that its centres are fitted to. */
typedef struct sr_head_fit {
    int64_t pairs;
    double mean, least, most;
} sr_head_fit;

typedef struct sr_survey {
    int L, H;
    int orders;     /* highest order measured, at most SR_TAYLOR_ORDER_MAX */
    int most_order; /* highest order of truncation tried, 2 .. SR_TAYLOR_ORDER_MAX */
    int64_t apart;  /* this many tokens at the start are the test text of the heads' centres, which
                     * are fitted to the tokens after them, if there are any */
    int64_t tokens;
    int64_t square_pairs; /* queries times keys, including masked pairs: the reference's divisor */
    double loss_sum;
    int64_t targets;
    sr_order_sums *sums;       /* (L, H) */
    sr_head_fit *fits;         /* (L, H) */
    sr_truncation *truncation; /* (L, H) */
} sr_survey;

/* orders, most_order and apart are inputs; everything else is set here. */
srnn_status sr_survey_create(sr_survey *survey, const sr_model *model);
void sr_survey_free(sr_survey *survey);

/* Adds ids and targets (T) to sums and losses. Layers that have no orders
 * (sr_attention_has_orders) stay empty. The model is on the CPU. */
typedef struct sr_survey_pass sr_survey_pass;
srnn_status sr_survey_pass_create(sr_survey_pass **pass, sr_survey *survey, sr_model *model, int T);
void sr_survey_pass_free(sr_survey_pass *pass);
srnn_status sr_survey_measure(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets);

/* Adds the same kind of row to truncation; the sums must be complete, as they determine the heads'
 * centres. */
srnn_status sr_survey_truncate(sr_survey_pass *pass, const int32_t *ids, const int32_t *targets);

/* The number of tokens that the heads' centres are fitted to; 0: they are fitted to the test
 * text. */
int64_t sr_survey_fit_tokens(const sr_survey *survey);

/* A row of logits with its head's centres, for truncation. */
sr_truncation_row sr_survey_row(const sr_survey *survey, int layer, const sr_logit_row *row);

/* Sums of squares over all heads of a layer. */
sr_truncation sr_survey_layer(const sr_survey *survey, int layer);

#endif
