/* attention_rows.h (private): small row operations that the edge files and kernels share. */
#ifndef SR_CPU_ATTENTION_ROWS_H
#define SR_CPU_ATTENTION_ROWS_H

#include "device/cpu/attention_real.h"

#include <math.h>

/* The row (or, for gates, the number) of batch row b, head h, position t. */
static inline real *tensor_row(srnn_tensor tensor, int64_t b, int h, int64_t t) {
    return (real *)tensor.data + b * tensor.batch + h * tensor.head + t * tensor.time;
}

enum { ROW_SUMS = 8 }; /* sums that do not wait for each other */

static inline double row_dot(const real *a, const real *b, int n) {
    double sum[ROW_SUMS] = {0};
    int whole = n / ROW_SUMS * ROW_SUMS;
    for (int d = 0; d < whole; d += ROW_SUMS)
        for (int i = 0; i < ROW_SUMS; i++)
            sum[i] += (double)a[d + i] * (double)b[d + i];
    for (int d = whole; d < n; d++)
        sum[0] += (double)a[d] * (double)b[d];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
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
