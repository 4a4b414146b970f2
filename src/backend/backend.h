/* backend.h: the arithmetic that a model may use, declared once for every device.
 *
 * A backend is a table of functions, none of them NULL. Every array lives in the backend's own
 * memory and holds float, row-major; `rows` counts tokens (B*T). Destinations come first; "adds"
 * means that the result is added to what the destination holds. No function allocates, and the bits
 * of a result do not depend on the number of threads. Attention itself goes through srnn_plan_* and
 * srnn_state_* of softrnn.h. */
#ifndef SR_BACKEND_BACKEND_H
#define SR_BACKEND_BACKEND_H

#include "attention/attention.h"
#include "base/status.h"
#include "device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix, or some columns of one: element (r, c) is data[r * stride + c]. */
typedef struct sr_matrix {
    float *data;
    int64_t rows;
    int64_t columns;
    int64_t stride;
} sr_matrix;

/* A whole matrix whose rows follow each other. */
static inline sr_matrix sr_matrix_of(float *data, int64_t rows, int64_t columns) {
    return (sr_matrix){data, rows, columns, columns};
}

/* Some columns of a matrix. */
static inline sr_matrix sr_matrix_columns(sr_matrix m, int64_t first, int64_t columns) {
    return (sr_matrix){m.data + first, m.rows, columns, m.stride};
}

/* Some rows of a matrix. */
static inline sr_matrix sr_matrix_rows(sr_matrix m, int64_t first, int64_t rows) {
    return (sr_matrix){m.data + first * m.stride, rows, m.columns, m.stride};
}

/* Reductions over rows are done in this many fixed parts, summed in order. */
enum { SR_ROW_PARTS = 32 };

typedef struct sr_rmsnorm {
    const float *x;      /* (rows, C) */
    const float *weight; /* (C) */
    float *rstd;         /* (rows): 1/sqrt(mean x^2 + epsilon); forward writes, backward reads */
    float epsilon;
    int64_t rows;
    int64_t C;
} sr_rmsnorm;

/* Rotate-half layout: channel c of a head turns with channel c + D/2. */
typedef struct sr_rope {
    const float *table;       /* (positions, D): cosines of the D/2 angles, then their sines */
    const int32_t *positions; /* (rows) of each token in its document */
    int heads;                /* x has heads * D columns */
    int D;                    /* even */
} sr_rope;

/* Depthwise causal convolution over the tokens of a document, then SiLU. */
typedef struct sr_short_conv {
    sr_matrix x;              /* (rows, channels), before the convolution */
    const float *weight;      /* (channels, 1, width); the last tap meets the token itself */
    const float *bias;        /* (channels) or NULL */
    const int32_t *positions; /* (rows) */
    int width;                /* 1 .. SR_SHORT_CONV_MAX */
    int64_t T;                /* tokens in a batch row; rows = B * T */

    /* (B, width - 1, channels): what came before the first token of each batch row, oldest first;
     * NULL: nothing did. Read by forward, where a token's position says that it has such
     * predecessors. */
    const float *history;
} sr_short_conv;

typedef struct sr_adamw {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; /* gradients are multiplied by it first: clipping, accumulation */
    int64_t step;          /* 1 for the first update */
} sr_adamw;

typedef struct sr_backend sr_backend;
struct sr_backend {
    srnn_device *device; /* its memory; owned */
    int threads;
    void (*destroy)(sr_backend *backend);

    /* ---- embedding: row r of out (rows, C) is row ids[r] of weight (V, C); zero if ids[r] < 0 */
    srnn_status (*embed_forward)(sr_backend *backend, sr_matrix out, const float *weight,
                                 const int32_t *ids);
    /* Adds to d_weight (V, C). */
    srnn_status (*embed_backward)(sr_backend *backend, float *d_weight, sr_matrix d_out,
                                  const int32_t *ids);

