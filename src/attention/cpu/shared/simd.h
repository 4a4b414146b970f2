/* simd.h (private): the vector operations, exp and tile GEMM that the fast kernels are built from.
 *
 * Plain C with compiler vectors. The build compiles it once per instruction set with
 * SR_VECTOR_BYTES; everything else follows from that and from the number type.
 *
 * The GEMM is C (m, n) = or += A (m, k) B (k, n), in blocks of ROWS x COLUMNS numbers held in
 * registers: each step of k loads one row of B and broadcasts ROWS numbers of A. A may be stored in
 * either orientation (two strides, one of them 1); rows of B and C are `ld` apart. m is a multiple
 * of ROWS and n of COLUMNS: callers pad, with rows an odd number of cache lines apart so that
 * columns of a tile do not map to the same cache sets. */
#ifndef SR_ATTENTION_CPU_SHARED_SIMD_H
#define SR_ATTENTION_CPU_SHARED_SIMD_H

#include "attention/cpu/shared/exp_double.h"
#include "attention/cpu/shared/real.h"
#include "equation/facts.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef real vec __attribute__((vector_size(SR_VECTOR_BYTES)));
typedef real_bits vec_bits __attribute__((vector_size(SR_VECTOR_BYTES)));
typedef real_pattern vec_pattern __attribute__((vector_size(SR_VECTOR_BYTES)));
typedef real vec_memory __attribute__((vector_size(SR_VECTOR_BYTES), may_alias));

enum {
    LANES = SR_VECTOR_BYTES / (int)sizeof(real),
    COLUMNS = 2 * LANES,
    ROWS = SR_VECTOR_BYTES == 64 ? 12 : 6, /* for 32 vector registers, or 16 */
    LINE = 64 / (int)sizeof(real),
    TILE = 96, /* a multiple of ROWS and COLUMNS for every type and instruction set */
};

typedef double wide_vec __attribute__((vector_size(LANES * sizeof(double))));

static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Row stride for n numbers: whole columns, an odd number of cache lines. */
static inline int64_t row_stride(int64_t n) {
    int64_t lines = round_up(round_up(n, COLUMNS), LINE) / LINE;
    return (lines | 1) * LINE;
}

static inline vec vec_load(const real *from) {
    return *(const vec_memory *)from;
}

static inline void vec_store(real *to, vec value) {
    *(vec_memory *)to = value;
}

/* Loads and stores `count` numbers at any alignment; further lanes are zero. */
static inline vec vec_load_part(const real *from, int count) {
    vec value;
    if (count >= LANES) {
        memcpy(&value, from, sizeof value);
        return value;
    }
    value = (vec){0};
    for (int lane = 0; lane < count; lane++)
        value[lane] = from[lane];
    return value;
}

static inline void vec_store_part(real *to, vec value, int count) {
    if (count >= LANES)
        memcpy(to, &value, sizeof value);
    else
        for (int lane = 0; lane < count; lane++)
            to[lane] = value[lane];
}

static inline vec vec_all(real value) {
    return value - (vec){0};
}

static inline vec vec_select(vec_bits mask, vec yes, vec no) {
    return (vec)((mask & (vec_bits)yes) | (~mask & (vec_bits)no));
}

static inline vec vec_max(vec a, vec b) {
    return vec_select((vec_bits)(a > b), a, b);
}

static inline vec vec_min(vec a, vec b) {
    return vec_select((vec_bits)(a < b), a, b);
}

static inline real vec_sum(vec v) {
    real sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += v[lane];
    return sum;
}

static inline real vec_maximum(vec v) {
    real maximum = v[0];
    for (int lane = 1; lane < LANES; lane++)
        maximum = v[lane] > maximum ? v[lane] : maximum;
    return maximum;
}

/* 0, 1, .. LANES-1 */
static inline vec vec_count(void) {
    vec v;
    for (int lane = 0; lane < LANES; lane++)
        v[lane] = (real)lane;
    return v;
}

/* Vectors that exponentials and caps of whole rows take together, step by step: their chains of
 * dependent operations are longer than a core looks ahead. */
enum { BUNDLE = SR_VECTOR_BYTES == 64 ? 6 : 3 };

/* The functions of `count` vectors, a constant. */
#define SR_BUNDLED     static inline __attribute__((always_inline))
#define SR_EACH(count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

