/* relay.c: ranks that feed the pieces of one text in turn. */
#include "train/parallel/relay.h"

#include "base/memory.h"
#include "train/parallel/context.h"

#include <stdlib.h>

struct sr_relay {
    sr_context context;
};

srnn_status sr_relay_open(sr_relay **relay, sr_ranks *ranks) {
    void *memory;
    *relay = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **relay));
    *relay = memory;
    return sr_context_open_host(&(*relay)->context, ranks, ranks->count, ranks->count);
}

void sr_relay_close(sr_relay *relay) {
    if (!relay)
        return;
    sr_context_close(&relay->context);
    free(relay);
}

const sr_row_part *sr_relay_part(const sr_relay *relay) {
    return &relay->context.part;
}