    /* ---- linear layers: weight (N, K), x (rows, K), y (rows, N) */
    /* y = x weight^T + bias; adds to y if `add`. bias (N) or NULL. */
    srnn_status (*linear_forward)(sr_backend *backend, sr_matrix y, sr_matrix x,
                                  const float *weight, const float *bias, bool add);
    /* d_x = d_y weight; adds to d_x if `add`. */
    srnn_status (*linear_backward_input)(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const float *weight, bool add);
    /* Adds d_y^T x to d_weight and the column sums of d_y to d_bias (or NULL). */
    srnn_status (*linear_backward_weight)(sr_backend *backend, float *d_weight, float *d_bias,
                                          sr_matrix d_y, sr_matrix x);

    /* ---- out = x / sqrt(mean x^2 + epsilon) * weight */
    srnn_status (*rmsnorm_forward)(sr_backend *backend, float *out, const sr_rmsnorm *norm);
    /* Adds to d_x (rows, C) and to d_weight (C). scratch: (SR_ROW_PARTS, C). */
    srnn_status (*rmsnorm_backward)(sr_backend *backend, float *d_x, float *d_weight,
                                    const float *d_out, const sr_rmsnorm *norm, float *scratch);

    /* ---- rotary position, in place; backward turns gradients back */
    srnn_status (*rope_forward)(sr_backend *backend, sr_matrix x, const sr_rope *rope);
    srnn_status (*rope_backward)(sr_backend *backend, sr_matrix d_x, const sr_rope *rope);

    /* ---- MLP activations over n numbers: silu(gate) * up; exact gelu(x). A gradient may be
     * written over d_out. */
    srnn_status (*swiglu_forward)(sr_backend *backend, float *out, const float *gate,
                                  const float *up, int64_t n);
    srnn_status (*swiglu_backward)(sr_backend *backend, float *d_gate, float *d_up,
                                   const float *d_out, const float *gate, const float *up,
                                   int64_t n);
    srnn_status (*gelu_forward)(sr_backend *backend, float *out, const float *x, int64_t n);
    srnn_status (*gelu_backward)(sr_backend *backend, float *d_x, const float *d_out,
                                 const float *x, int64_t n);

    /* ---- short convolution */
    srnn_status (*short_conv_forward)(sr_backend *backend, sr_matrix out,
                                      const sr_short_conv *conv);
    /* Writes d_x; adds to d_weight and d_bias (or NULL); leaves d_out in ruins. conv->history is
     * not used. */
    srnn_status (*short_conv_backward)(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                       float *d_bias, sr_matrix d_out, const sr_short_conv *conv);

    /* ---- out = x + y over n numbers; out may be x or y */
    srnn_status (*add)(sr_backend *backend, float *out, const float *x, const float *y, int64_t n);

    /* ---- losses[r] = log(sum exp logits[r]) - logits[r][targets[r]], and logits become the
     * gradient of scale * sum(losses). A negative target does not count: loss and gradient 0. */
    srnn_status (*cross_entropy)(sr_backend *backend, float *losses, sr_matrix logits,
                                 const int32_t *targets, float scale);

    /* ---- AdamW as torch defines it, over n numbers */
    srnn_status (*adamw)(sr_backend *backend, float *weight, float *mean, float *square,
                         const float *gradient, int64_t n, const sr_adamw *settings);

    /* ---- *sum (host memory) = sum of x, or of x^2, in double */
    srnn_status (*sum)(sr_backend *backend, double *sum, const float *x, int64_t n);
    srnn_status (*square_sum)(sr_backend *backend, double *sum, const float *x, int64_t n);
};

/* The CPU backend on `threads` threads (0: every core). Free with sr_backend_free. */
srnn_status sr_backend_cpu_create(sr_backend **backend, int threads);

/* From now on linear layers multiply in bf16 with sums in float; weights stay float. Fails with
 * SRNN_ERR_UNSUPPORTED where the machine has no instructions for it. */
srnn_status sr_backend_cpu_bf16(sr_backend *backend);
void sr_backend_free(sr_backend *backend);

#endif
