/* evaluate.h: how well a model predicts: losses and accuracy over rows of tokens or text. */
#ifndef SR_TRAIN_EVALUATE_H
#define SR_TRAIN_EVALUATE_H

#include "data/rows/source.h"
#include "data/tokenizer/tokenizer.h"
#include "model/pass.h"
#include "ranks/ranks.h"

typedef struct sr_evaluation {
    double loss_sum; /* nats */
    int64_t targets;
    int64_t correct;      /* targets that were the most probable token */
    int64_t bytes;        /* of text behind the targets; 0: unknown */
    int64_t cut, skipped; /* texts that were longer than the model */
    /* that share the batches of a source or a text, and all receive the whole; NULL: none do */
    sr_ranks *ranks;
} sr_evaluation;

/* What becomes of a text that is longer than the model. */
typedef enum sr_long_text {
    SR_LONG_REFUSE = 0, /* SRNN_ERR_LIMIT */
    SR_LONG_CUT,        /* loses its beginning, but for the beginning-of-text token */
    SR_LONG_SKIP,
} sr_long_text;

/* Batches 0 .. batches-1 of B rows of a source's split. */
typedef struct sr_evaluation_rows {
    const sr_source *source;
    sr_split split;
    int B;
    int64_t batches;
    const sr_tokenizer *tokenizer; /* that the rows were made with, to count bytes; NULL: do not */
} sr_evaluation_rows;

/* Adds them up, each row once. */
srnn_status sr_evaluate_source(sr_evaluation *result, sr_model *model,
                               const sr_evaluation_rows *rows);

/* One batch of rows of T tokens, its documents ignored; logits (B, T, V), host memory, receives
 * them if not NULL. */
srnn_status sr_evaluate_batch(sr_evaluation *result, sr_model *model, const sr_batch *batch, int T,
                              float *logits);

/* A text cut into rows of T tokens, each predicted from those before it in its row; the first from
 * the beginning-of-text token, where there is one. */
srnn_status sr_evaluate_text(sr_evaluation *result, sr_model *model, const sr_tokenizer *tokenizer,
                             const sr_bytes *text, int B, int T);

/* Is the last word of `text` what the model would say, token by token, after the rest? Adds 1 to
 * targets, 1 to correct if so, and the word's loss. The space before the word is part of it, unless
 * it is part of the token before. */
srnn_status sr_evaluate_last_word(sr_evaluation *result, sr_model *model,
                                  const sr_tokenizer *tokenizer, const char *text, size_t bytes,
                                  sr_long_text longer);

#endif
