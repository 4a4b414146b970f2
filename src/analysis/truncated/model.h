/* model.h (private): a model whose layers stop the series of exp at a finite order: what it
 * predicts and what it says, without retraining. */
#ifndef SR_ANALYSIS_TRUNCATED_MODEL_H
#define SR_ANALYSIS_TRUNCATED_MODEL_H

#include "analysis/survey.h"
#include "data/tokenizer/tokenizer.h"
#include "model/layer/block.h"

/* True for attention whose score is the exp of a scaled q . k: what this analysis is about. */
bool sr_attention_has_orders(const srnn_attention *attention);

/* The same attention with the series up to `order` instead of exp. */
srnn_attention sr_attention_truncated(const srnn_attention *attention, int order);

/* How one layer is truncated. */
typedef struct sr_cut {
    int order; /* one of sr_cut_order's; 0: untruncated */
    sr_centre centre;
} sr_cut;

/* A batch to try models on, and what the untouched model says to it. */
typedef struct sr_trial {
    const int32_t *ids, *targets; /* (B, T) */
    int B, T;
    float *logits; /* (B, T, V), from sr_trial_begin */
    double loss;   /* mean over targets, nats */
} sr_trial;

srnn_status sr_trial_begin(sr_trial *trial, sr_model *model);
void sr_trial_end(sr_trial *trial);

/* loss: of the trial with the layers cut (L), really run; those cut about zero by the model's own
 * kernels, those about another centre in double, with the heads' centres of the survey (NULL: there
 * are none such). Layers without orders stay as they are; those without free shifts are cut about
 * zero. error: |logits - untruncated| / |untruncated|, where every row of logits has its mean taken
 * away first, for only differences count. */
srnn_status sr_trial_run(double *loss, double *error, const sr_trial *trial, sr_model *model,
                         const sr_survey *survey, const sr_cut *cuts);

/* Appends to `text` what the model with all layers truncated (order 0: untruncated) says after the
 * prompt, always taking the most probable token. */
srnn_status sr_truncated_text(sr_bytes *text, sr_model *model, const sr_tokenizer *tokenizer,
                              const sr_tokens *prompt, int order, int tokens);

#endif
