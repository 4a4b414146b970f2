/* source.h: the source of a run's batches: files, text or a synthetic task.
 *
 * A source is a numbered, endless sequence of rows for each split. Step s of a run with G rows per
 * step takes rows s*G .. s*G+G-1: a step depends on the source and its number alone, and can be
 * reached directly. */
#ifndef SR_DATA_ROWS_SOURCE_H
#define SR_DATA_ROWS_SOURCE_H

#include "base/status.h"
#include "data/shards/split.h"

#include <stdbool.h>
#include <stdint.h>

/* One row to be filled. The source writes every element of ids and targets. */
typedef struct sr_token_row {
    int32_t *ids;     /* (T), each 0 .. vocab-1 */
    int32_t *targets; /* (T), the next id, or -1: not counted */
    int64_t *starts;  /* (T), receives the start of each document in the row; the first is 0 */
    int64_t documents;
} sr_token_row;

/* Free with sr_source_free. Several threads may fill rows from one source at a time. */
typedef struct sr_source sr_source;
struct sr_source {
    int32_t vocab;
    int32_t T;
    bool exact;              /* rows are used as they are, without prefix tokens */
    int64_t rows[SR_SPLITS]; /* different rows in a split before it repeats; INT64_MAX: it never
                              * repeats; 0: the split is empty */
    int64_t sum;             /* a checksum of all of the data, 0 or more; 0: rows are generated */
    int64_t stamp; /* hash of the sizes and times of its files, 0 or more: unchanged means that the
                    * files were not written to */
    srnn_status (*fill)(const sr_source *source, sr_token_row *row, sr_split split, int64_t number);
    /* Reads all files and fails if they do not match the sum. NULL: the sum was computed from all
     * data that is used. */
    srnn_status (*verify)(const sr_source *source);
    void (*free)(sr_source *source);
};

void sr_source_free(sr_source *source);

/* One process's part of a step's batch. rank and ranks both 0: all of it. */
typedef struct sr_batch {
    int B;            /* rows here; the step has G = B * ranks rows in all */
    int rank, ranks;  /* row b here is row rank + b * ranks of the step; ranks 0 counts as 1 */
    int32_t *ids;     /* (B, T) */
    int32_t *targets; /* (B, T), -1: not counted */
    /* (B * T + 1), receives documents + 1 numbers as in srnn_problem.offsets */
    int64_t *offsets;
    int64_t documents;
} sr_batch;

/* Fills the batch for a step, 0 or more. Fails with SRNN_ERR_ARGUMENT if the split is empty or
 * there is no such step or rank. */
srnn_status sr_source_batch(const sr_source *source, sr_batch *batch, sr_split split, int64_t step);

/* Inserts `front` empty tokens (id 0, no target) before every document of rows of T tokens. The row
 * length stays the same: what no longer fits is dropped. */
void sr_batch_front(sr_batch *batch, int T, int front);

/* Reduces ids and targets to tokens first .. first+count-1 of each row of T, in place. Documents
 * remain those of whole rows. */
void sr_batch_cut(sr_batch *batch, int T, int first, int count);

/* Accuracy is correct / counted, summed over batches: a position counts if it has a target, and is
 * correct if that target has the largest logit (the smallest id among equals; a NaN is never the
 * largest). Adds to both numbers. */
void sr_accuracy_add(int64_t *correct, int64_t *counted, const float *logits /* (positions, V) */,
                     const int32_t *targets /* (positions) */, int64_t positions, int V);

#endif
