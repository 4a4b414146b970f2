/* exp_double.h (private): exp of vectors of doubles. */
#ifndef SR_ATTENTION_CPU_SHARED_EXP_DOUBLE_H
#define SR_ATTENTION_CPU_SHARED_EXP_DOUBLE_H

typedef double doubles __attribute__((vector_size(SR_VECTOR_BYTES)));

static inline doubles doubles_all(double value) {
    return value - (doubles){0};
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

#endif
