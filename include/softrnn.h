/* softrnn.h: softmax attention as an RNN, and every variant of it, behind one C interface.
 *
 * One equation, one axis per symbol. Per head, causal, query row i (1-based: it sees keys j
 * = 1..i), head size D:
 *
 *     s_ij = cap(scale * <feature(q_i), feature(k_j)>)   q, k after RoPE and short convolution
 *     w_ij = score(min(s_ij, clamp) + score_bias) * decay_ij * level_ij * seen_ij
 *     y_i  = ( sum_{j<=i} w_ij u_j ) / normaliser_i + skip_i
 *     o_i  = post_gate_i * output_norm( output_gate_i * y_i )
 *
 * where u_j = value_gate_j * v_j, or what the delta rule makes of it.
 * Zero on every axis is ordinary softmax attention. exp is a power series, and
 * (q.k)^n = <q (x) .. (x) q, k (x) .. (x) k>, so every truncated series is an RNN with a state of
 * fixed size: the same function has a parallel, a chunked and a recurrent form, and all three
 * agree.
 *
 * This file reads from simple to advanced:
 *     1. errors          2. describing a variant         3. names and the text form
 *     4. facts           5. devices                      6. attention over a sequence
 *     7. attention one piece at a time
 *
 * Conventions. Sizes are B (batch), T (time), H (query heads), Hkv (key/value heads, H a
 * multiple of it), D (width of q and k), Dv (width of v and o). Arrays are row-major. The caller
 * that creates an object frees it; every _free accepts NULL. Nothing here prints, exits, or
 * keeps a pointer it was given longer than the call, unless it says so. Different objects may be
 * used from different threads at the same time; one object may not. */
#ifndef SOFTRNN_H
#define SOFTRNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SRNN_API __attribute__((visibility("default")))

#define SRNN_VERSION_MAJOR 0
#define SRNN_VERSION_MINOR 1
#define SRNN_VERSION_PATCH 0

/* "0.1.0": the version of the library that is running. */
SRNN_API const char *srnn_version(void);

/* ---- 1. Errors ------------------------------------------------------------------------------- */

typedef enum srnn_status {
    SRNN_OK = 0,
    SRNN_ERR_ARGUMENT,    /* the caller's request makes no sense */
    SRNN_ERR_MEMORY,      /* memory is not available */
    SRNN_ERR_IO,          /* the system refused to read or write */
    SRNN_ERR_FORMAT,      /* a file or a text is not what it should be */
    SRNN_ERR_UNSUPPORTED, /* sensible, but not available here */
    SRNN_ERR_LIMIT,       /* would exceed a limit the caller set */
    SRNN_ERR_INTERRUPTED, /* stopped on request */
} srnn_status;

/* A few words for a status. Static text. */
SRNN_API const char *srnn_status_name(srnn_status status);

/* What was wrong, where, and what to do: this thread's last failure. Valid until the next one. */
SRNN_API const char *srnn_error_detail(void);

/* For Ctrl-C: from now on this thread's calls of sections 6 and 7 call should_stop(context), on the
 * same thread, about twenty times a second. Once it returns true, the call ends with
 * SRNN_ERR_INTERRUPTED after the tiles that are being computed; its outputs are undefined, and a
 * state is empty as after srnn_state_reset. NULL: calls are not stopped, nor are those on a GPU,
 * which only start work. */
SRNN_API void srnn_stop_when(bool (*should_stop)(void *context), void *context);

/* ---- 2. Describing a variant: one field per axis --------------------------------------------- */

typedef enum srnn_position {
    SRNN_POSITION_ROPE = 0, /* rotary embedding of q and k, rotate-half layout */
    SRNN_POSITION_NONE,
    /* the equation rotates feature(q), feature(k), by halves of D where they are wider; the row sum
     * takes them unrotated */
    SRNN_POSITION_ROPE_FEATURES,
    SRNN_POSITION_ROPE_CHUNKS, /* the equation rotates q and the pooled k by the number of their
                                    chunk of `pool` tokens */
} srnn_position;

/* How a layer around the equation is wired, and what files call its tensors; the equation does not
 * read it. */
