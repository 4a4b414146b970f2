/* backend.h: the arithmetic that a model may use, declared once for every device.
 *
 * A backend is a table of functions, none of them NULL. Every array lives in the memory of its
 * device, row-major; `rows` counts tokens (B*T). What enters a product has the backend's number
 * type (activations, their gradients, the working copy of the weights); everything else is float:
 * the residual stream and its gradient, learned vectors, statistics, losses, gradients of weights.
 *
 * Destinations come first; "adds" means that the result is added to what the destination holds. No
 * function allocates or waits, so that what a step starts can be recorded; the bits of a result do
 * not depend on the number of threads. Attention itself goes through srnn_plan_* and srnn_state_*
 * of softrnn.h. */
#ifndef SR_OPS_BACKEND_H
#define SR_OPS_BACKEND_H

#include "base/status.h"
#include "device/device.h"
#include "equation/facts.h"
#include "ops/matrix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reductions over rows are done in this many fixed parts, summed in order. */
enum { SR_ROW_PARTS = 32 };

/* The CPU adds squares up in units of so many numbers, then the units in their order, so that
 * several processes can do it together. */
enum { SR_SQUARES_UNIT = 4096 };

/* A linear layer, or its gradients; several side by side are one product where their weights follow
 * each other in memory. */
typedef struct sr_linear {
    const void *weight; /* (N, K), number type */
    const float *bias;  /* (N) or NULL */
    int64_t N;
} sr_linear;

typedef struct sr_linear_gradient {
    float *weight; /* (N, K) */
    float *bias;   /* (N) or NULL */
    int64_t N;
} sr_linear_gradient;

enum { SR_LINEAR_GROUP_MAX = 8 };

typedef struct sr_rmsnorm {
    const float *x;      /* (rows, C) */
    const float *weight; /* (C) */
    float *rstd;         /* (rows): 1/sqrt(mean x^2 + epsilon); forward writes, backward reads */
    float epsilon;
    int64_t rows;
    int64_t C;
} sr_rmsnorm;

/* What the backward of a norm writes. */
typedef struct sr_rmsnorm_gradient {
    float *d_x;   /* (rows, C): adds */
    void *narrow; /* (rows, C): d_x once more in the number type; d_x itself where that is float */
    float *d_weight; /* (C): adds */
    float *scratch;  /* (SR_ROW_PARTS, C) */
} sr_rmsnorm_gradient;

/* RMS norm or LayerNorm of pieces of rows: all C channels of a block's input, or the channels of
 * every head of q. Statistics are computed again by backward. */
typedef struct sr_norm {
    sr_matrix x;         /* (rows, groups * C), float or number type */
    const float *weight; /* (C), or (groups * C) if `own_weights` */
    const float *bias;   /* as the weight, or NULL */
    int64_t groups, C;
    bool own_weights;   /* each group has its own */
    bool subtract_mean; /* LayerNorm */
    float offset;       /* added to the weight: 1 where files store w - 1 */
    float epsilon;
} sr_norm;

/* What the backward of it writes. */
typedef struct sr_norm_gradient {
    sr_matrix d_x;   /* as x: written, or added to if `adds` */
    float *d_weight; /* as the weight: adds */
    float *d_bias;   /* adds; NULL: no bias */
    float *scratch;  /* (SR_ROW_PARTS, 2 * the weights) */
    bool adds;
} sr_norm_gradient;

/* Rotate-half layout: channel c of a head rotates with channel c + width/2. */
typedef struct sr_rope {
    const float *table;       /* (positions, width): cosines of its angles, then their sines */
    const int32_t *positions; /* (rows) of each token in its document */
    int heads;                /* x has heads * D columns */
    int D;
    int width;       /* even: the first channels of a head, which rotate; 0: D */
    bool neighbours; /* channel 2c rotates with 2c + 1 instead */
} sr_rope;

typedef enum sr_activation {
    SR_ACTIVATION_SILU = 0,
    SR_ACTIVATION_GELU,      /* exact */
    SR_ACTIVATION_GELU_TANH, /* its approximation by tanh */
    SR_ACTIVATION_RELU,
    SR_ACTIVATION_RELU_SQUARE,
    SR_ACTIVATION_XIELU, /* arXiv 2411.13010, with beta 0.5: a x^2 + x/2 above 0, else (e^x - 1 - x)
                            b + x/2, of a = softplus(alpha_p), b = 0.5 + softplus(alpha_n) */
} sr_activation;

/* The activation of an MLP: out (rows, F) = f(x), or f(gate) * up of x (rows, 2F), gate first. */
typedef struct sr_mlp_activation {
    sr_activation function;
    bool gated;
    const float *alpha_p, *alpha_n; /* (1) each, of XIELU */
} sr_mlp_activation;

