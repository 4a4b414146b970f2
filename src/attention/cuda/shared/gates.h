/* gates.h (private): the logarithm of a decay's gate from its number z, and its derivatives, for the
 * prologues of all kernels. In double: running sums of these are differences of large numbers. */
#ifndef SR_ATTENTION_CUDA_SHARED_GATES_H
#define SR_ATTENTION_CUDA_SHARED_GATES_H

#include "device/cuda/platform.h"
#include "equation/facts.h"
#include "equation/score.h"

#define SR_LEARNED_DECAY_DIVISOR 1024.0

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

SR_DEVICE double gate_rate(const sr_gate_rule &rule, int h) {
    return rule.a_log ? exp((double)rule.a_log[h]) : 1;
}

/* What is added to the operand of channel c; z includes it. */
SR_DEVICE double gate_bias(const sr_gate_rule &rule, int h, int c) {
    return rule.dt_bias ? (double)rule.dt_bias[rule.D > 0 ? h * rule.D + c : h] : 0;
}

/* Without the limit on it. */
SR_DEVICE double gate_unlimited(const sr_gate_rule &rule, int h, double z) {
    switch (rule.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return -sr_softplus(-z) / rule.divisor;
    case SRNN_DECAY_SOFTPLUS:
        return -gate_rate(rule, h) * sr_softplus(z);
    case SRNN_DECAY_BOUNDED:
        return -rule.bound * sr_sigmoid(gate_rate(rule, h) * z);
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -sr_softplus(z);
    case SRNN_DECAY_GIVEN:
        return z;
    }
    return z / SR_LEARNED_DECAY_DIVISOR;
}

SR_DEVICE double gate_logarithm(const sr_gate_rule &rule, int h, double z) {
    return sr_gate_limited(gate_unlimited(rule, h, z));
}

/* Its derivative by z. */
SR_DEVICE double gate_slope(const sr_gate_rule &rule, int h, double z) {
    if (sr_gate_is_limited(gate_unlimited(rule, h, z)))
        return 0;
    switch (rule.decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return sr_sigmoid(-z) / rule.divisor;
    case SRNN_DECAY_SOFTPLUS:
        return -gate_rate(rule, h) * sr_sigmoid(z);
    case SRNN_DECAY_BOUNDED: {
        const double rate = gate_rate(rule, h);
        return -rule.bound * rate * sr_sigmoid(rate * z) * sr_sigmoid(-rate * z);
    }
    case SRNN_DECAY_NEG_SOFTPLUS:
        return -sr_sigmoid(z);
    case SRNN_DECAY_GIVEN:
        return 1;
    }
    return 1 / SR_LEARNED_DECAY_DIVISOR;
}

/* Its derivative by a_log. */
SR_DEVICE double gate_rate_slope(const sr_gate_rule &rule, int h, double z) {
    const double logarithm = gate_unlimited(rule, h, z);
    if (sr_gate_is_limited(logarithm))
        return 0;
    if (rule.decay != SRNN_DECAY_BOUNDED)
        return logarithm;
    const double slope = gate_slope(rule, h, z);
    return slope == 0 ? 0 : slope * z; /* a flat gate's number may be infinite */
}

#endif