typedef enum srnn_layer {
    SRNN_LAYER_PLAIN = 0,   /* projections to q, k, v and to each gate */
    SRNN_LAYER_POWER,       /* the same with the names of power attention */
    SRNN_LAYER_MAMBA2,      /* one projection of all that is read, one convolution */
    SRNN_LAYER_MAMBA_LAYER, /* that inside the reference's layer */
    SRNN_LAYER_MAMBA_BLOCK, /* and with a norm and a residual of its own */
    SRNN_LAYER_GLA,         /* a decay by a projection in two steps */
    SRNN_LAYER_DELTA_NET,   /* one convolution for each of q, k and v */
    SRNN_LAYER_RAT,
    SRNN_LAYER_GRELA, /* q and k are projections of v */
    SRNN_LAYER_NALA,
    SRNN_LAYER_KDA,     /* delta_net with two low-rank projections, of the decay and of the gate */
    SRNN_LAYER_KDA_FLA, /* the same with the names of flash-linear-attention */
    SRNN_LAYER_2MAMBA,  /* one projection and one convolution of q, k and v */
    SRNN_LAYER_GDN2,    /* kda_fla with a gate per channel for what is erased and what is written */
    SRNN_LAYER_RWKV7,   /* token shifts, four low-rank paths, the values of the first layer */
    SRNN_LAYER_CONV,    /* no equation: short_conv alone mixes, between two gates */
} srnn_layer;

typedef enum srnn_share {
    SRNN_SHARE_KV = 0,   /* H heads of q, Hkv of k and v: head h reads k, v of h / (H / Hkv) */
    SRNN_SHARE_QK,       /* H heads of v, Hkv of q and k: head h reads q, k of h / (H / Hkv) */
    SRNN_SHARE_QK_TILED, /* the same, but head h reads those of h mod Hkv */
} srnn_share;

typedef enum srnn_scale {
    SRNN_SCALE_INVERSE_SQRT = 0, /* 1/sqrt(D) */
    SRNN_SCALE_ONE,
} srnn_scale;

typedef enum srnn_feature {
    SRNN_FEATURE_IDENTITY = 0,
    SRNN_FEATURE_RELU,
    SRNN_FEATURE_ELU1,        /* elu(x) + 1 */
    SRNN_FEATURE_UNIT,        /* x / max(|x|, 1e-12), norm over the head dimension */
    SRNN_FEATURE_UNIT_HEADS,  /* the same with the norm across the heads at one position and channel
                              */
    SRNN_FEATURE_UNIT_SMOOTH, /* x / sqrt(|x|^2 + 1e-6) */
    /* The last two differ for q and k and have 2D numbers; p = 3 (0.5 + tanh |q|), |q| >= 1e-12. */
    SRNN_FEATURE_NORM_SPLIT,  /* q: [relu(q), relu(-q)] / |q|, each to the power p; k: [relu(k),
                                 relu(-k)]^3 */
    SRNN_FEATURE_NORM_COSINE, /* with c = q/|q|, |c|^p [cos c, sin c]; k: |k_i|^3 [cos c, sin c] */
} srnn_feature;

typedef enum srnn_score {
    SRNN_SCORE_EXP = 0,
    SRNN_SCORE_LINEAR, /* s */
    SRNN_SCORE_TAYLOR, /* sum of s^n/n! for n = 0..order */
    SRNN_SCORE_POWER,  /* s^order */
    SRNN_SCORE_SIGMOID,
} srnn_score;

typedef enum srnn_decay {
    SRNN_DECAY_NONE = 0,
    SRNN_DECAY_LEARNED, /* decay_ij = exp(C_i - C_j), C_i = (1/1024) sum_{m<i} decay_m */
    /* The same with C_i = sum_{m<=i} a_m: a key is multiplied by the gates after its own. */
    SRNN_DECAY_LOG_SIGMOID,  /* a = log(sigmoid(decay_m)) / decay_divisor */
    SRNN_DECAY_SOFTPLUS,     /* a = -exp(a_log) softplus(decay_m + dt_bias) */
    SRNN_DECAY_BOUNDED,      /* a = -decay_bound sigmoid(exp(a_log) (decay_m + dt_bias)) */
    SRNN_DECAY_NEG_SOFTPLUS, /* a = -softplus(decay_m) = log(sigmoid(-decay_m)) */
    SRNN_DECAY_GIVEN,        /* a = decay_m: the caller computes the logarithms of the gates */
} srnn_decay;

/* The numbers of dt_bias in SOFTPLUS and BOUNDED. */
typedef enum srnn_dt_width {
    SRNN_DT_WIDTH_HEAD = 0, /* one per head */
    SRNN_DT_WIDTH_CHANNEL,  /* one per head and channel of k, as the decay has them */
    SRNN_DT_WIDTH_NONE,     /* BOUNDED without a_log and dt_bias: both are 0 */
} srnn_dt_width;