/* Linear layers of a norm, as pieces of a text have them. */
typedef struct sr_norm_linear {
    sr_rmsnorm norm;
    void *normed;            /* (rows, C), number type: room for what the norm makes */
    const sr_linear *layers; /* (count) */
    int count;
    const sr_rope *rope; /* of the first heads * D columns of the products; NULL: none */

    /* Not NULL: RoPE that would need a kernel of its own is left to the caller, and this says
     * whether it was applied. */
    bool *rope_applied;
} sr_norm_linear;

/* Depthwise causal convolution over the tokens of a document, then SiLU, or nothing. */
typedef struct sr_short_conv {
    sr_matrix x;              /* (rows, channels), before the convolution */
    const float *weight;      /* (channels, 1, width); the last tap meets the token itself */
    const float *bias;        /* (channels) or NULL */
    const int32_t *positions; /* (rows) */
    int width;                /* 1 .. SR_SHORT_CONV_MAX */
    bool plain;               /* no SiLU */
    int64_t T;                /* tokens in a batch row; rows = B * T */

    /* (B, width - 1, channels) of x's type: what came before the first token of each batch row,
     * oldest first; NULL: nothing did. Read by forward, where a token's position says that it has
     * such predecessors. */
    const void *history;
} sr_short_conv;

/* Rows of contexts mixed, as Avey's contextualizer does it (2506.11305). With x0 | x1 | tail =
 * relu(x)^2, u = x0 / |x0| and rows i, j of one context:  out = x1 sums | tail,  sums_i = the sum
 * over j <= i of weight_ij <u_i, u_j> x0_j. */
typedef struct sr_context_mix {
    sr_matrix x;         /* (rows, 2 * mixed + tail), number type */
    const float *weight; /* (context, context) */
    int64_t context;     /* rows of one, of which `rows` is a multiple */
    int64_t mixed;       /* channels of x0, and of x1 */
    void *saved;         /* context_mix_bytes: forward writes, backward reads */
} sr_context_mix;

/* Contexts of chunks of embedded tokens, as Avey's ranker makes them: chunk n comes last, and
 * before it, in order of time, those chunks - 1 earlier ones whose scores are the highest, each
 * times its score over a divisor; zeros where there are fewer. A chunk's score is the sum over the
 * tokens of the asking chunk of the cosine with its nearest token. */
typedef struct sr_ranking {
    const float *e;    /* (B, stride, C): N whole chunks of each sequence, zeros after its end */
    int64_t B, N, C;   /* sequences, chunks, channels */
    int64_t stride;    /* rows from one sequence to the next */
    int64_t first;     /* the chunk from which on contexts are made */
    int chunk, chunks; /* tokens of a chunk, chunks of a context */
    /* The chunk before asks, and the highest score divides; else the chunk itself asks, and the
     * score of the oldest chunk divides. */
    bool causal;
    void *saved; /* rank_bytes: forward writes, backward reads */
} sr_ranking;

/* One step's numbers, in device memory: the host writes it before the step and reads it after. */
typedef struct sr_step_stats {
    double loss;          /* sum over the targets */
    double squares;       /* sum of squares of the gradient */
    double learning_rate; /* written by the host */
    double gradient_norm; /* of the mean loss, before clipping */
    int64_t targets;      /* that count */
    int64_t hits;         /* targets with the largest logit */
    int64_t updates;      /* that AdamW has made */
    int64_t applied;      /* 0: loss or gradient was not finite, so nothing was changed */
} sr_step_stats;

typedef struct sr_number_range {
    int64_t first, end;
} sr_number_range;

/* AdamW as torch defines it, over n numbers. Gradients are of the sum of losses over `nominal`;
 * they are brought to the mean over the step's targets, then clipped to a norm of `clip` (0:
 * never). */
typedef struct sr_adamw {
    float *weight, *mean, *square; /* (n) */
    const float *gradient;         /* (n) */
    void *working; /* (n): the weights in the number type; `weight` itself where that is float */
    int64_t n;
    int64_t first; /* where `weight` begins in the whole of them */
    /* Numbers of the whole that have no weight decay, in order, host memory; multiples of 16. */
    const sr_number_range *undecayed;
    size_t undecayed_count;
    double beta1, beta2, epsilon, weight_decay, clip, nominal;
} sr_adamw;

/* The next piece of [0, n) from `from` on that has weight decay throughout, or has none: its end,
 * and which. */
int64_t sr_adamw_piece(const sr_adamw *adamw, int64_t from, bool *decays);

typedef struct sr_backend sr_backend;
struct sr_backend {
    srnn_device *device;   /* its memory; owned */
    srnn_dtype number;     /* of what enters a product: float, or bf16 */
    int64_t logit_numbers; /* how many logits the head should make at a time */
    int threads;
    void (*destroy)(sr_backend *backend);

