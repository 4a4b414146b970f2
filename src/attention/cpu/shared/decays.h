/* decays.h (private): what a decay makes of its numbers z, for the prologue and its backward. */
#ifndef SR_ATTENTION_CPU_SHARED_DECAYS_H
#define SR_ATTENTION_CPU_SHARED_DECAYS_H

#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/simd.h"
#include "equation/facts.h"

#include <math.h>

/* The a_log and dt_bias of a head; both are 0 where the variant has none. */
typedef struct decay_rate {
    double rate;      /* exp(a_log) */
    const real *bias; /* (1), or (D) where it is wide; NULL: 0 */
    bool wide;
} decay_rate;

static inline decay_rate decay_rate_of(const srnn_problem *p, const srnn_operands *in, int head) {
    const srnn_attention *a = &p->attention;
    const bool wide = a->dt_width == SRNN_DT_WIDTH_CHANNEL;
    if (!sr_decay_has_rate(a))
        return (decay_rate){.rate = 1.0};
    return (decay_rate){.rate = exp((double)((const real *)in->a_log)[head]),
                        .bias = (const real *)in->dt_bias + (wide ? (int64_t)head * p->D : head),
                        .wide = wide && p->D > 1};
}

/* A vector of z + dt_bias from number i of n on. */
static inline vec decay_biased(const decay_rate *rate, const real *z, int i, int n) {
    const vec own = vec_load_part(z + i, n - i);
    if (!rate->bias)
        return own;
    return own + (rate->wide ? vec_load_part(rate->bias + i, n - i) : vec_all(*rate->bias));
}

/* out (n): the logarithms of gates from their numbers z (n), without the limit on them. */
static inline void gate_logarithms(double *out, const real *z, int n, const srnn_attention *a,
                                   const decay_rate *rate) {
    double factor = 1.0 / DECAY_DIVISOR;
    switch (a->decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        for (int i = 0; i < n; i++)
            out[i] = (double)z[i];
        break;
    case SRNN_DECAY_GIVEN:
        factor = 1.0;
        for (int i = 0; i < n; i++)
            out[i] = (double)z[i];
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        factor = -1.0 / (a->decay_divisor > 0.0 ? a->decay_divisor : 1.0);
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(out + i, vec_softplus(-vec_load_part(z + i, n - i)), n - i);
        break;
    case SRNN_DECAY_SOFTPLUS:
        factor = -rate->rate;
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(out + i, vec_softplus(decay_biased(rate, z, i, n)), n - i);
        break;
    case SRNN_DECAY_BOUNDED:
        factor = -a->decay_bound;
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(out + i, vec_sigmoid((real)rate->rate * decay_biased(rate, z, i, n)),
                           n - i);
        break;
    case SRNN_DECAY_NEG_SOFTPLUS:
        factor = -1.0;
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(out + i, vec_softplus(vec_load_part(z + i, n - i)), n - i);
        break;
    }
    for (int i = 0; i < n; i++)
        out[i] *= factor;
}

#endif
