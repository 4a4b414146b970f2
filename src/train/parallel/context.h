/* context.h (private): context parallelism: groups of ranks that share the tokens of each row.
 *
 * Rank r has part r mod P of the rows that its group r / P computes, P being the ranks of a group.
 * What one rank computes of one batch is a unit: unit u of a step is part u mod P of batch u / P,
 * and belongs to rank u modulo the number of ranks. */
#ifndef SR_TRAIN_PARALLEL_CONTEXT_H
#define SR_TRAIN_PARALLEL_CONTEXT_H

#include "model/layer/context/part.h"
#include "ops/backend.h"
#include "ops/collective.h"
#include "ranks/ranks.h"

typedef struct sr_context_send {
    sr_link_request request;
    const void *data;
} sr_context_send;

typedef struct sr_context {
    sr_ranks *ranks;
    int count;  /* ranks that share a row; 1: rows are whole */
    int tokens; /* of each row on this rank */
    sr_row_part part;
    sr_context_send *sends; /* (pending), owned: what other parts have not received yet */
    size_t pending, capacity;
    sr_link_request *arrivals; /* (arrivals_capacity), owned: pieces of what is received */
    size_t arrivals_capacity;
    sr_collective *collective; /* of all ranks, on GPUs; else NULL */
} sr_context;

/* Fails where this number of ranks cannot be divided into groups of `count`, or rows of T tokens
 * into as many parts. Collective. The context keeps its address; close it in any case. */
srnn_status sr_context_open(sr_context *context, sr_ranks *ranks, const sr_backend *backend,
                            int count, int T);
/* The same with messages of host memory, whatever the device. */
srnn_status sr_context_open_host(sr_context *context, sr_ranks *ranks, int count, int T);
void sr_context_close(sr_context *context);

/* Which part of the rows a pass has; NULL: they are whole. */
static inline const sr_row_part *sr_context_part(const sr_context *context) {
    return context->count > 1 ? &context->part : NULL;
}

#endif