    /* ---- out (n) = x (n) in the number type; and back */
    srnn_status (*narrow)(sr_backend *backend, void *out, const float *x, int64_t n);
    srnn_status (*widen)(sr_backend *backend, float *out, const void *x, int64_t n);

    /* ---- embedding: row r of out (rows, C), float, is row ids[r] of weight (V, C); zero if ids[r]
     * < 0 */
    srnn_status (*embed_forward)(sr_backend *backend, sr_matrix out, const float *weight,
                                 const int32_t *ids);
    /* Adds to d_weight (V, C). */
    srnn_status (*embed_backward)(sr_backend *backend, float *d_weight, sr_matrix d_out,
                                  const int32_t *ids);

    /* ---- linear layers side by side: x (rows, K), y (rows, sum of N) */
    /* y = x weight^T + bias + addend (rows, sum of N) of y's type, whose data may be NULL, or
     * y's. */
    srnn_status (*linear_forward)(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                  const sr_linear *layers, int count);
    /* d_x = d_y weight. */
    srnn_status (*linear_backward_input)(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const sr_linear *layers, int count);
    /* Adds d_y^T x to each weight's gradient and the column sums of d_y to each bias's. */
    srnn_status (*linear_backward_weight)(sr_backend *backend, const sr_linear_gradient *layers,
                                          int count, sr_matrix d_y, sr_matrix x);

    /* ---- out (rows, C), number type, = x / sqrt(mean x^2 + epsilon) * weight */
    srnn_status (*rmsnorm_forward)(sr_backend *backend, void *out, const sr_rmsnorm *norm);
    /* d_out (rows, C), number type. */
    srnn_status (*rmsnorm_backward)(sr_backend *backend, const sr_rmsnorm_gradient *gradient,
                                    const void *d_out, const sr_rmsnorm *norm);

    /* ---- RoPE, in place; backward applies the inverse to gradients */
    srnn_status (*rope_forward)(sr_backend *backend, sr_matrix x, const sr_rope *rope);
    srnn_status (*rope_backward)(sr_backend *backend, sr_matrix d_x, const sr_rope *rope);

    /* ---- MLP activations, number type: out (rows, F) = silu(gate) * up of x (rows, 2F), the
     * columns of gate first; out = exact gelu(x) of x (rows, F). A gradient of gelu may be written
     * over d_out. */
    srnn_status (*swiglu_forward)(sr_backend *backend, sr_matrix out, sr_matrix x);
    srnn_status (*swiglu_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                   sr_matrix x);
    srnn_status (*gelu_forward)(sr_backend *backend, sr_matrix out, sr_matrix x);
    srnn_status (*gelu_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix d_out, sr_matrix x);

    /* ---- the same for every other activation; d_alpha: gradients of alpha_p and alpha_n, added
     * to, NULL unless XIELU. d_x may be d_out where there is no gate. */
    srnn_status (*activation_forward)(sr_backend *backend, sr_matrix out, sr_matrix x,
                                      const sr_mlp_activation *activation);
    srnn_status (*activation_backward)(sr_backend *backend, sr_matrix d_x, float *const d_alpha[2],
                                       sr_matrix d_out, sr_matrix x,
                                       const sr_mlp_activation *activation);

    /* ---- norms of any kind: out as norm->x, number type */
    srnn_status (*norm_forward)(sr_backend *backend, sr_matrix out, const sr_norm *norm);
    srnn_status (*norm_backward)(sr_backend *backend, const sr_norm_gradient *gradient,
                                 sr_matrix d_out, const sr_norm *norm);

    /* ---- x *= factor; out = x + factor y, float but for y, which has the number type; x = cap
     * tanh(x / cap), and d_x = d_x (1 - (capped / cap)^2) for what came of it */
    srnn_status (*scale)(sr_backend *backend, sr_matrix x, float factor);
    srnn_status (*add_scaled)(sr_backend *backend, sr_matrix out, sr_matrix x, sr_matrix y,
                              float factor);
    srnn_status (*cap_forward)(sr_backend *backend, sr_matrix x, float cap);
    srnn_status (*cap_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix capped, float cap);

    /* ---- forward only, in one where few rows make that worthwhile; what is between may stay
     * unwritten: y (rows, sum of N), number type, = the layers of the norm, with RoPE applied; out
     * (rows, F) = swiglu of the two layers of the norm, `up` (rows, 2F) room for these */
    srnn_status (*norm_linear_forward)(sr_backend *backend, sr_matrix y, const sr_norm_linear *of);
    srnn_status (*norm_swiglu_forward)(sr_backend *backend, sr_matrix out, sr_matrix up,
                                       const sr_norm_linear *of);

