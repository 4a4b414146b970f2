/* backend.h: the ops of a model, declared once for every device.
 *
 * A backend is a table of functions, none of them NULL. Every array is in the memory of its device,
 * row-major; `rows` counts tokens (B*T). Operands of GEMMs have the backend's number type
 * (activations, their gradients, the working copy of the weights); everything else is float: the
 * residual stream and its gradient, learned vectors, statistics, losses, gradients of weights.
 * Destinations come first; "adds" means that the result is added to the destination. No function
 * allocates or synchronises, so that a step can be captured as a graph; the bits of a result do not
 * depend on the number of threads. Attention itself goes through srnn_plan_* and srnn_state_* of
 * softrnn.h. */
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

/* The CPU sums squares in units of this many numbers, then the units in order, so that several
 * processes can share the work. */
enum { SR_SQUARES_UNIT = 4096 };

/* A linear layer, or its gradients. Layers that share their input are one GEMM where their weights
 * are contiguous in memory. */
typedef struct sr_linear {
    const void *weight; /* (N, K), number type */
    const float *bias;  /* (N) or NULL */
    int64_t N;
    bool narrow; /* the weight is bf16, on a backend whose numbers are float and products bf16 */
    bool fp8; /* linear_forward and linear_backward may round operands to 8 bits, on a backend that
                  * does so */
} sr_linear;

typedef struct sr_linear_gradient {
    float *weight; /* (N, K) */
    float *bias;   /* (N) or NULL */
    int64_t N;
} sr_linear_gradient;

enum { SR_LINEAR_GROUP_MAX = 8 };

/* The backward pass of linear layers with a common input. */
typedef struct sr_linear_backward {
    /* (rows, K): written; SR_HANDED_MEASURED: so is the note, with a bound that may be far above
     * its numbers; if d_y is codes, its note then has their largest size */
    sr_matrix d_x;
    sr_matrix d_y; /* (rows, sum of N) */
    sr_matrix x;   /* (rows, K) */
    const sr_linear *layers;
    const sr_linear_gradient *gradients; /* added to */
    int count;
} sr_linear_backward;

typedef struct sr_rmsnorm {
    const float *x;      /* (rows, C) */
    const float *weight; /* (C) */
    float *rstd;         /* (rows): 1/sqrt(mean x^2 + epsilon); forward writes, backward reads */
    float epsilon;
    int64_t rows;
    int64_t C;
    sr_matrix_note *codes; /* not NULL: forward writes SR_HANDED_CODES with this note */
} sr_rmsnorm;

/* Outputs of the backward pass of a norm. */
typedef struct sr_rmsnorm_gradient {
    float *d_x;      /* (rows, C): adds */
    void *narrow;    /* (rows, C): d_x again, in the number type; d_x itself if that is float */
    float *d_weight; /* (C): adds */
    float *scratch;  /* (SR_ROW_PARTS, C) */
    sr_matrix_note *measured; /* not NULL: `narrow` is SR_HANDED_MEASURED with this note, */
    /* or SR_HANDED_CODES, of rows that are a multiple of SR_FP8_STEP, as is C: with the largest
     * size and the scale. On entry the largest size is 0 or that of a gradient that should be
     * alike. */
    bool codes;
} sr_rmsnorm_gradient;

/* RMS norm or LayerNorm of groups of channels: all C channels of a block's input, or the channels
 * of each head of q. Backward recomputes the statistics. */
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

/* Outputs of its backward pass. */
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
    int width;       /* even: number of channels of a head that rotate, the first ones; 0: D */
    bool neighbours; /* interleaved layout: channel 2c rotates with 2c + 1 */
} sr_rope;

typedef enum sr_activation {
    SR_ACTIVATION_SILU = 0,
    SR_ACTIVATION_GELU,      /* exact */
    SR_ACTIVATION_GELU_TANH, /* the tanh approximation */
    SR_ACTIVATION_RELU,
    SR_ACTIVATION_RELU_SQUARE,
    /* arXiv 2411.13010, with beta 0.5: a x^2 + x/2 above 0, else (e^x - 1 - x) b + x/2, with
     * a = softplus(alpha_p), b = 0.5 + softplus(alpha_n) */
    SR_ACTIVATION_XIELU,
    /* gpt-oss: x sigmoid(sharpness x) of x = min(x, limit); what it gates is clamped to +- limit,
     * plus 1 */
    SR_ACTIVATION_SILU_CLAMPED,
    SR_ACTIVATION_IDENTITY, /* with a gate: the product of both */
} sr_activation;

