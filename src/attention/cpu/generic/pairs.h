/* pairs.h (private): one pair of the equation, written as directly as possible. */
#ifndef SR_ATTENTION_CPU_GENERIC_PAIRS_H
#define SR_ATTENTION_CPU_GENERIC_PAIRS_H

#include "attention/cpu/shared/rows.h"
#include "equation/facts.h"
#include "equation/score.h"

#include <math.h>

/* w_ij without its level, and its derivative with respect to s_ij. */
typedef struct pair {
    double weight, slope;
} pair;

/* The argument of the score: s after cap, clamp and bias. */
static inline double pair_logit(const srnn_attention *a, double s) {
    const double capped = a->cap != 0.0 ? sr_cap_value(a->cap, s) : s;
    return (a->clamp != 0.0 && capped > a->clamp ? a->clamp : capped) + a->score_bias;
}

/* Its derivative with respect to s. */
static inline double pair_logit_slope(const srnn_attention *a, double s) {
    const double capped = a->cap != 0.0 ? sr_cap_value(a->cap, s) : s;
    if (a->clamp != 0.0 && capped > a->clamp)
        return 0.0;
    return a->cap != 0.0 ? sr_cap_slope(a->cap, s) : 1.0;
}

static inline pair pair_of(const srnn_attention *a, double s, double decay, double maximum) {
    const double x = pair_logit(a, s);
    pair result;
    if (a->score == SRNN_SCORE_EXP) {
        result.weight = exp(x + decay - maximum);
        result.slope = result.weight;
    } else {
        double factor = exp(decay - (maximum == -INFINITY ? 0.0 : maximum));
        result.weight = factor * sr_score_value(a->score, a->order, x);
        result.slope = factor * sr_score_slope(a->score, a->order, x);
    }
    const double inner = pair_logit_slope(a, s);
    result.slope = inner == 0.0 ? 0.0 : result.slope * inner;
    return result;
}

/* The weight of a key for a key: no cap, clamp or maximum applies. */
static inline pair kappa_of(const srnn_attention *a, double s, double decay) {
    srnn_attention free = *a;
    free.cap = free.clamp = 0.0;
    return pair_of(&free, s, decay, 0.0);
}

/* C_i - C_j if the decay multiplies the weight; up and down: C_i and C_j, or NULL. */
static inline double pair_decay(const srnn_attention *a, const double *up, const double *down) {
    return !up || sr_decay_in_logits(a) ? 0.0 : *up - *down;
}

/* <q_i, k_j>, with the decay (`width` values) if it acts before the score. */
static inline double pair_product(const srnn_problem *p, int width, const real *q, const real *k,
                                  const double *up, const double *down) {
    if (!up || !sr_decay_in_logits(&p->attention))
        return row_dot(q, k, p->D);
    if (width == 1)
        return row_dot(q, k, p->D) * exp(*up - *down);
    double sum = 0.0;
    for (int d = 0; d < p->D; d++)
        sum += (double)q[d] * (double)k[d] * exp(up[d] - down[d]);
    return sum;
}

/* The Fenwick level of two positions: the number of bits of i xor j. */
static inline int pair_level(int64_t i, int64_t j) {
    int bits = 0;
    for (int64_t rest = i ^ j; rest; rest >>= 1)
        bits++;
    return bits;
}

#endif
