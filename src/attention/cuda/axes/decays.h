/* decays.h (private): the logarithm of a gate from its number z, and its gradient. */
#ifndef SR_ATTENTION_CUDA_AXES_DECAYS_H
#define SR_ATTENTION_CUDA_AXES_DECAYS_H

#include "attention/cuda/axes/call.h"
#include "equation/score.h"

/* exp(a_log) and dt_bias of a head; 1 and 0 where the variant has none. */
SR_DEVICE double axes_decay_rate(const sr_axes_call &call, int h) {
    return call.decay_has_rate ? exp((double)call.in.a_log[h]) : 1;
}

SR_DEVICE double axes_decay_bias(const sr_axes_call &call, int h, int c) {
    if (!call.decay_has_rate)
        return 0;
    const bool wide = call.a.dt_width == SRNN_DT_WIDTH_CHANNEL;
    return (double)call.in.dt_bias[wide ? h * call.D + c : h];
}

/* z + dt_bias of channel c. */
SR_DEVICE double axes_decay_number(const sr_axes_call &call, int b, int h, int t, int c) {
    return (double)call.in.decay.at(b, h, t, c) + axes_decay_bias(call, h, c);
}

/* The logarithm of the gate of z, which has its bias, without the limit on it. */
SR_DEVICE double axes_gate_unlimited(const sr_axes_call &call, int h, double z) {
    switch (call.a.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return -sr_softplus(-z) / (call.a.decay_divisor > 0 ? call.a.decay_divisor : 1.0);
    case SRNN_DECAY_SOFTPLUS:
        return -axes_decay_rate(call, h) * sr_softplus(z);
    case SRNN_DECAY_BOUNDED:
        return -call.a.decay_bound * sr_sigmoid(axes_decay_rate(call, h) * z);
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -sr_softplus(z);
    case SRNN_DECAY_GIVEN:
        return z;
    }
    return z / SR_AXES_DECAY_DIVISOR;
}

SR_DEVICE double axes_gate_logarithm(const sr_axes_call &call, int h, double z) {
    return sr_gate_limited(axes_gate_unlimited(call, h, z));
}

/* Its derivative by z. */
SR_DEVICE double axes_gate_slope(const sr_axes_call &call, int h, double z) {
    if (sr_gate_is_limited(axes_gate_unlimited(call, h, z)))
        return 0;
    switch (call.a.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return sr_sigmoid(-z) / (call.a.decay_divisor > 0 ? call.a.decay_divisor : 1.0);
    case SRNN_DECAY_SOFTPLUS:
        return -axes_decay_rate(call, h) * sr_sigmoid(z);
    case SRNN_DECAY_BOUNDED: {
        const double rate = axes_decay_rate(call, h);
        return -call.a.decay_bound * rate * sr_sigmoid(rate * z) * sr_sigmoid(-rate * z);
    }
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -sr_sigmoid(z);
    case SRNN_DECAY_GIVEN:
        return 1;
    }
    return 1 / SR_AXES_DECAY_DIVISOR;
}

/* Its derivative by a_log. */
SR_DEVICE double axes_gate_rate_slope(const sr_axes_call &call, int h, double z) {
    const double logarithm = axes_gate_unlimited(call, h, z);
    if (sr_gate_is_limited(logarithm))
        return 0;
    if (call.a.decay != SRNN_DECAY_BOUNDED)
        return logarithm;
    const double slope = axes_gate_slope(call, h, z);
    return slope == 0 ? 0 : slope * z; /* a flat gate's number may be infinite */
}

#endif