/* How many numbers a gate has for a head and position: one, or one for each of its channels. */
typedef enum srnn_width {
    SRNN_WIDTH_HEAD = 0,
    SRNN_WIDTH_CHANNEL,
} srnn_width;

typedef enum srnn_decay_place {
    SRNN_DECAY_PLACE_WEIGHT = 0, /* after the score */
    SRNN_DECAY_PLACE_LOGIT,      /* before it: s_ij is multiplied */
} srnn_decay_place;

typedef enum srnn_value_gate {
    SRNN_VALUE_GATE_OFF = 0,
    SRNN_VALUE_GATE_SIGMOID,   /* sigmoid(value gate_j) */
    SRNN_VALUE_GATE_TIME_STEP, /* softplus(decay_j + dt_bias), the number that drives the decay */
} srnn_value_gate;

typedef enum srnn_write {
    SRNN_WRITE_ADD = 0,
    /* u_j = beta_j (value_gate_j v_j - sum_{m<j} kappa_jm u_m), beta = range * sigmoid(write gate),
     * kappa_jm = score(<feature(k_j), feature(k_m)>) with the decay and without scale and clamp */
    SRNN_WRITE_DELTA,
    /* e_i = sum_{j<i} <n_i, k_j> v_j - sum_{j<i} <n_i, b_j> e_j with the decays up to the token
     * before i, n the removal key at length one and b = sigmoid(removal gate) n, channel by
     * channel; and sum_{j<=i} w_ij v_j loses sum_{j<=i} scale <q_i, b_j> e_j */
    SRNN_WRITE_REMOVAL,
} srnn_write;

/* What the delta rule's beta is, by the operand write_gate. */
typedef enum srnn_write_gate {
    SRNN_WRITE_GATE_SIGMOID = 0,
    SRNN_WRITE_GATE_GIVEN, /* the number itself: the caller computes beta */
} srnn_write_gate;

/* The range of the delta rule's beta. */
typedef enum srnn_write_range {
    SRNN_WRITE_RANGE_1 = 0,
    SRNN_WRITE_RANGE_2, /* I - beta k k^T may have negative eigenvalues */
} srnn_write_range;

typedef enum srnn_levels {
    SRNN_LEVELS_NONE = 0,
    /* level_ij = softplus(level_scale[n] * level gate_i[n]), n the bit length of (i-1) xor (j-1);
     * with the delta rule it multiplies the weights of v */
    SRNN_LEVELS_FENWICK,
} srnn_levels;

typedef enum srnn_skip {
    SRNN_SKIP_NONE = 0,
    SRNN_SKIP_HEAD,    /* skip_weight_h v_i, v before its gate */
    SRNN_SKIP_CHANNEL, /* skip_weight_hc v_ic */
    SRNN_SKIP_CONV,    /* the operand skip_i: SiLU of a causal depthwise convolution of v with
                          `skip_conv` taps, which belongs to the layer around the equation */
    SRNN_SKIP_BONUS,   /* (sum_c q_ic k_ic skip_weight_hc) v_i of q and k as they come, added after
                          the norm, before post_gate */
} srnn_skip;

typedef enum srnn_normaliser {
    SRNN_NORMALISER_ROW_SUM = 0,     /* sum_j w_ij */
    SRNN_NORMALISER_ROW_SUM_MIN1,    /* max(sum_j w_ij, 1) */
    SRNN_NORMALISER_ROW_LENGTH,      /* i, or the window where that is less */
    SRNN_NORMALISER_NONE,            /* 1 */
    SRNN_NORMALISER_CUMULATIVE_GATE, /* max(sum_{m<=i} exp(output gate_m), 1) */
    SRNN_NORMALISER_VALUE_POWER,     /* 1, with v_j divided by j^sigmoid(c), c learned per head */
} srnn_normaliser;

/* A term of the row sum that has no value: the weight of a key that is always there. */
typedef enum srnn_sink {
    SRNN_SINK_NONE = 0,
    SRNN_SINK_ZERO,    /* 1, the exp of a logit of 0 */
    SRNN_SINK_LEARNED, /* exp(sinks_h), one number per query head, in units of s */
} srnn_sink;

typedef enum srnn_gate {
    SRNN_GATE_NONE = 0,
    SRNN_GATE_SIGMOID,            /* sigmoid(g_i) */
    SRNN_GATE_INVERSE_EXP,        /* exp(-g_i) */
    SRNN_GATE_INVERSE_CUMULATIVE, /* 1 / sum_{m<=i} exp(g_m) */
} srnn_gate;

