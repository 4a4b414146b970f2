/* orders.h: which orders of the series of exp a model uses, and what a finite state would cost: one
 * record, described in docs/ORDERS.md. */
#ifndef SR_ANALYSIS_ORDERS_H
#define SR_ANALYSIS_ORDERS_H

#include "analysis/token_rows.h"
#include "model/model.h"

#include <jansson.h>

enum { SR_TOLERANCES = 2 };

typedef struct sr_orders_request {
    sr_model *model;                  /* must be on the CPU */
    sr_token_rows *rows;              /* the text */
    int64_t tokens;                   /* largest number of tokens for sizes and distributions, in
                                       * whole rows */
    int64_t trial_tokens;             /* the first of these, for truncation; at least one row */
    int orders;                       /* highest order measured: 1 .. SR_TAYLOR_ORDER_MAX */
    int most_order;                   /* highest order tried: 2 .. SR_TAYLOR_ORDER_MAX */
    double tolerances[SR_TOLERANCES]; /* relative, the wider one first */

    const sr_tokenizer *tokenizer; /* for generated text; NULL: none is generated */
    const sr_tokens *prompt;       /* not empty */
    int text_tokens;

    /* Called with the current activity and its progress (0 .. 1); may be NULL. Returns true to
     * stop. */
    bool (*progress)(void *context, const char *what, double share);
    void *progress_context;
} sr_orders_request;

/* *record: free with json_decref. */
srnn_status sr_orders_measure(json_t **record, const sr_orders_request *request);

#endif
