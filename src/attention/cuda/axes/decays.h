/* decays.h (private): gates of a decay (shared/gates.h) by the tokens of a call. */
#ifndef SR_ATTENTION_CUDA_AXES_DECAYS_H
#define SR_ATTENTION_CUDA_AXES_DECAYS_H

#include "attention/cuda/axes/call.h"

SR_DEVICE float axes_decay_bias(const sr_axes_call &call, int h, int c) {
    return gate_bias(call.gate, h, c);
}

/* z + dt_bias of channel c. */
SR_DEVICE double axes_decay_number(const sr_axes_call &call, int b, int h, int t, int c) {
    return (double)call.in.decay.at(b, h, t, c) + (double)axes_decay_bias(call, h, c);
}

#endif
