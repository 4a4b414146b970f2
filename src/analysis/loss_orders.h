/* loss_orders.h: which order of exp each layer of a model needs so that the model loses little:
 * that layer alone is cut, the model is run, and its losses are compared row by row. */
#ifndef SR_ANALYSIS_LOSS_ORDERS_H
#define SR_ANALYSIS_LOSS_ORDERS_H

#include "base/statistics.h"
#include "model/model.h"

enum { SR_LOSS_ORDERS = 38 }; /* at most that many orders are tried */

/* How much the loss rises if exp in one layer is cut at this order: nats per target, the mean over
 * rows with its 95 % interval; infinite where a row's loss is not finite. */
typedef struct sr_loss_rise {
    int order;
    sr_interval interval;
} sr_loss_rise;

/* One layer, about the centre that needs the lowest order of those that a finite state can have. */
typedef struct sr_loss_order {
    bool measured;      /* false: its score is not exp of a scaled q.k, and nothing is known */
    const char *centre; /* its name, static */
    int order;     /* from which on the mean rise is within the tolerance; -1: above all tried */
    int low, high; /* from which on the lower, and the upper, end of the interval is; -1 */
    int count;
    sr_loss_rise rises[SR_LOSS_ORDERS]; /* (count): those tried, which end early once the rise is
                                         * next to nothing */
} sr_loss_order;

typedef struct sr_loss_orders_request {
    sr_model *model; /* on the CPU */

    /* (rows + fit_rows, T) each; every row is one document. Those after `rows` are what the centres
     * of the heads are fitted to; without such rows they are fitted to those that are judged. */
    const int32_t *ids, *targets;
    int rows, fit_rows, T;
    int most_order;   /* 2 .. SR_TAYLOR_ORDER_MAX */
    double tolerance; /* nats */

    /* Called after each layer; may be NULL. Returns true to stop. */
    bool (*progress)(void *context);
    void *context;
} sr_loss_orders_request;

/* layers (L) receives the orders. */
srnn_status sr_loss_orders_measure(sr_loss_order *layers, const sr_loss_orders_request *request);

#endif
