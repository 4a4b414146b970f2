/* part.h: rows whose tokens are divided among ranks: which part a pass has, and how what crosses
 * its ends travels.
 *
 * A layer hands to the next part what later tokens need of its own: the recurrent state after its
 * last token, and the last inputs of convolutions. Their gradients come back the same way. Without
 * a state parts exchange keys, values and queries (ring.h), or heads (heads.h). */
#ifndef SR_MODEL_LAYER_CONTEXT_PART_H
#define SR_MODEL_LAYER_CONTEXT_PART_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum sr_neighbour {
    SR_NEIGHBOUR_BEFORE, /* the part with the tokens before this one's */
    SR_NEIGHBOUR_AFTER,
} sr_neighbour;

/* What travels from part to part of a row in a layer. */
typedef enum sr_context_way {
    SR_CONTEXT_STATE, /* the recurrent state after a part's last token (crossing.h) */
    SR_CONTEXT_RING,  /* keys and values, or queries and their sums (ring.h) */
    SR_CONTEXT_HEADS, /* all operands, to where a head is computed over the whole row (heads.h) */
} sr_context_way;

typedef struct sr_part_message {
    int part; /* the other one */
    void *data;
    size_t bytes;
} sr_part_message;

typedef struct sr_row_part {
    int index, count; /* this part and their number; 0 or 1: rows are whole */
    int first;        /* tokens of each row before this part's */
    int T;            /* tokens of a whole row */

    /* Messages between parts, by their index; those to one part arrive in the order in which they
     * were sent. What is sent stays unchanged until settle has returned for the same address, or
     * for NULL, which stands for all. Only receive and settle wait; on a GPU work that is launched
     * later does. */
    srnn_status (*send)(void *context, int to, const void *data, size_t bytes);
    srnn_status (*receive)(void *context, int from, void *data, size_t bytes);
    srnn_status (*settle)(void *context, const void *data);
    /* Sends and receives at the same time: on a GPU a message waits for its receiver, so that parts
     * that all send first would wait for each other. NULL: sends never wait. */
    srnn_status (*exchange)(void *context, const sr_part_message *sends, int send_count,
                            const sr_part_message *arrivals, int arrival_count);
    /* Called before the host waits for the device: it fails where another rank hangs. NULL: no
     * call. Not called while a step is captured. */
    srnn_status (*wait)(void *context);
    void *context;
} sr_row_part;

static inline int sr_row_part_has(const sr_row_part *part, sr_neighbour which) {
    return which == SR_NEIGHBOUR_BEFORE ? part->index > 0 : part->index + 1 < part->count;
}

static inline int sr_row_part_next(const sr_row_part *part, sr_neighbour which) {
    return which == SR_NEIGHBOUR_BEFORE ? part->index - 1 : part->index + 1;
}

static inline srnn_status sr_row_part_exchange(const sr_row_part *part,
                                               const sr_part_message *sends, int send_count,
                                               const sr_part_message *arrivals, int arrival_count) {
    if (part->exchange)
        return part->exchange(part->context, sends, send_count, arrivals, arrival_count);
    for (int i = 0; i < send_count; i++)
        SR_TRY(part->send(part->context, sends[i].part, sends[i].data, sends[i].bytes));
    for (int i = 0; i < arrival_count; i++)
        SR_TRY(part->receive(part->context, arrivals[i].part, arrivals[i].data, arrivals[i].bytes));
    return SRNN_OK;
}

/* The first token of part `index` of `count` of a row of T tokens, and of index + 1 its end. */
static inline int sr_row_part_start(int T, int index, int count) {
    return (int)((int64_t)T * index / count);
}

#endif