/* The activation of an MLP: out (rows, F) = f(x), or f(gate) * up of x (rows, 2F), gate first. */
typedef struct sr_mlp_activation {
    sr_activation function;
    bool gated;
    const float *alpha_p, *alpha_n; /* (1) each, of XIELU */
    float limit, sharpness;         /* of SILU_CLAMPED */
} sr_mlp_activation;

/* How a router chooses experts for each row, from its logits (rows, count), or (rows, count + 1)
 * with a shared expert. The `chosen` largest of softmax over `count` logits, the first of equals,
 * are the weights of their experts, divided by their sum if `renormalised`; the other weights are
 * 0. The last weight is the sigmoid of its logit: of the shared expert, which sees every row. */
typedef struct sr_routing {
    int count, chosen;
    bool renormalised, shared;
} sr_routing;

enum { SR_EXPERTS_MAX = 1024 };

/* The rows that one expert sees: those with a weight. */
typedef struct sr_expert_rows {
    const float *weights; /* (rows, columns): of all experts */
    float *d_weights;     /* as weights: their gradient; NULL in forward passes */
    int64_t columns;
    int expert;      /* its column */
    int32_t *places; /* (rows): workspace; expert_gather writes it, the other functions read it */
} sr_expert_rows;

/* A norm followed by linear layers, for inference. */
typedef struct sr_norm_linear {
    sr_rmsnorm norm;
    void *normed;            /* (rows, C), number type: workspace for the output of the norm */
    const sr_linear *layers; /* (count) */
    int count;
    const sr_rope *rope; /* for the first heads * D columns of the products; NULL: none */

    /* Not NULL: RoPE that would need a separate kernel is left to the caller; reports whether RoPE
     * was applied. */
    bool *rope_applied;
} sr_norm_linear;

/* Depthwise causal convolution over the tokens of a document, then SiLU or the identity. */
typedef struct sr_short_conv {
    sr_matrix x;              /* (rows, channels), before the convolution */
    const float *weight;      /* (channels, 1, width); the last tap belongs to the token itself */
    const float *bias;        /* (channels) or NULL */
    const int32_t *positions; /* (rows) */
    int width;                /* 1 .. SR_SHORT_CONV_MAX */
    bool plain;               /* no SiLU */
    int64_t T;                /* tokens in a batch row; rows = B * T */

    /* (B, width - 1, channels) of x's type: the tokens before the first token of each batch row,
     * oldest first; NULL: none. Read where a token's position says that it has such
     * predecessors. */
    const void *history;
} sr_short_conv;

/* Avey's contextualizer (2506.11305): mixes the rows of each context. With x0 | x1 | tail =
 * relu(x)^2, u = x0 / |x0| and rows i, j of one context: out = x1 sums | tail, sums_i = sum over j
 * <= i of weight_ij <u_i, u_j> x0_j. */
typedef struct sr_context_mix {
    sr_matrix x;         /* (rows, 2 * mixed + tail), number type */
    const float *weight; /* (context, context) */
    int64_t context;     /* rows per context; `rows` is a multiple */
    int64_t mixed;       /* channels of x0, and of x1 */
    void *saved;         /* context_mix_bytes: forward writes, backward reads */
} sr_context_mix;

/* Avey's ranker: contexts made of chunks of embedded tokens. Chunk n comes last; before it, in
 * order of time, come the chunks - 1 earlier ones with the highest scores, each multiplied by its
 * score over a divisor; missing chunks are zeros. A chunk's score is the sum, over the tokens of
 * the query chunk, of the cosine with its nearest token. */
typedef struct sr_ranking {
    const float *e;    /* (B, stride, C): N whole chunks of each sequence, zeros after its end */
    int64_t B, N, C;   /* sequences, chunks, channels */
    int64_t stride;    /* rows from one sequence to the next */
    int64_t first;     /* the first chunk that gets a context */
    int chunk, chunks; /* tokens per chunk, chunks per context */
    /* The previous chunk is the query, and the highest score is the divisor; otherwise the chunk
     * itself is the query, and the score of the oldest chunk is the divisor. */
    bool causal;
    void *saved; /* rank_bytes: forward writes, backward reads */
} sr_ranking;

