/* gates.h (private): gates of channels in float, some numbers a thread. The same function as
 * shared/gates.h, with what belongs to a head computed once. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_GATES_H
#define SR_ATTENTION_CUDA_CHUNKS_GATES_H

#include "attention/cuda/shared/gates.h"

/* No logarithm is below this: e^-64 is far less than bf16 can tell from 0, and sums of 64 of them
 * keep their differences in float. */
#define SR_CHUNK_GATE_LEAST (-64.0f)

/* The logarithm of a gate of number z, of a head: factor times softplus(inner z), sigmoid(inner z)
 * or z. */
struct chunk_gate_head {
    srnn_decay decay;
    float factor, inner;

    SR_DEVICE chunk_gate_head(const sr_gate_rule &rule, int h)
        : decay(rule.decay), factor(1 / (float)SR_LEARNED_DECAY_DIVISOR), inner(1) {
        switch (decay) {
        case SRNN_DECAY_NONE:
        case SRNN_DECAY_LEARNED:
            break;
        case SRNN_DECAY_LOG_SIGMOID:
            factor = -1 / (float)rule.divisor;
            inner = -1;
            break;
        case SRNN_DECAY_SOFTPLUS:
            factor = -gate_rate<float>(rule, h);
            break;
        case SRNN_DECAY_BOUNDED:
            factor = -(float)rule.bound;
            inner = gate_rate<float>(rule, h);
            break;
        case SRNN_DECAY_NEG_SOFTPLUS:
            factor = -1;
            break;
        case SRNN_DECAY_GIVEN:
            factor = 1;
            break;
        }
    }

    SR_DEVICE bool is_linear() const {
        return decay == SRNN_DECAY_NONE || decay == SRNN_DECAY_LEARNED || decay == SRNN_DECAY_GIVEN;
    }

    /* Logarithms as cores read them; a NaN stays one. */
    template <int N> SR_DEVICE void logarithms(float (&a)[N], const float (&z)[N]) const {
        unlimited(a, z);
#pragma unroll
        for (int c = 0; c < N; c++)
            a[c] = a[c] < SR_CHUNK_GATE_LEAST ? SR_CHUNK_GATE_LEAST : gate_limited(a[c]);
    }

    /* d: gradients of logarithms, become those of z; d_rate += those of a_log. */
    template <int N>
    SR_DEVICE void backward(float (&d)[N], float (&d_rate)[N], const float (&z)[N]) const {
        if (is_linear()) {
#pragma unroll
            for (int c = 0; c < N; c++)
                d[c] = taken(d[c], factor * z[c]) * factor;
        } else if (decay == SRNN_DECAY_BOUNDED) {
#pragma unroll
            for (int c = 0; c < N; c++) {
                const float x = inner * z[c], e = falling(x), both = reciprocal_fast(1 + e);
                d[c] = taken(d[c], factor * part(x, e, both)) * (factor * inner * e * both * both);
                add(d_rate[c], d[c], z[c]);
            }
        } else {
#pragma unroll
            for (int c = 0; c < N; c++) {
                const float x = inner * z[c], e = falling(x);
                const float a = factor * (fmaxf(x, 0) + log_plus_1(e));
                d[c] = taken(d[c], a);
                add(d_rate[c], d[c], a);
                d[c] *= factor * inner * part(x, e, reciprocal_fast(1 + e));
            }
        }
    }

  private:
    /* e^-|x| */
    static SR_DEVICE float falling(float x) {
        return exp2_fast(-SR_GATE_LOG2_E * fabsf(x));
    }

    /* sigmoid(x) from that and 1 / (1 + e). */
    static SR_DEVICE float part(float x, float e, float both) {
        return x < 0 ? e * both : both;
    }

    /* log(1 + e), e in 0 .. 1: within 1e-5 of itself. */
    static SR_DEVICE float log_plus_1(float e) {
        const float small = e * fmaf(e, fmaf(e, 0.33333333f, -0.5f), 1.0f);
        return e < 0.015625f ? small : log2_fast(1 + e) * 0.69314718f;
    }

    /* The gradient of logarithm a: 0 where its limit acts. */
    static SR_DEVICE float taken(float d, float a) {
        return gate_is_limited(a) ? 0 : d;
    }

    /* sum += d x, also where d is 0 and x infinite. */
    static SR_DEVICE void add(float &sum, float d, float x) {
        sum = d == 0 ? sum : fmaf(d, x, sum);
    }

    template <int N> SR_DEVICE void unlimited(float (&a)[N], const float (&z)[N]) const {
        if (is_linear()) {
#pragma unroll
            for (int c = 0; c < N; c++)
                a[c] = factor * z[c];
        } else if (decay == SRNN_DECAY_BOUNDED) {
#pragma unroll
            for (int c = 0; c < N; c++) {
                const float x = inner * z[c], e = falling(x);
                a[c] = factor * part(x, e, reciprocal_fast(1 + e));
            }
        } else {
#pragma unroll
            for (int c = 0; c < N; c++) {
                const float x = inner * z[c];
                a[c] = factor * (fmaxf(x, 0) + log_plus_1(falling(x)));
            }
        }
    }
};

#endif
