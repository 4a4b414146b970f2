/* evaluation_parts.h: parts of an evaluation that ranks share; their sums are the same with
 * any number of ranks. */
#ifndef SR_TRAIN_PARALLEL_EVALUATION_PARTS_H
#define SR_TRAIN_PARALLEL_EVALUATION_PARTS_H

#include "train/evaluate.h"

/* Begins as { .ranks = .. }; free with sr_evaluation_parts_free. */
typedef struct sr_evaluation_parts {
    sr_ranks *ranks;    /* NULL: one */
    int64_t taken;      /* parts of all ranks so far */
    sr_evaluation *own; /* (count), owned: of this rank's parts */
    size_t count, capacity;
} sr_evaluation_parts;

/* The next part: *mine receives what it adds if it is this rank's, else it is NULL. */
srnn_status sr_evaluation_parts_next(sr_evaluation_parts *parts, sr_evaluation **mine);

/* Adds the parts of all ranks to `result`, in their order. */
srnn_status sr_evaluation_parts_end(sr_evaluation_parts *parts, sr_evaluation *result);
void sr_evaluation_parts_free(sr_evaluation_parts *parts);

#endif
