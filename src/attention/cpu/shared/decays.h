/* decays.h (private): what a decay makes of its numbers z before its function, for the prologue and
 * its backward. */
#ifndef SR_ATTENTION_CPU_SHARED_DECAYS_H
#define SR_ATTENTION_CPU_SHARED_DECAYS_H

#include "attention/cpu/shared/simd.h"
#include "equation/facts.h"

#include <math.h>

/* The a_log and dt_bias of a head; both are 0 where the variant has none. */
typedef struct decay_rate {
    double rate;      /* exp(a_log) */
    const real *bias; /* (1), or (numbers of a decay) where it is wide; NULL: 0 */
    bool wide;
} decay_rate;

static inline decay_rate decay_rate_of(const srnn_problem *p, const srnn_operands *in, int head) {
    const srnn_attention *a = &p->attention;
    const bool wide = a->dt_width == SRNN_DT_WIDTH_CHANNEL;
    if (!sr_decay_has_rate(a))
        return (decay_rate){.rate = 1.0};
    return (decay_rate){.rate = exp((double)((const real *)in->a_log)[head]),
                        .bias = (const real *)in->dt_bias + (wide ? (int64_t)head * p->D : head),
                        .wide = wide};
}

/* A vector of z + dt_bias from number i of n on. */
static inline vec decay_biased(const decay_rate *rate, const real *z, int i, int n) {
    const vec own = vec_load_part(z + i, n - i);
    if (!rate->bias)
        return own;
    return own + (rate->wide ? vec_load_part(rate->bias + i, n - i) : vec_all(*rate->bias));
}

#endif