/* The loss of rows of logits: minus the log probability of each target. */
typedef struct sr_cross_entropy {
    const int32_t *targets; /* (rows): negative: the row is ignored */
    float scale;            /* of the gradient; 0: none */
    /* z-loss (Chowdhery et al. 2022, 5): adds z log(sum exp logits)^2 to what the gradient is of,
     * not to the losses */
    float z;
    /* (rows, V), data not NULL: where the gradient goes as SR_HANDED_CODES, if linear layers take
     * them with this number of rows; the bf16 logits then stay unchanged */
    sr_matrix codes;
} sr_cross_entropy;

/* How far a student's distribution over tokens is from a teacher's, row by row. With p = softmax of
 * the teacher's logits over the temperature t and q of the student's: t^2 sum p log(p / q), or
 * reversed, t^2 sum q log(q / p). The factor keeps gradients of one size at any temperature. */
typedef struct sr_divergence {
    sr_matrix student, teacher; /* (rows, V), number type, finite; the teacher's is destroyed */
    const int32_t *targets;     /* (rows): rows without one are not counted */
    bool reversed;
    float temperature; /* above 0 */
    float scale;
} sr_divergence;

/* How far x is from y, row by row: factor times the sum of (x - y)^2 over the columns. */
typedef struct sr_square_error {
    const float *x, *y;     /* (rows, C) */
    const int32_t *targets; /* (rows): rows without one are not counted */
    int64_t rows, C;
    float factor, scale;
} sr_square_error;

/* Step stats, in device memory: the host writes them before the step and reads them after it. */
typedef struct sr_step_stats {
    double loss;           /* sum over the targets */
    double squares;        /* sum of squares of the gradient */
    double learning_rate;  /* written by the host */
    double gradient_norm;  /* gradient norm of the mean loss, before clipping */
    double gradient_scale; /* the factor of the gradient: to the mean over targets, and clipping */
    int64_t targets;       /* that count */
    int64_t hits;          /* targets that have the largest logit */
    int64_t updates;       /* that AdamW has made */
    int64_t applied;       /* 0: loss or gradient was not finite, so the update was skipped */
} sr_step_stats;

typedef struct sr_number_range {
    int64_t first, end;
} sr_number_range;

/* AdamW as torch defines it, over n weights. Gradients are those of the sum of losses over
 * `nominal`; they are rescaled to the mean over the step's targets, then clipped to a norm of
 * `clip` (0: no clipping). */
typedef struct sr_adamw {
    float *weight, *mean, *square; /* (n) */
    const float *gradient;         /* (n) */
    void *working; /* (n): the weights in the number type; `weight` itself where that is float */
    int64_t n;
    int64_t first; /* index of weight[0] among all weights */
    /* Ranges of the weights without weight decay, in order, host memory; multiples of 16. */
    const sr_number_range *undecayed;
    size_t undecayed_count;
    double beta1, beta2, epsilon, weight_decay, clip, nominal;
} sr_adamw;

/* Muon for n consecutive numbers of a matrix (train/muon.h): its momentum M, its direction U and,
 * once U is orthogonal, its update. */
typedef struct sr_muon_part {
    float *weight, *mean;  /* (n); mean is M */
    const float *gradient; /* (n): multiplied by the step stats' gradient_scale */
    float *direction;      /* (n): U; may be the gradient's memory */
    void *working;         /* (n), as in sr_adamw */
    int64_t n;
    double momentum, weight_decay, step_size; /* the last: of the learning rate */
} sr_muon_part;

/* The scores of a layer: scale <q_i, k_j> of a token and those of its document that it sees. */
typedef struct sr_scores {
    srnn_tensor q;            /* (B, H, T, D), number type */
    srnn_tensor k;            /* (B, Hkv, T, D): H / Hkv heads of q read one of k */
    const int32_t *positions; /* (B*T) of each token in its document */
    int64_t B, H, Hkv, T, D;
    int64_t window; /* i - j < window; 0: any j <= i */
    float scale;
} sr_scores;

