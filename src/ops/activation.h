/* activation.h (private): the activations of MLPs and their slopes, for the C and the CUDA
 * compiler. */
#ifndef SR_OPS_ACTIVATION_H
#define SR_OPS_ACTIVATION_H

#include "ops/backend.h"

#include <math.h>

#ifdef __CUDACC__
#define SR_ACTIVATION __host__ __device__ inline
#else
#define SR_ACTIVATION static inline
#endif

/* xIELU's constants: its slope at 0, and the threshold above which e^x - 1 is not evaluated. */
#define SR_XIELU_BETA  0.5f
#define SR_XIELU_SMALL (-1e-6f)

typedef struct sr_activation_function {
    sr_activation which;
    float positive, negative; /* XIELU only: softplus(alpha_p), beta + softplus(alpha_n) */
    float limit, sharpness;
} sr_activation_function;

SR_ACTIVATION float sr_activation_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

SR_ACTIVATION float sr_activation_softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Reads the two learned parameters of XIELU. */
SR_ACTIVATION sr_activation_function sr_activation_of(const sr_mlp_activation *a) {
    sr_activation_function f = {a->function, 0, 0, a->limit, a->sharpness};
    if (a->function == SR_ACTIVATION_XIELU) {
        f.positive = sr_activation_softplus(*a->alpha_p);
        f.negative = SR_XIELU_BETA + sr_activation_softplus(*a->alpha_n);
    }
    return f;
}

/* sqrt(2/pi) (x + 0.044715 x^3), whose tanh replaces erf. */
SR_ACTIVATION float sr_gelu_argument(float x) {
    return 0.7978845608f * (x + 0.044715f * x * x * x);
}

/* e^x - 1, as xIELU uses it below 0. */
SR_ACTIVATION float sr_xielu_below(float x) {
    return expm1f(fminf(x, SR_XIELU_SMALL));
}

SR_ACTIVATION float sr_activation_value(const sr_activation_function *f, float x) {
    switch (f->which) {
    case SR_ACTIVATION_SILU:
        return x * sr_activation_sigmoid(x);
    case SR_ACTIVATION_GELU:
        return 0.5f * x * (1.0f + erff(x * (float)M_SQRT1_2));
    case SR_ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(sr_gelu_argument(x)));
    case SR_ACTIVATION_RELU:
        return x > 0 ? x : 0;
    case SR_ACTIVATION_RELU_SQUARE:
        return x > 0 ? x * x : 0;
    case SR_ACTIVATION_XIELU:
        return x > 0 ? f->positive * x * x + SR_XIELU_BETA * x
                     : (sr_xielu_below(x) - x) * f->negative + SR_XIELU_BETA * x;
    case SR_ACTIVATION_SILU_CLAMPED:
        x = x > f->limit ? f->limit : x;
        return x * sr_activation_sigmoid(f->sharpness * x);
    case SR_ACTIVATION_IDENTITY:
        return x;
    }
    return 0;
}

/* What a gate multiplies, and its slope. */
SR_ACTIVATION float sr_activation_gated(const sr_activation_function *f, float up) {
    if (f->which != SR_ACTIVATION_SILU_CLAMPED)
        return up;
    return (up > f->limit ? f->limit : up < -f->limit ? -f->limit : up) + 1.0f;
}

SR_ACTIVATION float sr_activation_gated_slope(const sr_activation_function *f, float up) {
    return f->which == SR_ACTIVATION_SILU_CLAMPED && (up > f->limit || up < -f->limit) ? 0.0f
                                                                                       : 1.0f;
}

SR_ACTIVATION float sr_activation_slope(const sr_activation_function *f, float x) {
    switch (f->which) {
    case SR_ACTIVATION_SILU: {
        const float s = sr_activation_sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
    case SR_ACTIVATION_GELU:
        return 0.5f * (1.0f + erff(x * (float)M_SQRT1_2)) + x * 0.398942280f * expf(-0.5f * x * x);
    case SR_ACTIVATION_GELU_TANH: {
        const float t = tanhf(sr_gelu_argument(x));
        const float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case SR_ACTIVATION_RELU:
        return x > 0 ? 1.0f : 0.0f;
    case SR_ACTIVATION_RELU_SQUARE:
        return x > 0 ? 2.0f * x : 0.0f;
    case SR_ACTIVATION_XIELU:
        return x > 0 ? 2.0f * f->positive * x + SR_XIELU_BETA
                     : sr_xielu_below(x) * f->negative + SR_XIELU_BETA;
    case SR_ACTIVATION_SILU_CLAMPED: {
        const float s = sr_activation_sigmoid(f->sharpness * x);
        return x > f->limit ? 0.0f : s * (1.0f + f->sharpness * x * (1.0f - s));
    }
    case SR_ACTIVATION_IDENTITY:
        return 1.0f;
    }
    return 0;
}

#endif