/* What SRNN_GATE_SIGMOID and post_gate make of their number z. */
typedef enum srnn_gate_shape {
    SRNN_GATE_SHAPE_SIGMOID = 0,
    SRNN_GATE_SHAPE_SILU,        /* z sigmoid(z) */
    SRNN_GATE_SHAPE_SILU_SQUARE, /* its square */
    SRNN_GATE_SHAPE_IDENTITY,    /* z itself */
} srnn_gate_shape;

typedef enum srnn_norm_width {
    SRNN_NORM_WIDTH_HEAD = 0,
    /* over the H*Dv channels of a token; with share=qk over those of each group of heads that share
     * q and k */
    SRNN_NORM_WIDTH_ROW,
} srnn_norm_width;

/* Whose weight and bias a norm over one head has. */
typedef enum srnn_norm_weight {
    SRNN_NORM_WEIGHT_SHARED = 0, /* one of Dv numbers for all heads */
    SRNN_NORM_WEIGHT_HEAD,       /* each head its own; the eps of LAYER is Dv 1e-5 then */
} srnn_norm_weight;

typedef enum srnn_norm {
    SRNN_NORM_NONE = 0,
    SRNN_NORM_LAYER, /* mean and variance over Dv, eps 1e-5, weight and bias */
    SRNN_NORM_RMS,   /* root mean square over Dv, eps 2^-23, weight */
    SRNN_NORM_L2,    /* y / max(|y|, floor). The floor is 1e-12; for exp without the row sum it is
                            1e-12 sum_j w_ij, as if the row had been divided by it */
    SRNN_NORM_L2_SCALED, /* Dv times that */
} srnn_norm;

/* What follows the short convolution. */
typedef enum srnn_conv_activation {
    SRNN_CONV_ACTIVATION_SILU = 0,
    SRNN_CONV_ACTIVATION_NONE,
} srnn_conv_activation;

/* Norm of q and of k between their projection and RoPE, each with a weight. */
typedef enum srnn_qk_norm {
    SRNN_QK_NORM_NONE = 0,
    SRNN_QK_NORM_HEAD,         /* RMS over a head, one weight (D) for all of them */
    SRNN_QK_NORM_ROW,          /* RMS over all heads of a token */
    SRNN_QK_NORM_HEAD_ROTATED, /* as HEAD, after RoPE */
    SRNN_QK_NORM_LAYER,        /* mean and variance over a head, a weight (D) for each head */
} srnn_qk_norm;

/* Which channels RoPE rotates together. */
typedef enum srnn_rope_pairs {
    SRNN_ROPE_PAIRS_HALVES = 0, /* c and c + D/2 */
    SRNN_ROPE_PAIRS_NEIGHBOURS, /* 2c and 2c + 1 */
} srnn_rope_pairs;

/* Where a block normalises: what its mixer and its MLP read, what they make, or both. */
typedef enum srnn_block_norm {
    SRNN_BLOCK_NORM_BEFORE = 0,
    SRNN_BLOCK_NORM_AFTER,
    SRNN_BLOCK_NORM_BOTH,
    SRNN_BLOCK_NORM_PARALLEL, /* before, and the MLP reads what the mixer reads */
} srnn_block_norm;

/* What surrounds the equation in a model. Kernels do not read it: the functions of this header
 * compute the same whatever it says. */
typedef struct srnn_wiring {
    srnn_layer layer;
    int short_conv; /* width of a depthwise causal convolution + SiLU over q, k, v; 0: none */
    srnn_conv_activation conv_activation; /* of short_conv */
    int prefix_tokens; /* empty tokens that the model puts in front of every sequence; 0: none */
    srnn_qk_norm qk_norm;
    double rope_part; /* the part of a head's channels that RoPE rotates, the first; 0: all */
    srnn_rope_pairs rope_pairs;
    double rope_theta;    /* of this layer, then without the model's RoPE scaling; 0: the model's */
    double softmax_scale; /* of <q, k>, in place of scale; 0: scale */
    srnn_block_norm block_norm;
} srnn_wiring;