/* e^x = 2^n p(r), x = n ln 2 + r and |r| <= ln 2 / 2: x becomes p(r), n the low bits of shifted. */
SR_BUNDLED void bundle_exp_parts(vec *x, vec *shifted, int count) {
#if SR_REAL_BITS == 64
    SR_EACH(count) x[i] = doubles_exp_parts(x[i], &shifted[i]);
#else
    vec sum[BUNDLE];
    const real magic = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    static const real p[] = {0.5f, 0.166665752173736494f, 0.0416665524031902174f,
                             0.0083634727221610281f, 0.00139265504284959209f};
    enum { TERMS = 5 };
    SR_EACH(count) shifted[i] = x[i] * (real)1.4426950408889634 + magic;
    SR_EACH(count) {
        const vec n = shifted[i] - magic;
        x[i] = x[i] - n * ln2_high - n * ln2_low;
    }
    SR_EACH(count) sum[i] = vec_all(p[TERMS - 1]);
#pragma GCC unroll 16
    for (int term = TERMS - 2; term >= 0; term--)
        SR_EACH(count) sum[i] = sum[i] * x[i] + p[term];
    SR_EACH(count) x[i] = sum[i] * (x[i] * x[i]) + (x[i] + (real)1);
#endif
}

enum { MANTISSA = SR_REAL_BITS == 64 ? 52 : 23 };

/* e^x is a normal number from here on. */
#define LEAST_EXP ((real)(SR_REAL_BITS == 64 ? -707.5 : -86.6))

/* e^x for every lane. Relative error below 1.2e-7 (float) and 4e-16 (double). Overflows to
 * infinity; never returns less than the smallest normal number; NaN propagates. */
static inline vec vec_exp(vec x) {
    const real most = (real)(SR_REAL_BITS == 64 ? 710.0 : 89.0);
    vec shifted;
    x = vec_min(vec_all(most), vec_max(vec_all(LEAST_EXP), x)); /* in this operand order NaN
                                                             * propagates */
    vec p = x;
    bundle_exp_parts(&p, &shifted, 1);
    /* 2^(n-1), doubled at the end: n itself may exceed the largest exponent by one. */
    p *= (vec)(((vec_pattern)shifted << MANTISSA) + (vec_pattern)vec_all((real)0.5));
    return p + p;
}

/* The same for x from LEAST_EXP to 80, without range checks. */
SR_BUNDLED void bundle_exp_small(vec *x, int count) {
    vec shifted[BUNDLE];
    bundle_exp_parts(x, shifted, count);
    SR_EACH(count) x[i] = (vec)((vec_pattern)x[i] + ((vec_pattern)shifted[i] << MANTISSA));
}

static inline vec vec_exp_small(vec x) {
    bundle_exp_small(&x, 1);
    return x;
}

/* ---- gates, to the precision of `real` */

/* log(1 + x) for x from 0 to 1, as 2 artanh(x / (x + 2)). */
static inline vec vec_log1p(vec x) {
    enum { TERMS = SR_REAL_BITS == 64 ? 16 : 7 };
    const vec s = x / (x + (real)2), square = s * s;
    vec sum = vec_all((real)(1.0 / (2 * TERMS + 1)));
#pragma GCC unroll 16
    for (int n = TERMS - 1; n >= 0; n--)
        sum = sum * square + (real)(1.0 / (2 * n + 1));
    return (real)2 * s * sum;
}

/* log(1 + e^x) */
static inline vec vec_softplus(vec x) {
    return vec_max(x, (vec){0}) + vec_log1p(vec_exp(-vec_max(x, -x)));
}

/* The sigmoid; *rest is one minus it, to the same relative precision. */
static inline vec vec_sigmoid_parts(vec x, vec *rest) {
    const vec e = vec_exp(-vec_max(x, -x)), large = (real)1 / ((real)1 + e), small = e * large;
    const vec_bits positive = (vec_bits)(x > (vec){0});
    *rest = vec_select(positive, small, large);
    return vec_select(positive, large, small);
}

static inline vec vec_sigmoid(vec x) {
    vec rest;
    return vec_sigmoid_parts(x, &rest);
}

/* c tanh(s / c): series and limit are of s^2 (float), or of (s / c)^2 (double, without series). */
typedef struct cap_rule {
    real cap, inverse;
    real series[3];
    real limit; /* beyond this square the cap is computed from an exponential */
    real near;  /* no |s| up to this has such a square */
} cap_rule;

