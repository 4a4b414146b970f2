/* bill.c: what a layer with a state of finite order costs, against one with a cache. */
#include "analysis/bill.h"

#include "analysis/truncated_model.h"

#include <math.h>

sr_bill sr_bill_of(const sr_model_config *c, int layer, int order) {
    const srnn_attention cut = sr_attention_truncated(&c->attention[layer], order);
    const size_t whole = srnn_attention_state_numbers(&cut, c->D, c->D);
    const double numbers = whole == 0 || whole == SIZE_MAX ? INFINITY : (double)whole;
    const double columns = c->D + sr_needs_row_sum(&cut);
    sr_bill bill = {.state_bytes = c->Hkv * numbers * sizeof(float),
                    .cache_token_bytes = 2.0 * c->Hkv * c->D * sizeof(float),
                    /* The features of each k and q, then one product with every number. */
                    .state_products = (c->H + c->Hkv) * (numbers + numbers / columns),
                    .cache_products = 2.0 * c->H * c->D};
    bill.memory_tokens = ceil(bill.state_bytes / bill.cache_token_bytes);
    bill.product_tokens = ceil(bill.state_products / bill.cache_products);
    return bill;
}
