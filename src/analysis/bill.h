/* bill.h (private): what a layer with a state of finite order costs, against one with a cache of
 * keys and values. */
#ifndef SR_ANALYSIS_BILL_H
#define SR_ANALYSIS_BILL_H

#include "model/config/config.h"

/* Numbers are double: states soon have more bytes than whole numbers count. */
typedef struct sr_bill {
    double state_bytes;       /* float, orders 0 .. order in the symmetric basis, all kv heads */
    double cache_token_bytes; /* float keys and values of one token */
    double memory_tokens;     /* the context beyond which the state is smaller than the cache */
    double state_products;    /* multiplications and additions per token: update and reading */
    double cache_products;    /* the same per token and per token of context */
    double product_tokens;    /* the context beyond which the state is less work */
} sr_bill;

sr_bill sr_bill_of(const sr_model_config *config, int layer, int order);

#endif
