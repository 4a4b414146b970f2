/* features.h (private): the symmetric basis in which (q.k)^n is a plain inner product.
 *
 * Order n has one feature per multiset of n indices: the product of those entries of x, times
 * sqrt(1 / product of the multiplicities' factorials), so that
 *     <features(q), features(k)> = (q.k)^n / n!        (for a power score, (q.k)^n).
 * Each feature is computed from one of the order below:
 *     feature[m] = ratio[m] * x[variable[m]] * feature[parent[m]].
 * Features are stored with one row per feature and one column per token, so that a row is a vector
 * operation over tokens. Orders below the highest are stored in full; the highest, by far the
 * largest, is computed in blocks on demand. */
#ifndef SR_ATTENTION_CPU_SHARED_FEATURES_H
#define SR_ATTENTION_CPU_SHARED_FEATURES_H

#include "attention/cpu/shared/simd.h"
#include "base/memory.h"
#include "equation/facts.h"

enum { FEATURE_BLOCK = 192 }; /* rows of the highest order computed at a time; a multiple of ROWS */

typedef struct feature_basis {
    int64_t count; /* features of all orders */
    int64_t top;   /* the first feature of the highest order */
    int64_t first; /* the first feature of the score itself; those below it are only parents */
    int32_t *parent, *variable; /* (count) */
    real *ratio;                /* (count) */
} feature_basis;

/* C(n + k - 1, k): multisets of k out of n. Exact as long as the result fits a double. */
static inline int64_t multisets(int64_t n, int64_t k) {
    double result = 1.0;
    for (int64_t i = 1; i <= k; i++)
        result = result * (double)(n + i - 1) / (double)i;
    return (int64_t)(result + 0.5);
}

static inline feature_basis feature_basis_place(const srnn_attention *a, int D, sr_layout *layout) {
    int highest = sr_highest_order(a);
    feature_basis basis = {0};
    for (int n = 0; n <= highest; n++) {
        if (n == highest)
            basis.top = basis.count;
        if (!sr_has_order(a, n))
            basis.first = basis.count + multisets(D, n);
        basis.count += multisets(D, n);
    }
    basis.parent = sr_layout_take(layout, (size_t)basis.count, sizeof *basis.parent);
    basis.variable = sr_layout_take(layout, (size_t)basis.count, sizeof *basis.variable);
    basis.ratio = sr_layout_take(layout, (size_t)basis.count, sizeof *basis.ratio);
    return basis;
}

/* Features of an order are sorted by their smallest index. Those that start at i or later are the
 * last multisets(D - i, n) of the order; multiplying each by x_i gives the features of the next
 * order that start at i. */
static inline void feature_basis_fill(const feature_basis *basis, const srnn_attention *a, int D) {
    int64_t at = 1; /* the next feature */
    basis->parent[0] = basis->variable[0] = 0;
    basis->ratio[0] = 1;
    for (int n = 1; n <= sr_highest_order(a); n++) {
        int64_t past = at; /* end of the order below */
        for (int i = 0; i < D; i++)
            for (int64_t from = past - multisets(D - i, n - 1); from < past; from++, at++) {
                double multiplicity = 1.0; /* of i */
                for (int64_t m = from; m > 0 && basis->variable[m] == i; m = basis->parent[m])
                    multiplicity += 1.0;
                basis->parent[at] = (int32_t)from;
                basis->variable[at] = i;
                basis->ratio[at] =
                    (real)sqrt((a->score == SRNN_SCORE_POWER ? n : 1.0) / multiplicity);
            }
    }
}

/* Tokens as columns, and their features. */
typedef struct feature_tokens {
    const feature_basis *basis;
    const real *x; /* (D, ld) */
    real *low;     /* (basis->top, ld): the orders below the highest, then ROWS rows of zeros */
    real *top;     /* (FEATURE_BLOCK, ld): a block of the highest order */
    int64_t ld;
    int64_t width; /* columns to work on, a multiple of LANES */
} feature_tokens;

/* Feature rows from .. past-1; row `from` goes to the start of out. */
static inline void feature_rows(real *out, const feature_tokens *tokens, int64_t from,
                                int64_t past) {
    const feature_basis *basis = tokens->basis;
    const int64_t ld = tokens->ld, width = tokens->width;
    for (int64_t m = from; m < past; m++) {
        real *row = out + (m - from) * ld;
        if (m == 0) {
            for (int64_t t = 0; t < width; t++)
                row[t] = 1;
            continue;
        }
        const real *parent = tokens->low + basis->parent[m] * ld;
        const real *variable = tokens->x + basis->variable[m] * ld;
        vec ratio = vec_all(basis->ratio[m]);
        for (int64_t t = 0; t < width; t += LANES)
            vec_store(row + t, ratio * vec_load(variable + t) * vec_load(parent + t));
    }
}

/* Adds to dx (D, ld) and d_low (rows below basis->top) the gradients that come from rows from ..
 * past-1; d starts with row `from`. Rows run last to first, because a parent precedes its
 * children. */
static inline void feature_rows_backward(real *dx, real *d_low, const real *d,
                                         const feature_tokens *tokens, int64_t from, int64_t past) {
    const feature_basis *basis = tokens->basis;
    const int64_t ld = tokens->ld;
    for (int64_t m = past - 1; m >= from && m > 0; m--) {
        int64_t parent = basis->parent[m] * ld, variable = basis->variable[m] * ld;
        const real *row = d + (m - from) * ld;
        vec ratio = vec_all(basis->ratio[m]);
        for (int64_t t = 0; t < tokens->width; t += LANES) {
            vec g = ratio * vec_load(row + t);
            vec_store(dx + variable + t,
                      vec_load(dx + variable + t) + g * vec_load(tokens->low + parent + t));
            vec_store(d_low + parent + t,
                      vec_load(d_low + parent + t) + g * vec_load(tokens->x + variable + t));
        }
    }
}

#endif
