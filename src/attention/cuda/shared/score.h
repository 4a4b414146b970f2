/* score.h: dot products into weights and slopes, in float, for kernels of any shape.
 *
 * Everything is a function of r = <feature(q), feature(k)>; s = scale * r. Three classes, so that a
 * kernel is compiled three times and not once per variant:
 *
 *     exponential   w = 2^(r * scale_log2 - shift), with or without a row maximum
 *     polynomial    linear, and Taylor and powers up to order 8: Horner in r, scale in them;
 *                   and the sigmoid
 *     long          Taylor and powers of higher order: sign and logarithm of w, then
 *                   2^(logarithm - shift) */
#ifndef SR_ATTENTION_CUDA_SHARED_SCORE_H
#define SR_ATTENTION_CUDA_SHARED_SCORE_H

#include "device/cuda/platform.h"
#include "device/cuda/ptx.h"
#include "softrnn.h"

enum sr_score_class { SR_CLASS_EXPONENTIAL, SR_CLASS_POLYNOMIAL, SR_CLASS_LONG };

enum { SR_POLYNOMIAL_ORDER = 8 };

#define SR_LOG2_E 1.44269504088896340736f
#define SR_LN_2   0.693147180559945309417f

struct sr_score_rule {
    sr_score_class kind;
    /* a row's weights are divided by the largest: its logarithm is saved as `maximum` */
    bool maximum;
    bool clamped;
    float clamp; /* upper bound on r */
    bool capped;
    float cap_inverse; /* r is tanh(r cap_inverse) / cap_inverse first */
    bool sigmoid;      /* in place of the polynomial */
    float bias_log2;   /* of the sigmoid, times log2(e) */
    float scale;       /* s = scale * r */
    float scale_log2;  /* scale * log2(e) */
    /* C_i - C_j times this is added to r (exponential), or to the logarithm of w in base 2 */
    float decay_unit;
    float slope_unit; /* dw/dr = slope * slope_unit */
    /* polynomial: in powers of r */
    int degree;
    float coefficient[SR_POLYNOMIAL_ORDER + 1];
    float slope[SR_POLYNOMIAL_ORDER];
    /* long */
    bool power;
    int order;
    float log2_factorial[2]; /* of order, of order - 1 */
    /* here the series and its derivative are exp, to the precision of float */
    float exp_from, exp_to;
};

/* The rule of a variant with keys of D numbers; on the host. */
sr_score_rule sr_score_rule_of(const srnn_attention *attention, int D);

SR_DEVICE float clamp_dot(const sr_score_rule &rule, float r) {
    return rule.clamped && r > rule.clamp ? rule.clamp : r; /* this way round a NaN stays one */
}

/* r and its slope through a cap. Through e^-2|x|, whose error is that of the cap times 2^-22 at
 * most, and which does not cancel in the slope, 1 / cosh^2, where tanh is nearly 1. */
struct sr_capped {
    float value, slope;
};

SR_DEVICE sr_capped cap_of(const sr_score_rule &rule, float cap, float r) {
    const float e = exp2_fast(fabsf(r) * rule.cap_inverse * (-2 * SR_LOG2_E));
    const float inverse = reciprocal_fast(1 + e);
    return {copysignf((1 - e) * inverse * cap, r), 4 * e * inverse * inverse};
}

/* The same where |r cap_inverse| is at most SR_CAP_NEAR, without special functions: tanh x = x -
 * x^3 / 3 + ... up to x^9, off by less than 2e-6. */
#define SR_CAP_NEAR 0.46f

SR_DEVICE float cap_near(const sr_score_rule &rule, float r) {
    const float x = r * rule.cap_inverse, y = x * x;
    float p = fmaf(y, 62.0f / 2835, -17.0f / 315);
    p = fmaf(p, y, 2.0f / 15);
    p = fmaf(p, y, -1.0f / 3);
    return fmaf(r * y, p, r);
}

/* ---- sigmoid ---- */