/* A variant of softmax attention. { 0 } is softmax; a field says how the variant differs. */
typedef struct srnn_attention {
    srnn_position position;
    srnn_share share; /* which operands a group of heads shares */
    srnn_scale scale;
    srnn_feature feature;
    srnn_score score;
    int order;         /* N of TAYLOR, p of POWER, else 0 */
    double cap;        /* c of s = c tanh(s / c), before the clamp; 0: none */
    double clamp;      /* upper bound on s before the score; 0: none */
    double score_bias; /* added to s inside SRNN_SCORE_SIGMOID */
    srnn_decay decay;
    double decay_divisor;   /* of LOG_SIGMOID; 0: 1 */
    double decay_bound;     /* of BOUNDED, else 0 */
    srnn_width decay_width; /* channel: s_ij = scale sum_c q_ic k_jc exp(C_ic - C_jc) */
    srnn_decay_place decay_place;
    srnn_dt_width dt_width; /* of dt_bias */
    /* k and v become running averages in chunks of this many tokens, x~_t = g x~_{t-1} + (1-g) x_t
     * with g = sigmoid(pool gate), from 0 at each chunk; a row sees the last token of every earlier
     * chunk, and itself. 0: no pooling */
    int pool;
    int window; /* a row sees this many keys, its own included: i - j < window; 0: all */
    srnn_value_gate value_gate; /* v_j is multiplied by it */
    srnn_write write;
    srnn_write_gate write_gate; /* of DELTA */
    srnn_write_range write_range;
    /* channel: u_j = sigmoid(write gate_j) v_j - sum_{m<j} <range sigmoid(erase gate_j) k_j, k_m>
     * u_m, channel by channel, with the decay, which belongs to the heads of k then */
    srnn_width write_width;
    srnn_levels levels;
    srnn_normaliser normaliser;
    bool detach;    /* the normaliser counts as a constant in the backward pass */
    double epsilon; /* added to the normaliser */
    srnn_sink sink; /* added to the row sum; ROW_SUM only */
    srnn_skip skip; /* added to y */
    int skip_conv;  /* taps of SRNN_SKIP_CONV, else 0 */
    srnn_gate output_gate;
    bool post_gate;        /* gate_shape of the same output gate, applied after the norm */
    srnn_width gate_width; /* of the output gate */
    srnn_gate_shape gate_shape;
    srnn_norm norm;
    srnn_norm_width norm_width;
    srnn_norm_weight norm_weight;
    double norm_epsilon; /* of LAYER and RMS; 0: their own */
    srnn_wiring wiring;
} srnn_attention;

/* ---- 3. Names and the text form -------------------------------------------------------------- */

/* A named variant. Static data. */
typedef struct srnn_variant {
    const char *name;
    srnn_attention attention;
    const char *note; /* what a user should know about it, or "" */
} srnn_variant;

/* The named variants in the order of the table; NULL past the end. Families with a number (order:N,
 * elu:N, relu:N, cosine:N, power:p) are accepted by srnn_attention_parse and not listed here. */
SRNN_API const srnn_variant *srnn_variant_at(size_t index);

/* The name of this very combination (the first in the table), or NULL. */
SRNN_API const char *srnn_attention_name(const srnn_attention *attention);

/* Reads a name, a text form, or a name followed by changes:
 *     norm        order:4        score=exp,clamp=5,normaliser=row_length,output_gate,norm=layer
 *     gate,clamp=none,norm=l2
 * A wrong word fails with SRNN_ERR_FORMAT; the detail names its position and the nearest right
 * word. */
SRNN_API srnn_status srnn_attention_parse(srnn_attention *attention, const char *text);

/* The canonical text form, which srnn_attention_parse reads back to the same descriptor. Writes at
 * most `size` bytes including the end, like snprintf; returns the length of the whole text. */
SRNN_API size_t srnn_attention_print(char *text, size_t size, const srnn_attention *attention);

/* ---- 4. Facts that follow from a descriptor -------------------------------------------------- */

/* SRNN_OK if every field has a value that exists and fits the others. */
SRNN_API srnn_status srnn_attention_check(const srnn_attention *attention);

/* True if the variant has a recurrent form whose state does not grow with the sequence. */
SRNN_API bool srnn_attention_has_state(const srnn_attention *attention);

/* Numbers in the fixed-size state of one head of keys and values (H of them where q and k are
 * shared, of one level where there are levels), normaliser column included; 0 if there is no such
 * state, SIZE_MAX if it does not fit a size_t. */
SRNN_API size_t srnn_attention_state_numbers(const srnn_attention *attention, int D, int Dv);

/* ---- 5. Devices ---------------------------------------------------------------------------------
 *
 * Arrays are in the memory of one device: the CPU unless a problem says otherwise. */

typedef struct srnn_device srnn_device;

