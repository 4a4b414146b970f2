/* decays.h (private): the logarithm of a gate from its number z, and its gradient; in double, or in
 * float where rows are bf16. */
#ifndef SR_ATTENTION_CUDA_AXES_DECAYS_H
#define SR_ATTENTION_CUDA_AXES_DECAYS_H

#include "attention/cuda/axes/call.h"
#include "equation/score.h"

SR_DEVICE double axes_sigmoid(double z) {
    return sr_sigmoid(z);
}
SR_DEVICE float axes_sigmoid(float z) {
    return reciprocal_fast(1 + exp2_fast(-z * SR_AXES_LOG2_E));
}

SR_DEVICE double axes_softplus(double z) {
    return sr_softplus(z);
}
SR_DEVICE float axes_softplus(float z) {
    return fmaxf(z, 0) + log1pf(exp2_fast(-fabsf(z) * SR_AXES_LOG2_E));
}

SR_DEVICE double axes_exp(double x) {
    return exp(x);
}
SR_DEVICE float axes_exp(float x) {
    return expf(x);
}

/* exp(a_log) and dt_bias of a head; 1 and 0 where the variant has none. */
template <class N> SR_DEVICE N axes_decay_rate(const sr_axes_call &call, int h) {
    return call.decay_has_rate ? axes_exp((N)call.in.a_log[h]) : 1;
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
template <class N> SR_DEVICE N axes_gate_unlimited(const sr_axes_call &call, int h, N z) {
    switch (call.a.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return -axes_softplus(-z) / (N)(call.a.decay_divisor > 0 ? call.a.decay_divisor : 1.0);
    case SRNN_DECAY_SOFTPLUS:
        return -axes_decay_rate<N>(call, h) * axes_softplus(z);
    case SRNN_DECAY_BOUNDED:
        return -(N)call.a.decay_bound * axes_sigmoid(axes_decay_rate<N>(call, h) * z);
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -axes_softplus(z);
    case SRNN_DECAY_GIVEN:
        return z;
    }
    return z / (N)SR_AXES_DECAY_DIVISOR;
}

template <class N> SR_DEVICE N axes_gate_logarithm(const sr_axes_call &call, int h, N z) {
    return (N)sr_gate_limited((double)axes_gate_unlimited(call, h, z));
}

/* Its derivative by z. */
template <class N> SR_DEVICE N axes_gate_slope(const sr_axes_call &call, int h, N z) {
    if (sr_gate_is_limited((double)axes_gate_unlimited(call, h, z)))
        return 0;
    switch (call.a.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return axes_sigmoid(-z) / (N)(call.a.decay_divisor > 0 ? call.a.decay_divisor : 1.0);
    case SRNN_DECAY_SOFTPLUS:
        return -axes_decay_rate<N>(call, h) * axes_sigmoid(z);
    case SRNN_DECAY_BOUNDED: {
        const N rate = axes_decay_rate<N>(call, h);
        return -(N)call.a.decay_bound * rate * axes_sigmoid(rate * z) * axes_sigmoid(-rate * z);
    }
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -axes_sigmoid(z);
    case SRNN_DECAY_GIVEN:
        return 1;
    }
    return 1 / (N)SR_AXES_DECAY_DIVISOR;
}

/* Its derivative by a_log. */
template <class N> SR_DEVICE N axes_gate_rate_slope(const sr_axes_call &call, int h, N z) {
    const N logarithm = axes_gate_unlimited(call, h, z);
    if (sr_gate_is_limited((double)logarithm))
        return 0;
    if (call.a.decay != SRNN_DECAY_BOUNDED)
        return logarithm;
    const N slope = axes_gate_slope(call, h, z);
    return slope == 0 ? 0 : slope * z; /* a flat gate's number may be infinite */
}

#endif
