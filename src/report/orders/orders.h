/* orders.h: the record of `softrnn orders` as one self-contained page. */
#ifndef SR_REPORT_ORDERS_ORDERS_H
#define SR_REPORT_ORDERS_ORDERS_H

#include "base/status.h"

#include <jansson.h>
#include <stddef.h>

/* Reads from/orders.json (docs/ORDERS.md), of a model or of a run's checkpoints, and writes
 * report.html into `folder`, which must exist, like sr_report_write. */
srnn_status sr_report_write_orders(const char *from, const char *folder, size_t *bytes);

/* *record = from/orders.json, of a model or of a run; the caller decrefs it. */
srnn_status sr_orders_read(json_t **record, const char *from);

/* The part about one model: the whole record, or a run's last checkpoint; NULL if there is none. */
const json_t *sr_orders_model_of(const json_t *record);

#endif