/* Opens "cpu", "cuda" (the first GPU) or "cuda:1". Fails with SRNN_ERR_UNSUPPORTED and the name of
 * what is missing (a build with CUDA, a driver, a GPU) where there is no such device. Plans and
 * states made on a device must be freed before it is closed. */
SRNN_API srnn_status srnn_device_open(srnn_device **device, const char *name);
SRNN_API void srnn_device_close(srnn_device *device);

/* "cpu", "cuda:0". Valid as long as the device. */
SRNN_API const char *srnn_device_name(const srnn_device *device);

/* From now on the device's work runs in this order of the caller's: a cudaStream_t, or NULL for the
 * device's own. SRNN_ERR_UNSUPPORTED where the device has no streams. */
SRNN_API srnn_status srnn_device_stream(srnn_device *device, void *stream);

/* Returns when everything that was started on the device is over, and says if any of it failed. On
 * a GPU the calls below only start their work; on the CPU they return when it is done. */
SRNN_API srnn_status srnn_device_wait(srnn_device *device);

/* ---- 6. Attention over a sequence ---------------------------------------------------------------
 *
 *     srnn_problem problem = { .B = 1, .H = 16, .T = 1024, .D = 64 };
 *     srnn_attention_parse(&problem.attention, "norm");
 *     srnn_plan *plan;
 *     srnn_plan_create(&plan, &problem);
 *     srnn_operands in = { .q = { .data = q }, .k = { .data = k }, .v = { .data = v } };
 *     srnn_attention_forward(plan, (srnn_tensor){ .data = o }, &in, NULL);
 *     srnn_plan_free(plan);
 */

typedef enum srnn_dtype {
    SRNN_F32 = 0,
    SRNN_F64, /* the CPU only */
    SRNN_BF16, /* sums, statistics, states and learned vectors are float; on the CPU the parallel form
                  of plans only, of variants that `softrnn variants --support` names */
} srnn_dtype;

typedef enum srnn_form {
    SRNN_FORM_AUTO = 0,  /* parallel, or chunked where that costs less and float can do it: up to
                            order 8 */
    SRNN_FORM_PARALLEL,  /* every pair of positions, in tiles */
    SRNN_FORM_CHUNKED,   /* parallel inside a chunk, a state between chunks */
    SRNN_FORM_RECURRENT, /* one token at a time; forward only */
} srnn_form;

typedef struct srnn_problem {
    srnn_attention attention;
    srnn_dtype dtype;
    int B, H, Hkv, T, D, Dv; /* Hkv 0: H; Dv 0: D. D from 1 to 256, Dv too, or to 512 on a CPU */
    int levels; /* numbers of a level gate: documents have up to 2^(levels-1) tokens. 0: 15 */
    double rope_theta; /* of rotations that the equation does itself; 0: 10000 */

    /* Packed documents: document n holds tokens offsets[n] .. offsets[n+1]-1, where token t of row
     * b has the number b*T + t. (documents + 1) increasing numbers from 0 to B*T; no document
     * crosses a row. A token sees its own document only. NULL: every row is one document. Copied by
     * srnn_plan_create. NaN or infinity at one position reaches only what may see it, with the
     * kernels of the CPU in float and double; others multiply whole tiles, in which it may reach up
     * to 127 tokens around it, and with those for Hopper every token of a document that has a part
     * in such a tile. */
    const int64_t *offsets;
    int64_t documents;

    srnn_form form;
    int chunk;          /* tokens in a chunk; more than 96 count as 96; 0: chosen */
    const char *kernel; /* a kernel's name; NULL: the best that supports the problem */
    int threads;        /* 0: all cores. Results do not depend on it */
    size_t state_limit; /* bytes the states may take in all; more is refused. 0: 1 GiB */

    srnn_device *device; /* where all arrays are; NULL: the CPU. Must outlive the plan or state */
} srnn_problem;

/* One array with a row of numbers (or one number, for gates) per batch row, head and position. */
typedef struct srnn_tensor {
    void *data;
    int64_t batch, head, time; /* strides in elements; all 0: contiguous in the order given below */
} srnn_tensor;

/* What goes into the equation; the same struct receives its gradients. Elements are of the
 * problem's dtype (with SRNN_BF16 the learned vectors, those without a position, are float).
 * Members that the variant does not use are ignored; gates are numbers *before* their sigmoid or
 * other function, but for decay=given and write_gate=given. Hq is H, Hv is Hkv; where q and k are
 * shared (srnn_share) Hq is Hkv and Hv is H. */
