/* context_cost.c: what context ranks exchange and compute for a batch. */
#include "model/context_cost.h"

#include "attention/earlier.h"
#include "model/layer/context/crossing.h"
#include "model/layer/context/heads.h"
#include "model/layer/context/ring.h"
#include "model/mixers.h"

#include <math.h>

srnn_status sr_context_cost_of(sr_context_cost *cost, const sr_model_config *config, int layer,
                               const sr_context_batch *batch) {
    const srnn_attention *a = &config->attention[layer];
    if (!sr_mixer_row_of(config)->attends)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s has no rows to divide among context ranks",
                       sr_mixer_row_of(config)->title);
    if (!sr_has_equation(a) || config->parallel) {
        *cost = (sr_context_cost){.refused = true,
                                  .state_bytes = NAN,
                                  .input_bytes = NAN,
                                  .ring_bytes = NAN,
                                  .ring_forward_bytes = NAN,
                                  .heads_bytes = NAN,
                                  .passed_bytes = NAN,
                                  .state_flops = NAN,
                                  .pair_flops = NAN};
        return SRNN_OK;
    }
    const sr_layer_dims dims = sr_model_config_dims(config, layer);
    const sr_layer_flops flops = sr_attention_layer_flops(config, layer, batch->T);
    const double tokens = (double)batch->B * batch->T / batch->ranks;
    sr_layer_wiring wiring;
    sr_crossing_bytes bytes;
    SR_TRY(sr_layer_wire(&wiring, a, &dims));
    srnn_problem problem = sr_layer_problem(a, &dims);
    problem.B = batch->B;
    problem.dtype = batch->number;
    problem.device = batch->device;
    const double number = (double)sr_element_bytes(batch->number);
    const sr_ring_numbers ring = sr_ring_numbers_of(&problem, batch->T, batch->ranks);
    const double rings = sr_attention_earlier_refusal(a) ? NAN : (double)batch->B * number;
    const sr_crossing_rows rows = {batch->T, batch->ranks};
    sr_crossing_measure(&bytes, &problem, &wiring, dims.C, rows);
    size_t state;
    const bool has_state = sr_crossing_state_bytes(&state, &problem) == SRNN_OK;
    double inputs = (double)bytes.shift;
    for (int i = 0; i < wiring.conv_count; i++)
        inputs += (double)bytes.convs[i];
    *cost = (sr_context_cost){.way = bytes.way,
                              .state_bytes = has_state ? (double)state : NAN,
                              .input_bytes = inputs,
                              .ring_bytes = rings * (ring.forward + ring.backward),
                              .ring_forward_bytes = rings * ring.forward,
                              .heads_bytes = 2 * number *
                                             sr_heads_numbers_of(&problem, batch->T, batch->ranks),
                              .state_flops = flops.state * tokens,
                              .pair_flops = flops.pairs * tokens};
    const double cuts = 2.0 * (batch->ranks - 1);
    cost->passed_bytes = cuts * inputs + (bytes.way == SR_CONTEXT_STATE  ? cuts * cost->state_bytes
                                          : bytes.way == SR_CONTEXT_RING ? cost->ring_bytes
                                                                         : cost->heads_bytes);
    return SRNN_OK;
}