/* QK-clip (Kimi K2, arXiv 2507.20534): n consecutive numbers of the rows of a weight, or of a bias,
 * that make queries or keys. Where a head's largest score is above the limit, its numbers are
 * multiplied by limit / score, or by the square root of that. */
typedef struct sr_head_weights {
    float *weight; /* (n) */
    void *working; /* (n), as in sr_adamw */
    int64_t n;
    int64_t first;        /* of all heads' numbers */
    int64_t head_numbers; /* that one head has */
    const float *largest; /* (parts, stride): of each head the largest score is that of all parts */
    int64_t parts, stride;
    float limit;
    bool root;
} sr_head_weights;

/* The next range of [0, n), starting at `from`, in which weight decay is on everywhere or off
 * everywhere: its end, and which. */
int64_t sr_adamw_piece(const sr_adamw *adamw, int64_t from, bool *decays);

typedef struct sr_backend sr_backend;
struct sr_backend {
    srnn_device *device;   /* its memory; owned */
    srnn_dtype number;     /* of operands of GEMMs: float or bf16 */
    bool fp8_head;         /* the output layer may compute in FP8 */
    srnn_dtype product;    /* what GEMMs round them to: bf16 on a CPU where `number` is float */
    int64_t logit_numbers; /* number of logits that the output layer should compute at a time */
    int threads;
    void (*destroy)(sr_backend *backend);

    /* ---- out (n) = x (n) converted to the number type; and back to float */
    srnn_status (*narrow)(sr_backend *backend, void *out, const float *x, int64_t n);
    srnn_status (*widen)(sr_backend *backend, float *out, const void *x, int64_t n);

    /* ---- embedding: row r of out (rows, C), float, is row ids[r] of weight (V, C), float or bf16,
     * without gaps between its rows; zero if ids[r] < 0 */
    srnn_status (*embed_forward)(sr_backend *backend, sr_matrix out, sr_matrix weight,
                                 const int32_t *ids);
    /* Adds to d_weight (V, C). */
    srnn_status (*embed_backward)(sr_backend *backend, float *d_weight, sr_matrix d_out,
                                  const int32_t *ids);

    /* ---- memory for codes of 8 bits of each of these weights (numbers), the working copy of a
     * model; none where the backend does not multiply in 8 bits. linear_forward writes them once,
     * for itself and for the linear_backward that follows with the same weights. Until
     * drop_codes, which accepts what was not held; *bytes: what they take */
    srnn_status (*hold_codes)(sr_backend *backend, size_t *bytes, const void *weights,
                              int64_t numbers);
    void (*drop_codes)(sr_backend *backend, const void *weights);

    /* ---- from now on, or no longer: the gradients d_y of layers of one shape are expected to be
     * of similar size, so that most need not be measured before they are rounded to 8 bits. Called
     * before and after each pass, whose bits then do not depend on others; results are as good
     * where the expectation fails. */
    srnn_status (*expect_gradients)(sr_backend *backend, bool expects);

    /* ---- linear layers with a common input: x (rows, K), y (rows, sum of N) */
    /* Whether x, and d_y if no layer has a bias, may be handed to them as SR_HANDED_CODES. */
    bool (*takes_codes)(const sr_backend *backend, const sr_linear *layers, int count, int64_t rows,
                        int64_t K);
    /* y = x weight^T + bias + addend (rows, sum of N); the addend has y's type, its data may be
     * NULL or y's. */
    srnn_status (*linear_forward)(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                  const sr_linear *layers, int count);
    /* d_x = d_y weight. */
    srnn_status (*linear_backward_input)(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                         const sr_linear *layers, int count);
    /* Adds d_y^T x to each weight's gradient and the column sums of d_y to each bias's. */
    srnn_status (*linear_backward_weight)(sr_backend *backend, const sr_linear_gradient *layers,
                                          int count, sr_matrix d_y, sr_matrix x);
    /* Both. */
    srnn_status (*linear_backward)(sr_backend *backend, const sr_linear_backward *of);

    /* ---- out (rows, C), number type, = x / sqrt(mean x^2 + epsilon) * weight */
    srnn_status (*rmsnorm_forward)(sr_backend *backend, void *out, const sr_rmsnorm *norm);
    /* d_out (rows, C), number type. */
    srnn_status (*rmsnorm_backward)(sr_backend *backend, const sr_rmsnorm_gradient *gradient,
                                    const void *d_out, const sr_rmsnorm *norm);