static inline cap_rule cap_rule_of(double cap) {
    static const double p[] = {-0x1.55546fp-2, 0x1.109ffap-3, -0x1.9a46f2p-5}, near = 0.3125;
    const double inverse = 1 / cap, unit = SR_REAL_BITS == 64 ? 1 : cap;
    return (cap_rule){.cap = (real)cap,
                      .inverse = (real)inverse,
                      .series = {(real)(p[0] * pow(inverse, 2)), (real)(p[1] * pow(inverse, 4)),
                                 (real)(p[2] * pow(inverse, 6))},
                      .limit = (real)(near * near * unit * unit),
                      .near = (real)(0.999 * near * cap)};
}

/* The squares of logits, and tanh(x) / x - 1 for x = s / c, |x| up to 5/16. The error of 1 + this
 * is 1.7e-8 (float, minimax) or below 4e-18 (double, a Pade approximant). */
SR_BUNDLED void bundle_tanh_excess(vec *excess, vec *square, const vec *s, const cap_rule *rule,
                                   int count) {
#if SR_REAL_BITS == 64
    SR_EACH(count) square[i] = (s[i] * rule->inverse) * (s[i] * rule->inverse);
    SR_EACH(count) {
        const vec x = square[i], top = ((x + 594.0) * x + 45045.0) * x + 675675.0;
        const vec bottom = (((x + 630.0) * x + 51975.0) * x + 945945.0) * x + 2027025.0;
        excess[i] = -x * top / bottom;
    }
#else
    SR_EACH(count) square[i] = s[i] * s[i];
    SR_EACH(count) excess[i] = rule->series[2] * square[i] + rule->series[1];
    SR_EACH(count) excess[i] = excess[i] * square[i] + rule->series[0];
    SR_EACH(count) excess[i] = square[i] * excess[i];
#endif
}

/* c tanh(s / c) and its slope 1 - tanh^2 up to the limit, and the squares. The value ends in a sum,
 * so that whatever follows cannot change its bits by fusing a product. */
SR_BUNDLED void bundle_capped_near(vec *s, vec *slope, vec *square, const cap_rule *rule,
                                   int count) {
    vec excess[BUNDLE];
    bundle_tanh_excess(excess, square, s, rule, count);
    SR_EACH(count) s[i] = s[i] + s[i] * excess[i];
    SR_EACH(count) {
        const vec t = s[i] * rule->inverse;
        slope[i] = (real)1 - t * t;
    }
}

static inline bool vec_any(vec_bits mask) {
    uint64_t words[SR_VECTOR_BYTES / 8], any = 0;
    memcpy(words, &mask, sizeof words);
    for (int i = 0; i < SR_VECTOR_BYTES / 8; i++)
        any |= words[i];
    return any != 0;
}

/* The same beyond the limit: tanh and its slope are (1 - e) / (1 + e) and 4 e / (1 + e)^2 with e =
 * exp(-2 |x|), because 1 - tanh^2 would cancel. */
static inline void vec_cap_far(vec *s, vec *slope, vec square, vec given, const cap_rule *rule) {
    const vec x = given * rule->inverse, size = vec_max(x, -x);
    const vec e = vec_exp_small(vec_max(vec_all(LEAST_EXP), (real)-2 * size));
    const vec fraction = (real)1 / ((real)1 + e), far = rule->cap * ((real)1 - e) * fraction;
    const vec_bits is_far = (vec_bits)(square > rule->limit), negative = (vec_bits)(x < (vec){0});
    *slope = vec_select(is_far, (real)4 * e * fraction * fraction, *slope);
    *s = vec_select(is_far, vec_select(negative, -far, far), *s);
}

/* s = the caps of the logits `given`, with the same bits whether or not they are known to be `near`
 * (see the rule). */
SR_BUNDLED void bundle_capped(vec *s, const real *given, const cap_rule *rule, bool near,
                              vec *slope, int count) {
    vec square[BUNDLE], largest = {0};
    SR_EACH(count) s[i] = vec_load(given + i * LANES);
    bundle_capped_near(s, slope, square, rule, count);
    if (near)
        return;
    SR_EACH(count) largest = vec_max(square[i], largest); /* in this operand order without NaN */
    if (vec_any((vec_bits)(largest > rule->limit)))
        SR_EACH(count)
    vec_cap_far(&s[i], &slope[i], square[i], vec_load(given + i * LANES), rule);
}