typedef struct srnn_operands {
    srnn_tensor q;            /* (B, Hq, T, D), position applied if it is rope */
    srnn_tensor k;            /* (B, Hkv, T, D), the same */
    srnn_tensor v;            /* (B, Hv, T, Dv) */
    srnn_tensor value_gate;   /* (B, Hv, T) */
    srnn_tensor output_gate;  /* (B, H, T), or (B, H, T, Dv) with gate_width=channel; also read by
                                post_gate and the cumulative normaliser */
    srnn_tensor decay;        /* (B, Hv, T), or (B, Hv, T, D) with decay_width=channel; Hkv heads
                                in place of Hv with write_width=channel */
    srnn_tensor write_gate;   /* (B, Hv, T): the delta rule's beta; (B, Hv, T, Dv) with
                                write_width=channel */
    srnn_tensor erase_gate;   /* (B, Hkv, T, D), write_width=channel */
    srnn_tensor removal_key;  /* (B, Hkv, T, D), write=removal */
    srnn_tensor removal_gate; /* the same */
    srnn_tensor level_gate;   /* (B, H, T, levels) */
    srnn_tensor pool_gate;    /* (B, Hv, T, max(D, Dv)): channel c of k and of v have the same */
    srnn_tensor skip;         /* (B, Hv, T, Dv), skip=conv only */
    void *norm_weight;        /* (Dv), or (H, Dv) with norm_width=row or norm_weight=head; layer and
                                rms */
    void *norm_bias;          /* the same; layer */
    void *value_power;        /* (Hv) */
    void *a_log;              /* (heads of the decay), decay=softplus and bounded */
    void *dt_bias;            /* the same, or (heads of the decay, D) with dt_width=channel */
    void *skip_weight;        /* (H), (H, Dv) with skip=channel, (H, D) with skip=bonus */
    void *level_scale;        /* (H, levels) */
    void *sinks;              /* (H), sink=learned */
} srnn_operands;

/* One of them as a problem has it, for layers and for languages that go by names. */
typedef struct srnn_operand {
    const char *name; /* of the member; static text */
    bool tensor;      /* a srnn_tensor; false: a pointer to a learned vector */
    int rank;
    int64_t sizes[4];    /* its shape */
    const char *learned; /* what a layer learns for it, as checkpoints call it: the vector itself
                            ("out_norm.weight"), or the linear layer of the layer's input that gives
                            the tensor ("out_gate_proj"); NULL: q, k and v. Static text */
    double initial;      /* what a learned vector starts with */
    int file_rank;       /* of a learned vector in checkpoints: 1, or 4 for (1, size, 1, 1) */
} srnn_operand;

/* The operands that the problem's variant reads, one after the other; false past the end. Of the
 * problem it looks at attention and sizes only. */
SRNN_API bool srnn_operand_at(srnn_operand *operand, const srnn_problem *problem, size_t index);

typedef struct srnn_plan srnn_plan;

/* Checks the problem, chooses form and kernel, and takes all scratch memory. */
SRNN_API srnn_status srnn_plan_create(srnn_plan **plan, const srnn_problem *problem);
SRNN_API void srnn_plan_free(srnn_plan *plan);

/* Other documents for the same plan (as in srnn_problem; NULL: every row is one), for training on
 * packed rows. Takes no memory. */
SRNN_API srnn_status srnn_plan_documents(srnn_plan *plan, const int64_t *offsets,
                                         int64_t documents);

/* What was chosen. The name is static text. */
SRNN_API const char *srnn_plan_kernel(const srnn_plan *plan);
SRNN_API srnn_form srnn_plan_form(const srnn_plan *plan);

/* Bytes of scratch memory that the plan holds, and bytes that forward leaves for backward. */
SRNN_API size_t srnn_plan_scratch_bytes(const srnn_plan *plan);
SRNN_API size_t srnn_plan_saved_bytes(const srnn_plan *plan);

/* o (B, H, T, Dv) = attention. `saved` receives what the backward pass needs
 * (srnn_plan_saved_bytes, aligned to 64 bytes), or is NULL. */
SRNN_API srnn_status srnn_attention_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                            void *saved);

/* Writes (does not add) the gradient of every operand whose pointer in `gradients` is not NULL,
 * given d_o (B, H, T, Dv), the same operands and what forward saved. */
SRNN_API srnn_status srnn_attention_backward(srnn_plan *plan, const srnn_operands *gradients,
                                             srnn_tensor d_o, const srnn_operands *in,
                                             const void *saved);

