/* state_cost.c: the cost of a layer with a state of finite order, compared with a KV cache. */
#include "analysis/state_cost.h"

#include "analysis/truncated/model.h"

#include <math.h>

/* The elements of one KV head's state. Beyond the range of size_t: all multisets of at most `order`
 * of D indices, C(D + order, order) of them, times the columns. */
static double state_numbers(const srnn_attention *cut, int D, double columns) {
    const size_t whole = srnn_attention_state_numbers(cut, D, D);
    if (whole == 0)
        return INFINITY; /* no finite state at any order */
    if (whole != SIZE_MAX)
        return (double)whole;
    double multisets = 1;
    for (int n = 1; n <= cut->order; n++)
        multisets *= (double)(D + n) / n;
    return multisets * columns;
}

sr_state_cost sr_state_cost_of(const sr_model_config *c, int layer, int order) {
    const srnn_attention cut = sr_attention_truncated(&c->attention[layer], order);
    const double columns = c->D + sr_needs_row_sum(&cut);
    const double numbers = state_numbers(&cut, c->D, columns);
    sr_state_cost cost = {
        .state_bytes = c->Hkv * numbers * sizeof(float),
        .cache_token_bytes = 2.0 * c->Hkv * c->D * sizeof(float),
        /* The features of each k and q, then one product with every element of the
                     * state. */
        .state_products = (c->H + c->Hkv) * (numbers + numbers / columns),
        .cache_products = 2.0 * c->H * c->D};
    cost.memory_tokens = ceil(cost.state_bytes / cost.cache_token_bytes);
    cost.product_tokens = ceil(cost.state_products / cost.cache_products);
    return cost;
}
