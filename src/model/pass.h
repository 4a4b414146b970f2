/* pass.h: a whole model over a batch: logits, losses, gradients. */
#ifndef SR_MODEL_PASS_H
#define SR_MODEL_PASS_H

#include "model/layer/block/block.h"
#include "model/lesson.h"

typedef struct sr_pass_setup {
    int B, T;
    bool train;             /* gradients are wanted */
    sr_recompute recompute; /* with train: less memory, more time, the same bits */

    /* Packed documents as in srnn_problem; NULL: every row is one document. Copied. Those of parts
     * of rows are given with sr_pass_documents. */
    const int64_t *offsets;
    int64_t documents;
    srnn_form form; /* of attention */

    /* The rows are parts of longer ones, whose other parts other passes compute at the same time
     * with the same calls; T is that of the part, and losses and gradients are of its tokens.
     * NULL: they are whole. Copied. */
    const sr_row_part *part;

    bool keep_inputs; /* after a forward pass the inputs of all layers are there, as in training */
    sr_lesson lesson; /* what losses and gradients of training are; { 0 }: those of the text */

    sr_observer observer; /* of every layer in every forward pass; { 0 }: none */

    /* Called by every backward pass when gradients are final, from the last layer to the first:
     * with L for the tensors after the last layer (a tied head counts as the embedding), with
     * the number of each layer, and with -1 for the rest. NULL: no call. Called once, during
     * graph capture, on devices that capture. */
    srnn_status (*ready)(void *context, int layer);
    void *ready_context;
} sr_pass_setup;

/* Activations, gradients and scratch for one batch shape; all memory is taken here. */
typedef struct sr_pass sr_pass;

/* The model must outlive the pass. */
srnn_status sr_pass_create(sr_pass **pass, sr_model *model, const sr_pass_setup *setup);
void sr_pass_free(sr_pass *pass);

/* Other documents from now on, as in the setup; those of whole rows also where the pass has parts.
 * Takes no memory. */
srnn_status sr_pass_documents(sr_pass *pass, const int64_t *offsets, int64_t documents);

/* In these layers (L) every token is a document of its own until the next sr_pass_documents: they
 * see what a state that is zeroed before each token leaves. Layers that share their attention with
 * one outside of the set are refused, and so are passes with gradients. */
srnn_status sr_pass_isolate(sr_pass *pass, const bool *layers);

/* Bytes that the pass holds, with its teacher's activations but not its weights. */
size_t sr_pass_bytes(const sr_pass *pass);

/* logits (B, T, V), host memory, for ids (B, T). */
srnn_status sr_pass_logits(sr_pass *pass, float *logits, const int32_t *ids);

/* losses (B, T), host memory: minus the log probability of each target, 0 where targets[i] < 0. */
srnn_status sr_pass_losses(sr_pass *pass, float *losses, const int32_t *ids,
                           const int32_t *targets);

/* The same, and adds to *correct the number of targets that have the largest logit. */
srnn_status sr_pass_evaluate(sr_pass *pass, float *losses, int64_t *correct, const int32_t *ids,
                             const int32_t *targets);

/* How far the model is from the lesson's teacher, which must be there: divergences (B, T), host
 * memory: KL(teacher, student) at temperature 1, 0 where targets[i] < 0. */
srnn_status sr_pass_divergences(sr_pass *pass, float *divergences, const int32_t *ids,
                                const int32_t *targets);

/* Adds the errors of the lesson's layers to errors (L), whatever the objective. */
srnn_status sr_pass_layer_errors(sr_pass *pass, sr_layer_error *errors, const int32_t *ids,
                                 const int32_t *targets);

/* The losses of the lesson, and adds the gradient of scale * sum(losses + z-loss) to the
 * gradients. */
srnn_status sr_pass_gradients(sr_pass *pass, float *losses, const int32_t *ids,
                              const int32_t *targets, double scale);

/* The same for a step of training: losses and hits go to the step stats (device memory), nothing
 * comes back to the host, and nothing waits. Tally and scale are the same in every call of one
 * pass, because the first one is recorded where the device can do that. */
srnn_status sr_pass_step(sr_pass *pass, sr_step_stats *stats, const int32_t *ids,
                         const int32_t *targets, double scale);

/* From now on every forward pass raises largest (L, H), device memory, to the largest score of each
 * head. Fails where no layer has scores in the sense of sr_attention_layer_heads; others are left
 * alone. */
srnn_status sr_pass_watch_scores(sr_pass *pass, float *largest);

/* What makes the scores of a layer that is watched; false: it is not. */
bool sr_pass_heads(const sr_pass *pass, int layer, sr_head_rows *q, sr_head_rows *k);

/* The gradients: an arena laid out by the model's table, in backend memory. NULL unless train. */
float *sr_pass_gradient(sr_pass *pass);
srnn_status sr_pass_zero_gradient(sr_pass *pass);

#endif