    /* ---- out[r] = the column of the largest number of row r, the first of equals; never that of a
     * NaN while there is a number */
    srnn_status (*argmax)(sr_backend *backend, int32_t *out, sr_matrix x);

    /* ---- what was chosen is read next: ids[r] = chosen[r], positions[r] = position, of `rows`
     * sequences */
    srnn_status (*next_inputs)(sr_backend *backend, int32_t *ids, int32_t *positions,
                               const int32_t *chosen, int32_t position, int64_t rows);

    /* ---- short convolution, number type */
    srnn_status (*short_conv_forward)(sr_backend *backend, sr_matrix out,
                                      const sr_short_conv *conv);
    /* Writes d_x; adds to d_weight and d_bias (or NULL); destroys d_out. conv->history is
     * not used. */
    srnn_status (*short_conv_backward)(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                       float *d_bias, sr_matrix d_out, const sr_short_conv *conv);
    /* history (as conv->history, another array) = the last inputs of each batch row: those of
     * conv->x after the older ones. */
    srnn_status (*short_conv_history)(sr_backend *backend, void *history,
                                      const sr_short_conv *conv);

    /* ---- mixed contexts, number type: out (rows, x.columns - mixed) */
    size_t (*context_mix_bytes)(const sr_backend *backend, const sr_context_mix *mix);
    srnn_status (*context_mix_forward)(sr_backend *backend, sr_matrix out,
                                       const sr_context_mix *mix);
    /* Writes d_x; adds to d_weight; scratch of context_mix_bytes. */
    srnn_status (*context_mix_backward)(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                        sr_matrix d_out, const sr_context_mix *mix, void *scratch);

    /* ---- contexts: out (B * (N - first) * chunks * chunk, C) */
    size_t (*rank_bytes)(const sr_backend *backend, const sr_ranking *ranking);
    srnn_status (*rank_forward)(sr_backend *backend, float *out, const sr_ranking *ranking);
    /* Writes d_e (as ranking->e), given what forward saved. */
    srnn_status (*rank_backward)(sr_backend *backend, float *d_e, const float *d_out,
                                 const sr_ranking *ranking);

    /* ---- y += x over n numbers; over the rows of matrices of one shape and number type */
    srnn_status (*add)(sr_backend *backend, float *y, const float *x, int64_t n);
    srnn_status (*add_rows)(sr_backend *backend, sr_matrix y, sr_matrix x);

    /* ---- losses[r] = log(sum exp logits[r]) - logits[r][targets[r]]; hits[r] (or NULL) = 1 if the
     * target has the largest logit, the first of equals, else 0. Then logits become the gradient of
     * scale * sum(losses), unless scale is 0, with which they have no meaning. A negative target
     * does not count: loss, hit and gradient 0. */
    srnn_status (*cross_entropy)(sr_backend *backend, float *losses, int32_t *hits,
                                 sr_matrix logits, const int32_t *targets, float scale);

    /* ---- step stats: adds losses and hits (or NULL) of rows; squares = sum of x^2 */
    srnn_status (*stats_losses)(sr_backend *backend, sr_step_stats *stats, const float *losses,
                                const int32_t *hits, const int32_t *targets, int64_t rows);
    srnn_status (*stats_squares)(sr_backend *backend, sr_step_stats *stats, const float *x,
                                 int64_t n);
    /* units[i] = the sum of squares of the i-th SR_SQUARES_UNIT numbers of x (n); units in host
     * memory. NULL where squares are not summed by units. */
    srnn_status (*unit_squares)(sr_backend *backend, double *units, const float *x, int64_t n);

    /* ---- an update by the learning rate of the step stats, if its loss and gradient are finite;
     * sets gradient_norm, applied and updates */
    srnn_status (*adamw)(sr_backend *backend, sr_step_stats *stats, const sr_adamw *adamw);
};

/* How the numbers of a run are computed. */
typedef struct sr_backend_settings {
    const char *device; /* "cpu", "cuda", "cuda:1"; NULL: cpu */
    int threads;        /* of the host; 0: every core */
    bool bf16;          /* products in bf16 with sums in float */
} sr_backend_settings;

/* The one place where backends are made. Fails with SRNN_ERR_UNSUPPORTED and the name of what is
 * missing where the machine cannot do it. Free with sr_backend_free. */
srnn_status sr_backend_create(sr_backend **backend, const sr_backend_settings *settings);
void sr_backend_free(sr_backend *backend);

/* norm_linear_forward and norm_swiglu_forward by the other functions of the table, one after the
 * other. */
srnn_status sr_norm_linear_steps(sr_backend *backend, sr_matrix y, const sr_norm_linear *of);
srnn_status sr_norm_swiglu_steps(sr_backend *backend, sr_matrix out, sr_matrix up,
                                 const sr_norm_linear *of);

#ifdef __cplusplus
}
#endif

#endif
