/* evaluate.h: losses and accuracy of a model over rows of tokens or text. */
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
    int64_t bytes;        /* of the targets' text; 0: unknown */
    int64_t cut, skipped; /* texts longer than the model's context */
    size_t state_bytes;   /* of a stream: what its states hold at the end */
    bool state_grows;     /* with the text: some layer keeps keys and values */
    /* share the batches of a source or a text; all receive the total. NULL: one process */
    sr_ranks *ranks;
    int context_ranks; /* of them that share each row of a source or a text; 0: 1 */
} sr_evaluation;

/* How to treat a text that is longer than the model's context. */
typedef enum sr_long_text {
    SR_LONG_REFUSE = 0, /* fail with SRNN_ERR_LIMIT */
    SR_LONG_CUT,        /* drop its beginning, except a BOS token */
    SR_LONG_SKIP,
} sr_long_text;

/* Batches 0 .. batches-1 of B rows of a source's split. */
typedef struct sr_evaluation_rows {
    const sr_source *source;
    sr_split split;
    int B;
    int64_t batches;
    const sr_tokenizer *tokenizer; /* the rows' tokenizer, to count bytes; NULL: bytes are not
                                    * counted */
} sr_evaluation_rows;

/* Adds the results of these batches; each row counts once. */
srnn_status sr_evaluate_source(sr_evaluation *result, sr_model *model,
                               const sr_evaluation_rows *rows);

/* One batch of rows of T tokens; document boundaries are ignored. `logits` (B, T, V), host memory,
 * is filled if not NULL. */
srnn_status sr_evaluate_batch(sr_evaluation *result, sr_model *model, const sr_batch *batch, int T,
                              float *logits);

/* Cuts a text into rows of T tokens. Each token is predicted from those before it in its row, the
 * first from the BOS token if there is one. */
srnn_status sr_evaluate_text(sr_evaluation *result, sr_model *model, const sr_tokenizer *tokenizer,
                             const sr_bytes *text, int B, int T);

/* The bytes of a text: `read` gives 1 .. size of them, and none only at its end. */
typedef struct sr_text_source {
    srnn_status (*read)(void *context, void *bytes, size_t size, size_t *got);
    void *context;
} sr_text_source;

/* A whole text as one sequence, fed in pieces of T tokens with the states carried on: what every
 * token is predicted from is the whole text before it. The text is read, encoded and evaluated
 * piece by piece: where all layers have a state, memory does not grow with it (see
 * sr_encoder_feed). */
srnn_status sr_evaluate_stream(sr_evaluation *result, sr_model *model,
                               const sr_tokenizer *tokenizer, const sr_text_source *text, int T);

/* Tests whether greedy decoding after the rest of `text` gives its last word. Adds 1 to targets, 1
 * to correct if so, and the word's loss. The space before the word belongs to the word, unless it
 * belongs to the token before. */
srnn_status sr_evaluate_last_word(sr_evaluation *result, sr_model *model,
                                  const sr_tokenizer *tokenizer, const char *text, size_t bytes,
                                  sr_long_text longer);

#endif
