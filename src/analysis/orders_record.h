/* orders_record.h (private): the parts of the record of orders, as JSON. Every function returns a
 * new value, NULL if memory runs out. */
#ifndef SR_ANALYSIS_ORDERS_RECORD_H
#define SR_ANALYSIS_ORDERS_RECORD_H

#include "analysis/survey.h"

#include <jansson.h>

/* A number, null if it is not finite. */
json_t *sr_record_number(double x);
json_t *sr_record_numbers(const double *x, int count);

/* The orders needed for both tolerances; null where none is enough. */
json_t *sr_record_needed(const double *errors, int cuts, const double *tolerances);

/* One layer: its heads, and their sums. `attention` determines which centres were tried. */
json_t *sr_record_layer(const sr_survey *survey, int layer, const srnn_attention *attention,
                        const double *tolerances);

#endif
