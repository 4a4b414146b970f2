/* state_cost.h (private): the cost of a layer with a state of finite order, compared with a KV
 * cache. */
#ifndef SR_ANALYSIS_STATE_COST_H
#define SR_ANALYSIS_STATE_COST_H

#include "model/config/config.h"

/* Values are double: sizes of states can exceed 64-bit integers. */
typedef struct sr_state_cost {
    double state_bytes;       /* float, orders 0 .. order in the symmetric basis, all KV heads */
    double cache_token_bytes; /* float keys and values of one token */
    double memory_tokens;     /* context length above which the state is smaller than the cache */
    double state_products;    /* multiplications and additions per token: update and reading */
    double cache_products;    /* the same per token and per token of context */
    double product_tokens;    /* context length above which the state needs fewer operations */
} sr_state_cost;

sr_state_cost sr_state_cost_of(const sr_model_config *config, int layer, int order);

#endif
