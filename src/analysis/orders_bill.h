/* orders_bill.h: the bill of a whole model in the record of orders, with a verdict in words. */
#ifndef SR_ANALYSIS_ORDERS_BILL_H
#define SR_ANALYSIS_ORDERS_BILL_H

#include "model/config.h"

#include <jansson.h>

/* Adds "bill" and "verdict" to a record whose "layers" have "needed". */
srnn_status sr_orders_bill(json_t *record, const sr_model_config *config);

#endif
