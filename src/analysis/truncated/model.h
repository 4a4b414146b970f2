/* model.h (private): runs a model with the series of exp truncated at a finite order, without
 * retraining: its loss, and the text it generates. */
#ifndef SR_ANALYSIS_TRUNCATED_MODEL_H
#define SR_ANALYSIS_TRUNCATED_MODEL_H

#include "analysis/survey.h"
#include "data/tokenizer/tokenizer.h"
#include "model/layer/block/block.h"

/* True for attention whose score is the exp of a scaled q . k, to which this analysis applies. */
bool sr_attention_has_orders(const srnn_attention *attention);

/* The same attention with the series up to `order` in place of exp. */
srnn_attention sr_attention_truncated(const srnn_attention *attention, int order);

/* How one layer is truncated. */
typedef struct sr_cut {
    int order; /* one of sr_cut_order's; 0: untruncated */
    sr_centre centre;
} sr_cut;

/* A batch to evaluate truncated models on, with the logits of the untruncated model. */
typedef struct sr_trial {
    const int32_t *ids, *targets; /* (B, T) */
    int B, T;
    float *logits; /* (B, T, V), from sr_trial_begin */
    double loss;   /* mean over targets, nats */
} sr_trial;

srnn_status sr_trial_begin(sr_trial *trial, sr_model *model);
void sr_trial_end(sr_trial *trial);

/* loss: of the trial with the layers truncated by cuts (L), from an actual run: layers cut about
 * zero use the model's kernels, those about another centre are computed in double with the survey's
 * centres of the heads (NULL: there are none such). Layers without orders are unchanged; those
 * whose logits may not be shifted are cut about zero. error: |logits - untruncated| /
 * |untruncated|, after subtracting the mean of every row of logits, as only differences matter. */
srnn_status sr_trial_run(double *loss, double *error, const sr_trial *trial, sr_model *model,
                         const sr_survey *survey, const sr_cut *cuts);

/* losses (B, T): of every target of the trial with the layers truncated by cuts (L), 0 without one.
 * Needs nothing of sr_trial_begin. */
srnn_status sr_trial_losses(float *losses, const sr_trial *trial, sr_model *model,
                            const sr_survey *survey, const sr_cut *cuts);

/* Appends to `text` what the model with all layers truncated (order 0: untruncated) generates after
 * the prompt, by greedy decoding. */
srnn_status sr_truncated_text(sr_bytes *text, sr_model *model, const sr_tokenizer *tokenizer,
                              const sr_tokens *prompt, int order, int tokens);

#endif