/* A recurrent state in, a recurrent state out, and the gradients of both: for rows that are cut
 * into pieces which are computed one after the other or by different ranks.
 *
 * A state is a contiguous array (B, heads, F, W) of the problem's dtype, or of floats where that is
 * bf16, in the memory of the problem's device; heads are Hkv, or H where q and k are shared. Row f
 * holds sum_j decay_j feature_f(k_j) u_j, decay_j from token j to the next of the row. F is the
 * width of feature(k) with a linear score, else the multisets of channels, order by order (TAYLOR,
 * POWER). W is Dv, or Dv + 1 with a row sum: the last column has u = 1. q has the scale, not k.
 * The initial state belongs to the row's first document, the final one to its last. RoPE, short
 * convolutions and other parts of a layer around the equation are the caller's. */
typedef struct srnn_states {
    const void *initial; /* what was before the first token; NULL: nothing */
    void *final;         /* forward: what is left after the last; NULL: not wanted */
    const void *d_final; /* backward: gradient of `final`; NULL: zero */
    void *d_initial;     /* backward: receives the gradient of `initial`; NULL: not wanted */
} srnn_states;

/* The shape of a state. SRNN_ERR_UNSUPPORTED, with the reason, for variants whose state grows or is
 * more than the matrix: levels, cumulative gates, decay=learned per channel, and what depends on
 * the token's position (row_length, value_power, rope_features). */
SRNN_API srnn_status srnn_states_sizes(int64_t sizes[4], const srnn_problem *problem);

/* The same with states. The plan must have been made with SRNN_FORM_CHUNKED or, forward only and on
 * a CPU, SRNN_FORM_RECURRENT; on a GPU for bf16, without row sums and decay=learned, and with D and
 * Dv that are multiples of 8. Backward needs the `initial` of forward; d_initial needs one. */
SRNN_API srnn_status srnn_attention_states_forward(srnn_plan *plan, srnn_tensor o,
                                                   const srnn_operands *in, void *saved,
                                                   const srnn_states *states);
SRNN_API srnn_status srnn_attention_states_backward(srnn_plan *plan, const srnn_operands *gradients,
                                                    srnn_tensor d_o, const srnn_operands *in,
                                                    const void *saved, const srnn_states *states);

/* The names of a device's kernels (NULL: the CPU's), best first; NULL past the end. */
SRNN_API const char *srnn_kernel_name(const srnn_device *device, size_t index);

/* ---- 7. Attention one piece at a time -----------------------------------------------------------
 *
 * create, then feed any number of tokens at a time; outputs are those of the whole sequence,
 * wherever it is cut. Variants with a fixed-size state use it (when it fits problem.state_limit,
 * and form is not SRNN_FORM_PARALLEL); the others keep keys and values, and the caller need not
 * care. */

typedef struct srnn_state srnn_state;

/* Uses the problem's attention, dtype, B, H, Hkv, D, Dv, form, chunk, threads and state_limit; T is
 * the largest piece that will be fed at once (0: 1). With SRNN_FORM_CHUNKED or SRNN_FORM_RECURRENT
 * the fixed-size state is demanded: SRNN_ERR_UNSUPPORTED if there is none, SRNN_ERR_LIMIT if it is
 * too large. */
SRNN_API srnn_status srnn_state_create(srnn_state **state, const srnn_problem *problem);
SRNN_API void srnn_state_free(srnn_state *state);

/* Forgets everything: the next token is the first. */
SRNN_API srnn_status srnn_state_reset(srnn_state *state);

/* o (B, H, T, Dv) for the next T tokens. */
SRNN_API srnn_status srnn_state_feed(srnn_state *state, srnn_tensor o, const srnn_operands *in,
                                     int T);

/* Tokens fed since the start, and whether the state has a fixed size. */
SRNN_API int64_t srnn_state_position(const srnn_state *state);
SRNN_API bool srnn_state_is_recurrent(const srnn_state *state);

/* Bytes a state of this problem holds after `tokens` tokens; SIZE_MAX if that does not fit a
 * size_t. */
SRNN_API size_t srnn_state_bytes(const srnn_problem *problem, int64_t tokens);

/* Copies the state out to, or in from, srnn_state_saved_bytes(state) bytes. Loading checks that the
 * bytes belong to a state of the same problem and are those that were saved (a checksum);
 * SRNN_ERR_FORMAT otherwise. */
SRNN_API size_t srnn_state_saved_bytes(const srnn_state *state);
SRNN_API srnn_status srnn_state_save(const srnn_state *state, void *bytes, size_t size);
SRNN_API srnn_status srnn_state_load(srnn_state *state, const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif

#endif
