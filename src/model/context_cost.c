/* context_cost.c: what context ranks exchange and compute for a batch. */
#include "model/context_cost.h"

#include "attention/earlier.h"
#include "model/layer/context/crossing.h"
#include "model/layer/context/ring.h"
#include "model/mixers.h"

#include <math.h>

/* Keys and values of a part visit the parts after it that see them, in backward once more, and
 * their gradients return. */
static double ring_bytes(const sr_layer_sizes *s, const srnn_attention *a,
                         const sr_context_batch *batch) {
    const double tokens = (double)batch->B * batch->T / batch->ranks;
    const double numbers = tokens * (double)s->Hkv * (s->D + s->Dv);
    double visits = 0;
    if (sr_attention_earlier_refusal(a))
        return NAN;
    for (int index = 0; index < batch->ranks; index++)
        visits += sr_ring_blocks(a, index, batch->T / batch->ranks);
    return 3 * visits * numbers * (double)sr_element_bytes(batch->number);
}

srnn_status sr_context_cost_of(sr_context_cost *cost, const sr_model_config *config, int layer,
                               const sr_context_batch *batch) {
    const srnn_attention *a = &config->attention[layer];
    if (!sr_mixer_row_of(config)->attends)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s has no rows to divide among context ranks",
                       sr_mixer_row_of(config)->title);
    const sr_layer_dims dims = sr_model_config_dims(config, layer);
    const sr_layer_flops flops = sr_attention_layer_flops(config, layer, batch->T);
    const double tokens = (double)batch->B * batch->T / batch->ranks;
    sr_layer_wiring wiring;
    sr_crossing_bytes bytes;
    SR_TRY(sr_layer_wire(&wiring, a, &dims));
    srnn_problem problem = sr_layer_problem(a, &dims);
    problem.B = batch->B;
    problem.dtype = batch->number;
    const bool known = sr_crossing_measure(&bytes, &problem, &wiring, dims.C) == SRNN_OK;
    double inputs = (double)bytes.shift;
    for (int i = 0; i < wiring.conv_count; i++)
        inputs += (double)bytes.convs[i];
    *cost = (sr_context_cost){.way = !known        ? SR_CONTEXT_NONE
                                     : bytes.state ? SR_CONTEXT_STATE
                                                   : SR_CONTEXT_RING,
                              .state_bytes = bytes.state ? (double)bytes.state : NAN,
                              .input_bytes = inputs,
                              .ring_bytes = ring_bytes(&config->sizes[layer], a, batch),
                              .state_flops = flops.state * tokens,
                              .pair_flops = flops.pairs * tokens};
    const double cuts = 2.0 * (batch->ranks - 1);
    cost->passed_bytes =
        bytes.state ? cuts * (cost->state_bytes + inputs) : cuts * inputs + cost->ring_bytes;
    return SRNN_OK;
}
