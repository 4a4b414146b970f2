/* sampler.h: choosing the next token from logits. */
#ifndef SR_MODEL_SAMPLER_H
#define SR_MODEL_SAMPLER_H

#include "base/status.h"

typedef struct sr_sampler_settings {
    double temperature; /* 0: the most probable token */
    int top_k;          /* only the k most probable; 0: all */
    double top_p;       /* of those, only the most probable that make up p together; 0 or 1: all */
    uint64_t seed;
} sr_sampler_settings;

typedef struct sr_sampler sr_sampler;

srnn_status sr_sampler_create(sr_sampler **sampler, const sr_sampler_settings *settings, int V);
void sr_sampler_free(sr_sampler *sampler);

/* The token after `position` tokens of sequence `sequence`. The same settings, numbers and logits
 * (V) always give the same token; of equally probable ones the first. A NaN is never chosen while
 * there is a number. */
int32_t sr_sampler_choose(sr_sampler *sampler, const float *logits, uint64_t sequence,
                          uint64_t position);

#endif
