/* attention_doubles.h (private): functions of many doubles at a time, for what the edges compute in double. */
#ifndef SR_CPU_ATTENTION_DOUBLES_H
#define SR_CPU_ATTENTION_DOUBLES_H

#include <stdint.h>
#include <string.h>

typedef double doubles __attribute__((vector_size(SR_VECTOR_BYTES)));
typedef int64_t doubles_bits __attribute__((vector_size(SR_VECTOR_BYTES)));
typedef uint64_t doubles_pattern __attribute__((vector_size(SR_VECTOR_BYTES)));

enum { DOUBLES = SR_VECTOR_BYTES / (int)sizeof(double) };

static inline doubles doubles_all(double value) {
    return value - (doubles){0};
}

static inline doubles doubles_larger(doubles a, doubles b) {
    const doubles_bits mask = (doubles_bits)(a > b);
    return (doubles)((mask & (doubles_bits)a) | (~mask & (doubles_bits)b));
}

static inline doubles doubles_smaller(doubles a, doubles b) {
    return -doubles_larger(-a, -b);
}

/* e^x = 2^n p(r) with x = n ln 2 + r, |r| <= ln 2 / 2: p(r), and n in the low bits of *shifted. */
static inline doubles doubles_exp_parts(doubles x, doubles *shifted) {
    static const double p[] = {
        0.500000000000000107,   0.166666666666666675,   0.0416666666666224309,
        0.00833333333332993133, 0.00138888889180570988, 0.000198412698637021905,
        2.48015199919000531e-5, 2.755726745716343e-6,   2.76207056971255716e-7,
        2.51008601680900989e-8,
    };
    enum { TERMS = 10 };
    const double magic = 0x1.8p52, ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    *shifted = x * 1.4426950408889634 + magic;
    doubles n = *shifted - magic;
    doubles r = x - n * ln2_high - n * ln2_low;
    doubles sum = doubles_all(p[TERMS - 1]);
#pragma GCC unroll 16
    for (int term = TERMS - 2; term >= 0; term--)
        sum = sum * r + p[term];
    return sum * (r * r) + (r + 1.0);
}

/* e^x; infinity where it is that, never below the smallest normal number, NaN stays NaN. */
static inline doubles doubles_exp(doubles x) {
    doubles shifted;
    x = doubles_smaller(doubles_all(710.0), doubles_larger(doubles_all(-707.5), x));
    doubles p = doubles_exp_parts(x, &shifted);
    /* 2^(n-1), doubled at the end: n itself may be one more than an exponent can say. */
    p *= (doubles)(((doubles_pattern)shifted << 52) + (doubles_pattern)doubles_all(0.5));
    return p + p;
}

/* log(1 + x) for x from 0 to 1, as 2 artanh(x / (x + 2)); within 2e-10 where numbers are float. */
static inline doubles doubles_log1p(doubles x) {
    enum { TERMS = SR_REAL_BITS == 64 ? 16 : 8 };
    const doubles s = x / (x + 2.0), square = s * s;
    doubles sum = doubles_all(1.0 / (2 * TERMS + 1));
#pragma GCC unroll 16
    for (int n = TERMS - 1; n >= 0; n--)
        sum = sum * square + 1.0 / (2 * n + 1);
    return 2.0 * s * sum;
}

static inline doubles doubles_softplus(doubles x) {
    return doubles_larger(x, (doubles){0}) + doubles_log1p(doubles_exp(-doubles_larger(x, -x)));
}

static inline doubles doubles_sigmoid(doubles x) {
    return 1.0 / (1.0 + doubles_exp(-x));
}

/* out[i] = f(x[i]) for n numbers of any alignment; out may be x. */
static inline void doubles_map(double *out, const double *x, int64_t n, doubles (*f)(doubles)) {
    const int64_t whole = n / DOUBLES * DOUBLES;
    doubles v;
    for (int64_t i = 0; i < whole; i += DOUBLES) {
        memcpy(&v, x + i, sizeof v);
        v = f(v);
        memcpy(out + i, &v, sizeof v);
    }
    if (whole == n)
        return;
    v = (doubles){0};
    for (int64_t i = whole; i < n; i++)
        v[i - whole] = x[i];
    v = f(v);
    for (int64_t i = whole; i < n; i++)
        out[i] = v[i - whole];
}

static inline void softplus_of(double *out, const double *x, int64_t n) {
    doubles_map(out, x, n, doubles_softplus);
}

static inline void sigmoid_of(double *out, const double *x, int64_t n) {
    doubles_map(out, x, n, doubles_sigmoid);
}

#endif
