/* rows.h (private): small row operations shared by prologue, epilogue and kernels. */
#ifndef SR_ATTENTION_CPU_SHARED_ROWS_H
#define SR_ATTENTION_CPU_SHARED_ROWS_H

#include "attention/cpu/shared/real.h"

#include <math.h>
#include <string.h>

/* The row (for gates, the single number) of batch row b, head h, position t. */
static inline real *tensor_row(srnn_tensor tensor, int64_t b, int h, int64_t t) {
    return (real *)tensor.data + b * tensor.batch + h * tensor.head + t * tensor.time;
}

enum { ROW_SUMS = 8 }; /* independent accumulators */

typedef real row_part __attribute__((vector_size(ROW_SUMS * sizeof(real))));
typedef double row_sums __attribute__((vector_size(ROW_SUMS * sizeof(double))));

static inline double row_dot(const real *a, const real *b, int n) {
    row_sums sum = {0};
    int whole = n / ROW_SUMS * ROW_SUMS;
    for (int d = 0; d < whole; d += ROW_SUMS) {
        row_part x, y;
        memcpy(&x, a + d, sizeof x);
        memcpy(&y, b + d, sizeof y);
        sum += __builtin_convertvector(x, row_sums) * __builtin_convertvector(y, row_sums);
    }
    for (int d = whole; d < n; d++)
        sum[0] += (double)a[d] * (double)b[d];
    sum += __builtin_shufflevector(sum, sum, 1, 0, 3, 2, 5, 4, 7, 6);
    sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5);
    return sum[0] + sum[4];
}

static inline double row_norm(const real *x, int n) {
    return sqrt(row_dot(x, x, n));
}

/* out = gradient of x, given the gradient of factor * x / max(|x|, floor); out may alias the
 * gradient. */
static inline void unit_backward(real *out, const real *gradient, const real *x, double factor,
                                 double floor, int n) {
    double norm = row_norm(x, n);
    bool floored = norm < floor;
    double inverse = 1.0 / (floored ? floor : norm);
    double along = floored ? 0.0 : row_dot(x, gradient, n) * inverse * inverse;
    for (int d = 0; d < n; d++)
        out[d] = (real)(factor * inverse * ((double)gradient[d] - along * (double)x[d]));
}

#endif
