/* orders_show.h: the record of orders as text. */
#ifndef SR_CLI_MODEL_ORDERS_SHOW_H
#define SR_CLI_MODEL_ORDERS_SHOW_H

#include <jansson.h>
#include <stdbool.h>

/* Tables and a verdict on stdout. `reference`: sizes of orders as the reference defines them,
 * instead of ours. */
void orders_show(const json_t *record, bool reference);

/* One line per layer for each checkpoint of a run. */
void orders_show_checkpoints(const json_t *record);

#endif
