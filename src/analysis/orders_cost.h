/* orders_cost.h (private): the cost of a whole model with finite states, in the record of
 * orders. */
#ifndef SR_ANALYSIS_ORDERS_COST_H
#define SR_ANALYSIS_ORDERS_COST_H

#include "analysis/orders.h"
#include "analysis/truncated/model.h"

/* The inputs for running truncated models. */
typedef struct sr_orders_work {
    const sr_orders_request *request;
    const sr_trial *trial;
    const sr_survey *survey;
    sr_cut *cuts; /* (L), buffer: the truncations of one run */
} sr_orders_work;

/* Adds "costs" to a record whose layers have "needed": the orders each criterion requires, and a
 * run of the model with all of them together. */
srnn_status sr_orders_cost(json_t *record, const sr_orders_work *work);

#endif
