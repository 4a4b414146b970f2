/* rows.h (private): the CPU's vectorised loops, single-threaded over a range of rows or numbers.
 * rows.c is compiled once per instruction set; each copy fills one table. The callers cut the work
 * into fixed tiles, so that results do not depend on the number of threads. */
#ifndef SR_OPS_CPU_ROWS_H
#define SR_OPS_CPU_ROWS_H

#include "ops/backend.h"

/* AdamW with all factors that depend on the step precomputed. */
typedef struct sr_adamw_factors {
    float gradient_scale, keep, new1, beta2, new2, step_size, inverse_root_correction, epsilon;
} sr_adamw_factors;

typedef struct sr_cpu_rows {
    void (*rmsnorm_forward)(float *out, const sr_rmsnorm *norm, int64_t first, int64_t end);
    /* part (C) receives the weight gradient of these rows. */
    void (*rmsnorm_backward)(float *d_x, float *part, const float *d_out, const sr_rmsnorm *norm,
                             int64_t first, int64_t end);
    /* sign 1 applies RoPE, -1 its inverse. */
    void (*rope)(sr_matrix x, const sr_rope *rope, float sign, int64_t first, int64_t end);
    void (*swiglu_forward)(float *out, const float *gate, const float *up, int64_t n);
    void (*swiglu_backward)(float *d_gate, float *d_up, const float *d_out, const float *gate,
                            const float *up, int64_t n);
    /* x = x * sigmoid(x); and d_out = d_out * its derivative at x. */
    void (*silu_forward)(float *x, int64_t n);
    void (*silu_backward)(float *d_out, const float *x, int64_t n);
    void (*add)(float *out, const float *x, const float *y, int64_t n);
    /* y += a * x over n numbers. */
    void (*multiply_add)(float *y, const float *a, const float *x, int64_t n);
    void (*cross_entropy)(float *losses, sr_matrix logits, const sr_cross_entropy *of,
                          int64_t first, int64_t end);
    void (*divergence)(float *losses, const sr_divergence *of, int64_t first, int64_t end);
    void (*square_error)(float *errors, sr_matrix d_x, const sr_square_error *of, int64_t first,
                         int64_t end);
    void (*adamw)(float *weight, float *mean, float *square, const float *gradient, int64_t n,
                  const sr_adamw_factors *factors);
    /* bf16, to nearest, ties to even; NaN stays NaN. */
    void (*to_bf16)(uint16_t *out, const float *x, int64_t n);
    void (*from_bf16)(float *out, const uint16_t *x, int64_t n);
    /* out (rows) = x (rows, n), `stride` apart, times a row w (n) of bf16. */
    void (*bf16_products)(float *out, const float *x, int64_t stride, int64_t rows,
                          const uint16_t *w, int64_t n);
    double (*square_sum)(const float *x, int64_t n);
    /* The largest product of q (D) with rows of k (count, D), `stride` apart; at least 0. */
    float (*largest_product)(const float *q, const float *k, int64_t stride, int64_t count,
                             int64_t D);
} sr_cpu_rows;

/* The table for the instruction set in use (base/cpu_level.h). */
const sr_cpu_rows *sr_cpu_rows_best(void);

#endif