SR_DEVICE float sigmoid_weight(const sr_score_rule &rule, float r) {
    return reciprocal_fast(1 + exp2_fast(-fmaf(r, rule.scale_log2, rule.bias_log2)));
}

/* ---- polynomial ---- */

SR_DEVICE float polynomial_weight(const sr_score_rule &rule, float r) {
    float w = rule.coefficient[rule.degree];
    for (int n = rule.degree - 1; n >= 0; n--)
        w = fmaf(w, r, rule.coefficient[n]);
    return w;
}

SR_DEVICE float polynomial_slope(const sr_score_rule &rule, float r) {
    float w = 0;
    for (int n = rule.degree - 1; n >= 0; n--)
        w = fmaf(w, r, rule.slope[n]);
    return w;
}

/* ---- long ---- */

/* `order` times the logarithm of |s| in base 2, plus `more`. The error of the logarithm is
 * multiplied by the order, and shows where weights of both signs cancel in a sum: hence the
 * accurate log2f, applied to the fraction alone. */
SR_DEVICE float power_log2(float s, int order, float more) {
    const uint32_t bits = float_bits(fabsf(s)), smallest = 0x00800000u, infinite = 0x7f800000u;
    if (bits < smallest || bits >= infinite)
        return (float)order * log2_fast(fabsf(s)) + more;
    const int exponent = (int)(bits >> 23) - 127;
    const float fraction = bits_float((bits & 0x007fffffu) | 0x3f800000u);
    return fmaf((float)order, log2f(fraction), (float)(order * exponent) + more);
}

/* A number as its sign and the logarithm of its absolute value in base 2, which stays in the range
 * of a float. */
struct sr_signed_log {
    float log2; /* minus infinity: zero */
    bool negative;
};

/* sum_{n<=order} s^n / n! outside the range where it is exp. Written as s^order / order! * R with
 *     R_n = 1 + n/s R_{n-1},
 * which is stable upwards for s > 0 and for s < -order. Between, s = -x, the series is e^-x plus a
 * remainder of the same form, whose recurrence is stable downwards; it starts from the first terms
 * of its expansion. */
SR_DEVICE sr_signed_log taylor_log(float s, int order, float log2_factorial) {
    const float leading = power_log2(s, order, -log2_factorial);
    const bool odd_negative = s < 0 && order % 2 != 0;
    float r = 1;
    if (s > 0 || s < -(float)order) {
        for (int n = 1; n <= order; n++)
            r = fmaf((float)n / s, r, 1.0f);
        return {leading + log2_fast(fabsf(r)), (r < 0) != odd_negative};
    }
    enum { STEPS = 16 };
    const float x = -s;
    r = x / ((float)(order + STEPS + 1) + x);
    for (int n = order + STEPS; n > order; n--)
        r = (1 - r) * x / (float)n;
    /* e^-x and r x^order / order! with the sign of (-1)^order, both divided by the larger */
    const float decay = -x * SR_LOG2_E, larger = fmaxf(leading, decay);
    const float sum =
        exp2_fast(decay - larger) + exp2_fast(leading - larger) * (odd_negative ? -r : r);
    return {larger + log2_fast(fabsf(sum)), sum < 0};
}

/* The weight of a clamped r (of = 0), or its slope by s (of = 1). */
SR_DEVICE sr_signed_log long_log(const sr_score_rule &rule, float r, int of) {
    const float s = r * rule.scale;
    const int order = rule.order - of;
    if (rule.power) {
        const float factor = of ? log2_fast((float)rule.order) : 0.0f;
        return {power_log2(s, order, factor), s < 0 && order % 2 != 0};
    }
    if (s >= rule.exp_from && s <= rule.exp_to)
        return {s * SR_LOG2_E, false};
    if (s != s)
        return {s, false};
    return taylor_log(s, order, rule.log2_factorial[of]);
}

SR_DEVICE float signed_exp2(sr_signed_log x, float shift) {
    const float size = exp2_fast(x.log2 - shift);
    return x.negative ? -size : size;
}

#endif