    /* ---- RoPE, in place; backward applies the inverse to gradients */
    srnn_status (*rope_forward)(sr_backend *backend, sr_matrix x, const sr_rope *rope);
    srnn_status (*rope_backward)(sr_backend *backend, sr_matrix d_x, const sr_rope *rope);

    /* ---- MLP activations, number type: out (rows, F) = silu(gate) * up of x (rows, 2F), the
     * columns of gate first; out = exact gelu(x) of x (rows, F). d_x may be x, but not if it is
     * SR_HANDED_CODES; of gelu, also d_out. Where linear layers take codes, out of swiglu and d_x
     * may be SR_HANDED_CODES; then x has in backward the note of out, in forward that of an out
     * that should be alike, or none. */
    srnn_status (*swiglu_forward)(sr_backend *backend, sr_matrix out, sr_matrix x);
    srnn_status (*swiglu_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                   sr_matrix x);
    srnn_status (*gelu_forward)(sr_backend *backend, sr_matrix out, sr_matrix x);
    srnn_status (*gelu_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix d_out, sr_matrix x);

    /* ---- all other activations; d_alpha: gradients of alpha_p and alpha_n, added to, NULL unless
     * XIELU. d_x may be x, and also d_out unless there is a gate. */
    srnn_status (*activation_forward)(sr_backend *backend, sr_matrix out, sr_matrix x,
                                      const sr_mlp_activation *activation);
    srnn_status (*activation_backward)(sr_backend *backend, sr_matrix d_x, float *const d_alpha[2],
                                       sr_matrix d_out, sr_matrix x,
                                       const sr_mlp_activation *activation);

    /* ---- routers of experts: weights (rows, columns of the logits); d_logits has the shape of
     * logits and is written */
    srnn_status (*route_forward)(sr_backend *backend, float *weights, sr_matrix logits,
                                 const sr_routing *routing);
    srnn_status (*route_backward)(sr_backend *backend, sr_matrix d_logits, const float *d_weights,
                                  const float *weights, sr_matrix logits,
                                  const sr_routing *routing);

    /* ---- one expert: *out = its rows of x, in memory for all of them. out->rows becomes their
     * number, or all rows of x on devices whose weights the host does not see: those without a
     * weight have no effect then. */
    srnn_status (*expert_gather)(sr_backend *backend, sr_matrix *out, sr_matrix x,
                                 const sr_expert_rows *of);
    /* y (rows of x, C), float, += its rows, float or number type, times their weights if
     * `weighted`. */
    srnn_status (*expert_add)(sr_backend *backend, sr_matrix y, sr_matrix rows,
                              const sr_expert_rows *of, bool weighted);
    /* Given the gradient d_out of its weighted output, gathered: of->d_weights gets the gradient of
     * its weights, with d_activated = d_out times the last layer's matrix, whose
     * input is `activated` and whose bias may be NULL. Then both gradients are multiplied by the
     * weights. */
    srnn_status (*expert_weigh_backward)(sr_backend *backend, sr_matrix d_out,
                                         sr_matrix d_activated, sr_matrix activated,
                                         const float *bias, const sr_expert_rows *of);

    /* ---- norms of any kind: out has the shape of norm->x, number type */
    srnn_status (*norm_forward)(sr_backend *backend, sr_matrix out, const sr_norm *norm);
    srnn_status (*norm_backward)(sr_backend *backend, const sr_norm_gradient *gradient,
                                 sr_matrix d_out, const sr_norm *norm);

    /* ---- x *= factor; out = x + factor y, float except for y, which has the number type; x = cap
     * tanh(x / cap), and d_x = d_x (1 - (capped / cap)^2) given the capped result */
    srnn_status (*scale)(sr_backend *backend, sr_matrix x, float factor);
    srnn_status (*add_scaled)(sr_backend *backend, sr_matrix out, sr_matrix x, sr_matrix y,
                              float factor);
    srnn_status (*cap_forward)(sr_backend *backend, sr_matrix x, float cap);
    srnn_status (*cap_backward)(sr_backend *backend, sr_matrix d_x, sr_matrix capped, float cap);