/* The sum of all lanes, by halving. */
static inline double wide_vec_sum(const wide_vec *v) {
    double part[LANES];
    memcpy(part, v, sizeof part);
#pragma GCC unroll 8
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            part[lane] += part[lane + half];
    return part[0];
}

/* Converts `count` doubles of any alignment to `real` and back; further lanes are zero. */
static inline vec vec_from_doubles(const double *from, int64_t count) {
    wide_vec numbers;
    if (count >= LANES) {
        memcpy(&numbers, from, sizeof numbers);
        return __builtin_convertvector(numbers, vec);
    }
    vec value = {0};
    for (int64_t lane = 0; lane < count; lane++)
        value[lane] = (real)from[lane];
    return value;
}

static inline void vec_to_doubles(double *to, vec value, int64_t count) {
    if (count >= LANES) {
        const wide_vec numbers = __builtin_convertvector(value, wide_vec);
        memcpy(to, &numbers, sizeof numbers);
        return;
    }
    for (int64_t lane = 0; lane < count; lane++)
        to[lane] = (double)value[lane];
}

/* out[i] = f(x[i]) for n doubles; out may be x. */
static inline void softplus_of(double *out, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        vec_to_doubles(out + i, vec_softplus(vec_from_doubles(x + i, n - i)), n - i);
}

static inline void sigmoid_of(double *out, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        vec_to_doubles(out + i, vec_sigmoid(vec_from_doubles(x + i, n - i)), n - i);
}

/* Sigmoids of a row, and one minus each, to the same relative precision. */
typedef struct gate_parts {
    double gate[SR_VALUE_SIZE_MAX], rest[SR_VALUE_SIZE_MAX];
} gate_parts;

static inline void gate_parts_of(gate_parts *parts, const real *z, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        vec rest;
        const vec gate = vec_sigmoid_parts(vec_load_part(z + i, (int)(n - i)), &rest);
        vec_to_doubles(parts->gate + i, gate, n - i);
        vec_to_doubles(parts->rest + i, rest, n - i);
    }
}

/* ---- transposes of LANES x LANES numbers */

/* Interleaves two vectors: their first halves, and their second halves. */
#if SR_VECTOR_BYTES * 8 / SR_REAL_BITS == 2
#define FIRST_TURNS  0, 2
#define SECOND_TURNS 1, 3
#elif SR_VECTOR_BYTES * 8 / SR_REAL_BITS == 4
#define FIRST_TURNS  0, 4, 1, 5
#define SECOND_TURNS 2, 6, 3, 7
#elif SR_VECTOR_BYTES * 8 / SR_REAL_BITS == 8
#define FIRST_TURNS  0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_TURNS 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST_TURNS  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_TURNS 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif

/* out = rows transposed, both at any alignment. Interleaving with the row half a square further
 * down moves the highest bit of a number's row index to the lowest bit of its column index. */
static inline void transpose_square(real *out, int64_t ld_out, const real *rows, int64_t ld) {
    vec from[LANES], to[LANES];
#pragma GCC unroll 16
    for (int r = 0; r < LANES; r++)
        memcpy(&from[r], rows + r * ld, sizeof(vec));
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
#pragma GCC unroll 8
        for (int r = 0; r < LANES / 2; r++) {
            to[2 * r] = __builtin_shufflevector(from[r], from[r + LANES / 2], FIRST_TURNS);
            to[2 * r + 1] = __builtin_shufflevector(from[r], from[r + LANES / 2], SECOND_TURNS);
        }
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            from[r] = to[r];
    }
#pragma GCC unroll 16
    for (int r = 0; r < LANES; r++)
        memcpy(out + r * ld_out, &from[r], sizeof(vec));
}
#undef FIRST_TURNS
#undef SECOND_TURNS

/* Which part of a product is needed or known to be zero, for tiles on the diagonal. */
typedef enum product_shape {
    PRODUCT_FULL,
    PRODUCT_C_LOWER, /* only blocks of C that touch row >= column */
    PRODUCT_A_LOWER, /* A is zero where column > row */
    PRODUCT_A_UPPER, /* A is zero where column < row */
} product_shape;

/* The operands: C and whether to accumulate into it; A with two strides; B by rows. */
typedef struct product_target {
    real *data;
    int64_t ld;
    bool accumulate;
} product_target;

typedef struct product_operand {
    const real *data;
    int64_t row, step; /* strides along m and k */
} product_operand;

