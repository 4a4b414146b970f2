/* focus.h: where a model's attention looks, and which orders of exp it needs: what forward passes
 * alone say of each layer. */
#ifndef SR_ANALYSIS_FOCUS_H
#define SR_ANALYSIS_FOCUS_H

#include "model/model.h"

/* One layer: means over its heads and queries, whose weights are normalised to 1. */
typedef struct sr_focus {
    bool measured;      /* false: its score is not exp of a scaled q.k, and nothing is known */
    double entropy;     /* of the weights, nats */
    double distance;    /* tokens between query and key, weighted */
    double near;        /* weight of the last `window` tokens, the query's own included */
    double first;       /* weight of the first token */
    double order_error; /* relative error of the outputs with exp cut at order 2, about the best
                         * centre that a finite state can have */
    int order; /* from which on that error stays within the tolerance; -1: above most_order */
} sr_focus;

typedef struct sr_focus_request {
    sr_model *model; /* on the CPU */
    const int32_t *ids;
    const int32_t *targets; /* (rows, T) each; every row is one document */
    int rows, T;
    int window;
    int most_order; /* 2 .. SR_TAYLOR_ORDER_MAX */
    double tolerance;
} sr_focus_request;

/* distances (L, H) = the mean distance of each head alone; NAN where it is not measured. Window,
 * orders and tolerance of the request do not matter. */
srnn_status sr_focus_distances(double *distances, const sr_focus_request *request);

/* layers (L) receives the measures. */
srnn_status sr_focus_measure(sr_focus *layers, const sr_focus_request *request);

#endif