    /* ---- forward only, fused where that pays for few rows; intermediate results may be left
     * unwritten: y (rows, sum of N), number type, = the layers applied to the norm, with RoPE; out
     * (rows, F) = swiglu of the two layers applied to the norm, `up` (rows, 2F) is their
     * workspace */
    srnn_status (*norm_linear_forward)(sr_backend *backend, sr_matrix y, const sr_norm_linear *of);
    srnn_status (*norm_swiglu_forward)(sr_backend *backend, sr_matrix out, sr_matrix up,
                                       const sr_norm_linear *of);

    /* ---- argmax: out[r] = the column of the largest number of row r, the first of equals; NaN is
     * never chosen if the row has a number */
    srnn_status (*argmax)(sr_backend *backend, int32_t *out, sr_matrix x);

    /* ---- feeds the chosen tokens to the next decode step: ids[r] = chosen[r], positions[r] =
     * position, for `rows` sequences */
    srnn_status (*next_inputs)(sr_backend *backend, int32_t *ids, int32_t *positions,
                               const int32_t *chosen, int32_t position, int64_t rows);

    /* ---- short convolution, number type */
    srnn_status (*short_conv_forward)(sr_backend *backend, sr_matrix out,
                                      const sr_short_conv *conv);
    /* Writes d_x; adds to d_weight and d_bias (or NULL); d_out may become the gradient before SiLU,
     * and does where tokens may read a history. */
    srnn_status (*short_conv_backward)(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                       float *d_bias, sr_matrix d_out, const sr_short_conv *conv);
    /* history (as conv->history, another array) = the last inputs of each batch row: those of
     * conv->x, preceded by older ones if it is short. */
    srnn_status (*short_conv_history)(sr_backend *backend, void *history,
                                      const sr_short_conv *conv);
    /* Adds to d_history (as conv->history), given the d_out that short_conv_backward left. */
    srnn_status (*short_conv_history_backward)(sr_backend *backend, void *d_history,
                                               sr_matrix d_out, const sr_short_conv *conv);

    /* Zeroes row b of states (B, numbers), float, where positions[b * T] is 0. */
    srnn_status (*clear_starts)(sr_backend *backend, sr_matrix states, const int32_t *positions,
                                int64_t T);

    /* ---- Avey's contextualizer, number type: out (rows, x.columns - mixed) */
    size_t (*context_mix_bytes)(const sr_backend *backend, const sr_context_mix *mix);
    srnn_status (*context_mix_forward)(sr_backend *backend, sr_matrix out,
                                       const sr_context_mix *mix);
    /* Writes d_x; adds to d_weight; scratch of context_mix_bytes. */
    srnn_status (*context_mix_backward)(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                        sr_matrix d_out, const sr_context_mix *mix, void *scratch);

    /* ---- Avey's ranker: out (B * (N - first) * chunks * chunk, C) */
    size_t (*rank_bytes)(const sr_backend *backend, const sr_ranking *ranking);
    srnn_status (*rank_forward)(sr_backend *backend, float *out, const sr_ranking *ranking);
    /* Writes d_e (as ranking->e), given the data that forward saved. */
    srnn_status (*rank_backward)(sr_backend *backend, float *d_e, const float *d_out,
                                 const sr_ranking *ranking);

    /* ---- y += x over n numbers; over the rows of matrices of the same shape and number type */
    srnn_status (*add)(sr_backend *backend, float *y, const float *x, int64_t n);
    srnn_status (*add_rows)(sr_backend *backend, sr_matrix y, sr_matrix x);

    /* ---- out = x over the rows of matrices of the same shape and number type */
    srnn_status (*copy_rows)(sr_backend *backend, sr_matrix out, sr_matrix x);

    /* ---- losses[r] = log(sum exp logits[r]) - logits[r][targets[r]]; hits[r] (or NULL) = 1 if the
     * target has the largest logit, the first of equals, else 0. Then logits are overwritten with
     * the gradient of scale * sum(losses + z-loss); if scale is 0, they are undefined. A negative
     * target is ignored: loss, hit and gradient 0. */
    srnn_status (*cross_entropy)(sr_backend *backend, float *losses, int32_t *hits,
                                 sr_matrix logits, const sr_cross_entropy *of);

