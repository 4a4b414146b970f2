/* source.h: where the batches of a run come from: files, text or a synthetic task.
 *
 * A source is a numbered, endless sequence of rows for each split. Step s of a run whose steps hold
 * G rows takes rows s*G .. s*G+G-1, so what a step sees depends on the source and the step alone,
 * and any step costs the same to reach. */
#ifndef SR_DATA_ROWS_SOURCE_H
#define SR_DATA_ROWS_SOURCE_H

#include "base/status.h"
#include "data/shards/split.h"

#include <stdbool.h>
#include <stdint.h>

/* One row to be filled. The source writes every element of ids and targets. */
typedef struct sr_token_row {
    int32_t *ids;     /* (T), each 0 .. vocab-1 */
    int32_t *targets; /* (T), the id that should follow, or -1: not counted */
    int64_t *starts;  /* (T), receives where each document of the row starts; the first is 0 */
    int64_t documents;
} sr_token_row;

/* Free with sr_source_free. Several threads may fill rows from one source at a time. */
typedef struct sr_source sr_source;
struct sr_source {
    int32_t vocab;
    int32_t T;
    bool exact;              /* rows go to a model as they are, without front tokens */
    int64_t rows[SR_SPLITS]; /* different rows in a split before it repeats; INT64_MAX: it never
                                does; 0: the split is empty */
    int64_t sum;             /* a checksum of all of the data, 0 or more; 0: rows are computed */
    int64_t stamp; /* of the sizes and times of its files, 0 or more: while it stays the same,
                                nobody has written to them */
    srnn_status (*fill)(const sr_source *source, sr_token_row *row, sr_split split, int64_t number);
    /* Reads all of the files, and fails if they do not hold what the sum says. NULL: it was made
     * from all that is used. */
    srnn_status (*verify)(const sr_source *source);
    void (*free)(sr_source *source);
};

void sr_source_free(sr_source *source);

/* The part of one step's batch that one process takes. Zero in rank and ranks: all of it. */
typedef struct sr_batch {
    int B;            /* rows here; the step holds G = B * ranks rows in all */
    int rank, ranks;  /* row b here is row rank + b * ranks of the step; ranks 0 counts as 1 */
    int32_t *ids;     /* (B, T) */
    int32_t *targets; /* (B, T), -1: not counted */
    /* (B * T + 1), receives documents + 1 numbers as srnn_problem.offsets has them */
    int64_t *offsets;
    int64_t documents;
} sr_batch;

/* Fills the batch for a step, 0 or more. Fails with SRNN_ERR_ARGUMENT if the split is empty or
 * there is no such step or rank. */
srnn_status sr_source_batch(const sr_source *source, sr_batch *batch, sr_split split, int64_t step);

/* Puts `front` empty tokens (id 0, no target) in front of every document of rows of T tokens. The
 * rows stay as long: what no longer fits is dropped. */
void sr_batch_front(sr_batch *batch, int T, int front);

/* Accuracy is correct / counted, summed over batches: a position counts if it has a target, and is
 * correct if that target has the largest logit (the smallest id among equals; a NaN is never the
 * largest). Adds to both numbers. */
void sr_accuracy_add(int64_t *correct, int64_t *counted, const float *logits /* (positions, V) */,
                     const int32_t *targets /* (positions) */, int64_t positions, int V);

#endif
