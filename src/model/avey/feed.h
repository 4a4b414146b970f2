/* feed.h (private): an Avey model fed token by token: it keeps every embedding, which its ranker
 * reads. */
#ifndef SR_MODEL_AVEY_FEED_H
#define SR_MODEL_AVEY_FEED_H

#include "model/layer/kinds.h"
#include "model/model.h"

typedef struct sr_avey_feed sr_avey_feed;

/* B sequences side by side. The model must outlive it. */
srnn_status sr_avey_feed_create(sr_avey_feed **feed, sr_model *model, int B);
void sr_avey_feed_free(sr_avey_feed *feed);
srnn_status sr_avey_feed_reset(sr_avey_feed *feed);

/* Device memory: row b of x (B, C), `stride` numbers apart, = what the blocks make of the next
 * token of sequence b, which is ids[b * id_stride]. */
srnn_status sr_avey_feed_token(sr_avey_feed *feed, float *x, int64_t stride, const int32_t *ids,
                               int64_t id_stride);

/* Bytes of what it keeps of the tokens fed so far. */
size_t sr_avey_feed_bytes(const sr_avey_feed *feed);

#endif