    /* ---- losses[r] = the divergence; the student's logits are overwritten with the gradient of
     * scale * sum(losses); if scale is 0, they are undefined. Rows that are not counted: 0. */
    srnn_status (*divergence)(sr_backend *backend, float *losses, const sr_divergence *of);

    /* ---- errors[r] += the error; d_x (rows, C), number type, data NULL: not wanted, = the
     * gradient of scale * sum(errors). Rows that are not counted: 0. */
    srnn_status (*square_error)(sr_backend *backend, float *errors, sr_matrix d_x,
                                const sr_square_error *of);

    /* ---- step stats: adds losses and hits (or NULL) of the rows; squares = sum of x^2 */
    srnn_status (*stats_losses)(sr_backend *backend, sr_step_stats *stats, const float *losses,
                                const int32_t *hits, const int32_t *targets, int64_t rows);
    srnn_status (*stats_squares)(sr_backend *backend, sr_step_stats *stats, const float *x,
                                 int64_t n);
    /* units[i] = the sum of squares of the i-th SR_SQUARES_UNIT numbers of x (n); units in host
     * memory. NULL on devices that do not sum squares by units. */
    srnn_status (*unit_squares)(sr_backend *backend, double *units, const float *x, int64_t n);

    /* ---- optimizer step with the learning rate of the step stats, if its loss and gradient are
     * finite; sets gradient_norm, gradient_scale, applied and updates */
    srnn_status (*adamw)(sr_backend *backend, sr_step_stats *stats, const sr_adamw *adamw);

    /* ---- Muon, after AdamW has decided whether the step is applied; if not, nothing is written:
     * M = momentum M + (1 - momentum) gradient, U = momentum M + (1 - momentum) gradient */
    srnn_status (*muon_direction)(sr_backend *backend, const sr_step_stats *stats,
                                  const sr_muon_part *part);
    /* out (n), number type, = x / (sqrt(squares of the stats) + 1e-7) */
    srnn_status (*muon_normalise)(sr_backend *backend, void *out, const sr_step_stats *stats,
                                  const float *x, int64_t n);
    /* out = a I + b P + c Q, all (n, n); P and out have the number type */
    srnn_status (*muon_polynomial)(sr_backend *backend, sr_matrix out, sr_matrix P, const float *Q,
                                   const float factors[3]);
    /* weight = (1 - rate weight_decay) weight - rate step_size U */
    srnn_status (*muon_update)(sr_backend *backend, const sr_step_stats *stats,
                               const sr_muon_part *part);

    /* ---- QK-clip: raises largest (H) to each head's largest score; and, if the stats say that the
     * step is applied, multiplies weights of heads whose scores are finite and too large */
    srnn_status (*largest_scores)(sr_backend *backend, float *largest, const sr_scores *of);
    srnn_status (*limit_scores)(sr_backend *backend, const sr_step_stats *stats,
                                const sr_head_weights *of);
};

/* Settings of a backend. */
typedef struct sr_backend_settings {
    const char *device; /* "cpu", "cuda", "cuda:1"; NULL: cpu */
    int threads;        /* CPU threads; 0: one per core */
    bool bf16;          /* GEMMs in bf16 with float accumulation */
    bool fp8;           /* the same, with operands of 8 bits where a layer allows it; GPUs only */
    bool fp8_head;      /* the output layer too */
    size_t fp8_bytes;   /* workspace of such operands; 0: a 256th of the GPU's memory */
} sr_backend_settings;

/* Creates a backend. Fails with SRNN_ERR_UNSUPPORTED and the name of the missing component if the
 * machine does not support it. Free with sr_backend_free. */
srnn_status sr_backend_create(sr_backend **backend, const sr_backend_settings *settings);
void sr_backend_free(sr_backend *backend);

/* linear_backward, norm_linear_forward and norm_swiglu_forward as a sequence of the other functions
 * of the table. */
srnn_status sr_linear_backward_steps(sr_backend *backend, const sr_linear_backward *of);
srnn_status sr_norm_linear_steps(sr_backend *backend, sr_matrix y, const sr_norm_linear *of);
srnn_status sr_norm_swiglu_steps(sr_backend *backend, sr_matrix out, sr_matrix up,
                                 const sr_norm_linear *of);

#ifdef __cplusplus
}
#endif

#endif