typedef struct product_rows {
    const real *data;
    int64_t ld;
} product_rows;

typedef struct product_size {
    int64_t m, n, k;
} product_size;

/* One block of the GEMM: ROWS x COLUMNS numbers of C, k steps. Rows of A are addressed in groups of
 * four, by a pointer per group and three shared offsets: one pointer per row would not fit in
 * registers. */
static inline void product_block(product_target c, product_operand a, product_rows b, int64_t k) {
    enum { GROUP = 4, GROUPS = (ROWS + GROUP - 1) / GROUP };
    const real *rows[GROUPS];
    vec sum[ROWS][2];
#pragma GCC unroll 16
    for (int group = 0; group < GROUPS; group++)
        rows[group] = a.data + group * GROUP * a.row;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
        sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t step = 0; step < k; step++) {
        vec b0 = vec_load(b.data), b1 = vec_load(b.data + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            vec spread = vec_all(rows[r / GROUP][r % GROUP * a.row]);
            sum[r][0] += spread * b0;
            sum[r][1] += spread * b1;
        }
#pragma GCC unroll 16
        for (int group = 0; group < GROUPS; group++)
            rows[group] += a.step;
        b.data += b.ld;
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
        if (c.accumulate) {
            sum[r][0] += vec_load(c.data + r * c.ld);
            sum[r][1] += vec_load(c.data + r * c.ld + LANES);
        }
        vec_store(c.data + r * c.ld, sum[r][0]);
        vec_store(c.data + r * c.ld + LANES, sum[r][1]);
    }
}

static inline void product(product_target c, product_operand a, product_rows b, product_size size,
                           product_shape shape) {
    for (int64_t column = 0; column < size.n; column += COLUMNS)
        for (int64_t row = shape == PRODUCT_C_LOWER ? column / ROWS * ROWS : 0; row < size.m;
             row += ROWS) {
            int64_t first = shape == PRODUCT_A_UPPER ? row : 0;
            int64_t past = shape == PRODUCT_A_LOWER && row + ROWS < size.k ? row + ROWS : size.k;
            product_block((product_target){c.data + row * c.ld + column, c.ld, c.accumulate},
                          (product_operand){a.data + row * a.row + first * a.step, a.row, a.step},
                          (product_rows){b.data + first * b.ld + column, b.ld}, past - first);
        }
}

/* ---- products with non-finite numbers: NaN or infinity times the zero weight of a hidden pair is
 * NaN, which would leak into rows that do not see it */

/* True if the first n numbers of all rows are finite, tested by multiplying with zero. */
static inline bool rows_are_finite(const real *rows, int64_t ld, int64_t count, int64_t n) {
    const int64_t whole = n / LANES * LANES;
    vec_bits bits = {0};
    real zero = 0;
    for (int64_t r = 0; r < count; r++) {
        for (int64_t d = 0; d < whole; d += LANES)
            bits |= (vec_bits)(vec_load(rows + r * ld + d) * (real)0);
        for (int64_t d = whole; d < n; d++)
            zero += rows[r * ld + d] * (real)0;
    }
    return vec_sum((vec)bits) + zero == 0;
}

/* The keys low .. high-1 of a tile that a query sees. */
typedef struct seen_keys {
    int64_t low, high;
} seen_keys;

/* Which operand the queries are: the rows of C, or the dimension that is summed over. */
typedef enum seen_from {
    SEEN_FROM_ROWS,
    SEEN_FROM_SUM,
} seen_from;

/* Like `product`, restricted to the pairs in `seen` (one entry per query); for the few tiles with
 * non-finite numbers. */
static inline void product_seen(product_target c, product_operand a, product_rows b,
                                product_size size, const seen_keys *seen, seen_from from) {
    for (int64_t row = 0; row < size.m; row++)
        for (int64_t column = 0; column < size.n; column += LANES) {
            vec sum = c.accumulate ? vec_load(c.data + row * c.ld + column) : (vec){0};
            for (int64_t step = 0; step < size.k; step++) {
                const int64_t key = from == SEEN_FROM_ROWS ? step : row;
                const seen_keys *keys = &seen[from == SEEN_FROM_ROWS ? row : step];
                if (key >= keys->low && key < keys->high)
                    sum += a.data[row * a.row + step * a.step] *
                           vec_load(b.data + step * b.ld + column);
            }
            vec_store(c.data + row * c.ld + column, sum);
        }
}

#endif
