/* evaluation_parts.h: an evaluation divided among ranks; the sums do not depend on their number. */
#ifndef SR_TRAIN_PARALLEL_EVALUATION_PARTS_H
#define SR_TRAIN_PARALLEL_EVALUATION_PARTS_H

#include "train/evaluate.h"

/* Initialise as { .ranks = .. }; free with sr_evaluation_parts_free. */
typedef struct sr_evaluation_parts {
    sr_ranks *ranks;    /* NULL: one rank */
    int64_t taken;      /* parts of all ranks so far */
    sr_evaluation *own; /* (count), owned: results of this rank's parts */
    size_t count, capacity;
} sr_evaluation_parts;

/* The next part: *mine is where to add its result if it is this rank's, else NULL. */
srnn_status sr_evaluation_parts_next(sr_evaluation_parts *parts, sr_evaluation **mine);

/* Adds the results of all ranks to `result`, in the order of the parts. */
srnn_status sr_evaluation_parts_end(sr_evaluation_parts *parts, sr_evaluation *result);
void sr_evaluation_parts_free(sr_evaluation_parts *parts);

#endif
