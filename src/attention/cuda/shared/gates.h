/* gates.h: the logarithm of a decay's gate from its number z, and its derivatives, for the
 * prologues of all kernels. In double, or in float where rows are bf16. */
#ifndef SR_ATTENTION_CUDA_SHARED_GATES_H
#define SR_ATTENTION_CUDA_SHARED_GATES_H

#include "device/cuda/platform.h"
#include "device/cuda/ptx.h"
#include "equation/facts.h"
#include "equation/score.h"

#define SR_LEARNED_DECAY_DIVISOR 1024.0
#define SR_GATE_LOG2_E           1.44269504088896341f

struct sr_gate_rule {
    srnn_decay decay;
    double divisor, bound;
    const float *a_log, *dt_bias; /* (heads); dt_bias (heads, D) where it is wide; NULL: 0 */
    int D;                        /* 0: dt_bias is not wide */
};

static inline sr_gate_rule sr_gate_rule_of(const srnn_attention *a, const srnn_operands *in,
                                           int D) {
    const bool rated = sr_decay_has_rate(a);
    return {a->decay,
            a->decay_divisor > 0 ? a->decay_divisor : 1.0,
            a->decay_bound,
            rated ? (const float *)in->a_log : nullptr,
            rated ? (const float *)in->dt_bias : nullptr,
            a->dt_width == SRNN_DT_WIDTH_CHANNEL ? D : 0};
}

SR_DEVICE double gate_sigmoid(double z) {
    return sr_sigmoid(z);
}
SR_DEVICE float gate_sigmoid(float z) {
    return reciprocal_fast(1 + exp2_fast(-z * SR_GATE_LOG2_E));
}

SR_DEVICE double gate_softplus(double z) {
    return sr_softplus(z);
}
SR_DEVICE float gate_softplus(float z) {
    return fmaxf(z, 0) + log1pf(exp2_fast(-fabsf(z) * SR_GATE_LOG2_E));
}

SR_DEVICE double gate_exp(double x) {
    return exp(x);
}
SR_DEVICE float gate_exp(float x) {
    return expf(x);
}

template <class N> SR_DEVICE N gate_rate(const sr_gate_rule &rule, int h) {
    return rule.a_log ? gate_exp((N)rule.a_log[h]) : 1;
}

/* What is added to the operand of channel c; z includes it. */
SR_DEVICE float gate_bias(const sr_gate_rule &rule, int h, int c) {
    return rule.dt_bias ? rule.dt_bias[rule.D > 0 ? h * rule.D + c : h] : 0;
}

/* Without the limit on it. */
template <class N> SR_DEVICE N gate_unlimited(const sr_gate_rule &rule, int h, N z) {
    switch (rule.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return -gate_softplus(-z) / (N)rule.divisor;
    case SRNN_DECAY_SOFTPLUS:
        return -gate_rate<N>(rule, h) * gate_softplus(z);
    case SRNN_DECAY_BOUNDED:
        return -(N)rule.bound * gate_sigmoid(gate_rate<N>(rule, h) * z);
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -gate_softplus(z);
    case SRNN_DECAY_GIVEN:
        return z;
    }
    return z / (N)SR_LEARNED_DECAY_DIVISOR;
}

/* The limit on it, which float holds exactly. */
SR_DEVICE double gate_limited(double x) {
    return sr_gate_limited(x);
}
SR_DEVICE float gate_limited(float x) {
    constexpr float most = (float)SR_GATE_LOGARITHM_MAX;
    return x < -most ? -most : x > most ? most : x;
}

SR_DEVICE bool gate_is_limited(double x) {
    return sr_gate_is_limited(x);
}
SR_DEVICE bool gate_is_limited(float x) {
    return fabsf(x) > (float)SR_GATE_LOGARITHM_MAX;
}

template <class N> SR_DEVICE N gate_logarithm(const sr_gate_rule &rule, int h, N z) {
    return gate_limited(gate_unlimited(rule, h, z));
}

/* Its derivative by z. */
template <class N> SR_DEVICE N gate_slope(const sr_gate_rule &rule, int h, N z) {
    if (gate_is_limited(gate_unlimited(rule, h, z)))
        return 0;
    switch (rule.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return gate_sigmoid(-z) / (N)rule.divisor;
    case SRNN_DECAY_SOFTPLUS:
        return -gate_rate<N>(rule, h) * gate_sigmoid(z);
    case SRNN_DECAY_BOUNDED: {
        const N rate = gate_rate<N>(rule, h);
        return -(N)rule.bound * rate * gate_sigmoid(rate * z) * gate_sigmoid(-rate * z);
    }
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -gate_sigmoid(z);
    case SRNN_DECAY_GIVEN:
        return 1;
    }
    return 1 / (N)SR_LEARNED_DECAY_DIVISOR;
}

/* Its derivative by a_log. */
template <class N> SR_DEVICE N gate_rate_slope(const sr_gate_rule &rule, int h, N z) {
    const N logarithm = gate_unlimited(rule, h, z);
    if (gate_is_limited(logarithm))
        return 0;
    if (rule.decay != SRNN_DECAY_BOUNDED)
        return logarithm;
    const N slope = gate_slope(rule, h, z);
    return slope == 0 ? 0 : slope * z; /* a flat gate's number may be infinite */
}

#endif
