/* truncated_model.h: a model whose layers stop the series of exp at a finite order: what it
 * predicts and what it says, without retraining. */
#ifndef SR_ANALYSIS_TRUNCATED_MODEL_H
#define SR_ANALYSIS_TRUNCATED_MODEL_H

#include "analysis/truncation.h"
#include "data/tokenizer.h"
#include "model/block.h"

/* True for attention whose score is the exp of a scaled q . k: what this analysis is about. */
bool sr_attention_has_orders(const srnn_attention *attention);

/* The same attention with the series up to `order` in the place of exp. */
srnn_attention sr_attention_truncated(const srnn_attention *attention, int order);

enum { SR_ALL_LAYERS = -1 };

/* A batch to try models on, and what the untouched model says to it. */
typedef struct sr_trial {
    const int32_t *ids, *targets; /* (B, T) */
    int B, T;
    float *logits; /* (B, T, V), from sr_trial_begin */
    double loss;   /* mean over targets, nats */
} sr_trial;

srnn_status sr_trial_begin(sr_trial *trial, sr_model *model);
void sr_trial_end(sr_trial *trial);

/* loss: of the trial with `layer` (or all that have orders) truncated. error: |logits - untruncated|
 * / |untruncated|, where every row of logits has its mean taken away first, for only differences
 * count. */
srnn_status sr_trial_run(double *loss, double *error, const sr_trial *trial, sr_model *model,
                         int layer, int order);

/* The same for the model as it is, with an observer that changes what its layers make. */
srnn_status sr_trial_observe(double *loss, double *error, const sr_trial *trial, sr_model *model,
                             sr_observer observer);

/* Appends to `text` what the model with all layers truncated (order 0: untruncated) says after the
 * prompt, always taking the most probable token. */
srnn_status sr_truncated_text(sr_bytes *text, sr_model *model, const sr_tokenizer *tokenizer,
                              const sr_tokens *prompt, int order, int tokens);

#endif
