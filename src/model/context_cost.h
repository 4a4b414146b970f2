/* context_cost.h: what context ranks exchange and compute for a batch, counted. */
#ifndef SR_MODEL_CONTEXT_COST_H
#define SR_MODEL_CONTEXT_COST_H

#include "model/layer/context/part.h"
#include "model/model.h"

/* A batch of B rows of T tokens, divided among this many ranks. */
typedef struct sr_context_batch {
    int B, T, ranks;
    srnn_dtype number;   /* of activations */
    srnn_device *device; /* that computes; NULL: the CPU */
} sr_context_batch;

/* One layer; forward and backward. */
typedef struct sr_context_cost {
    bool refused; /* training refuses to divide rows of such a layer; all numbers are NAN */
    sr_context_way way;
    double state_bytes;        /* of the states at one cut, in one direction; NAN: there are none */
    double input_bytes;        /* of the last inputs of convolutions and token shifts, the same */
    double ring_bytes;         /* of keys, values, queries, sums and gradients; NAN: no ring */
    double ring_forward_bytes; /* of them, forward */
    double heads_bytes;  /* of operands and outputs of heads, and gradients: half of them forward */
    double passed_bytes; /* what this layer sends at all cuts, forward and backward */
    double state_flops;  /* of the equation by states, on one rank, forward; INFINITY: no state */
    double pair_flops;   /* of the equation by pairs, the same, the ranks sharing them evenly */
} sr_context_cost;

/* Fails for a model without attention layers. */
srnn_status sr_context_cost_of(sr_context_cost *cost, const sr_model_config *config, int layer,
                               const sr_context_batch *batch);

#endif
