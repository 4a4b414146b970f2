/* orders_bill.h (private): the bill of a whole model in the record of orders. */
#ifndef SR_ANALYSIS_ORDERS_BILL_H
#define SR_ANALYSIS_ORDERS_BILL_H

#include "analysis/orders.h"
#include "analysis/truncated/model.h"

/* What truncated models are run with. */
typedef struct sr_orders_work {
    const sr_orders_request *request;
    const sr_trial *trial;
    const sr_survey *survey;
    sr_cut *cuts; /* (L): room for those of one run */
} sr_orders_work;

/* Adds "bill" to a record whose layers have "needed": what each criterion asks for, and the model
 * really run with all of that together. */
srnn_status sr_orders_bill(json_t *record, const sr_orders_work *work);

#endif
