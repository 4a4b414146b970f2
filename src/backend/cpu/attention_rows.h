/* attention_rows.h: small row operations that the edge files and kernels share. */
#ifndef SR_CPU_ATTENTION_ROWS_H
#define SR_CPU_ATTENTION_ROWS_H

#include "backend/cpu/attention_real.h"

#include <math.h>

/* The row (or, for gates, the number) of batch row b, head h, position t. */
static inline real *tensor_row(srnn_tensor tensor, int64_t b, int h, int64_t t) {
    return (real *)tensor.data + b * tensor.batch + h * tensor.head + t * tensor.time;
}

static inline double row_dot(const real *a, const real *b, int n) {
    double sum = 0.0;
    for (int d = 0; d < n; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static inline double row_norm(const real *x, int n) {
    return sqrt(row_dot(x, x, n));
}

/* out = gradient of x from the gradient of factor * x / max(|x|, floor); out may be the gradient.
 */
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
