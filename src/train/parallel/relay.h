/* relay.h: ranks that feed the pieces of one text in turn (sr_session_feed_relayed). */
#ifndef SR_TRAIN_PARALLEL_RELAY_H
#define SR_TRAIN_PARALLEL_RELAY_H

#include "model/layer/context/part.h"
#include "ranks/ranks.h"

typedef struct sr_relay sr_relay;

/* All ranks take part. The ranks must outlive the relay. */
srnn_status sr_relay_open(sr_relay **relay, sr_ranks *ranks);
void sr_relay_close(sr_relay *relay);

/* Messages between the ranks, of host memory; a part's index is its rank. */
const sr_row_part *sr_relay_part(const sr_relay *relay);

#endif
