/* feed.h (private): decoding with an Avey model, token by token: all embeddings are kept for the
 * ranker. */
#ifndef SR_MODEL_AVEY_FEED_H
#define SR_MODEL_AVEY_FEED_H

#include "model/layer/kinds.h"
#include "model/model.h"

typedef struct sr_avey_feed sr_avey_feed;

/* B sequences side by side. The model must outlive it. */
srnn_status sr_avey_feed_create(sr_avey_feed **feed, sr_model *model, int B);
void sr_avey_feed_free(sr_avey_feed *feed);
srnn_status sr_avey_feed_reset(sr_avey_feed *feed);

/* Device memory: row b of x (B, C), `stride` numbers apart, = the last block's output for the
 * next token of sequence b, ids[b * id_stride]. */
srnn_status sr_avey_feed_token(sr_avey_feed *feed, float *x, int64_t stride, const int32_t *ids,
                               int64_t id_stride);

/* Bytes kept of the tokens fed so far. */
size_t sr_avey_feed_bytes(const sr_avey_feed *feed);

#endif
