/* orders_verdict.h (private): the cost in words. */
#ifndef SR_ANALYSIS_ORDERS_VERDICT_H
#define SR_ANALYSIS_ORDERS_VERDICT_H

#include "analysis/orders.h"

/* Adds "verdict" to a record that has its "costs": for each tolerance a line on whether the model
 * could run with a finite state, then a line for each way of finding orders. It is positive only
 * for what was run, all layers together. */
srnn_status sr_orders_verdict(json_t *record, const sr_model_config *config);

#endif
