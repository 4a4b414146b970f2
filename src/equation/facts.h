/* facts.h: facts that the library derives from a descriptor, in addition to the public ones. */
#ifndef SR_EQUATION_FACTS_H
#define SR_EQUATION_FACTS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds that srnn_attention_check enforces. 170! is the last factorial that fits a double. */
enum {
    SR_TAYLOR_ORDER_MAX = 170,
    SR_POWER_ORDER_MAX = 64,
    SR_SHORT_CONV_MAX = 64,
    SR_PREFIX_TOKENS_MAX = 1024,
    SR_POOL_MAX = 4096,
    SR_WINDOW_MAX = 1 << 30,
    SR_HEAD_SIZE_MAX = 256,  /* D, and Dv on GPUs; srnn_plan_create enforces it */
    SR_VALUE_SIZE_MAX = 512, /* Dv on the CPU, as in published models */
    SR_LEVELS_MAX = 32,
    SR_LEVELS_USUAL = 15, /* the default of problem.levels */
};

/* Between them the powers of a cap are numbers in float. */
#define SR_CAP_LEAST 1e-6
#define SR_CAP_MOST  1e6

enum { SR_ATTENTION_TEXT = 768 }; /* capacity for any text form */

/* SRNN_OK if the value of every field exists, regardless of combinations. */
srnn_status sr_attention_check_values(const srnn_attention *attention);

/* False if the layer mixes tokens by its convolution alone: nothing of the equation is read. */
bool sr_has_equation(const srnn_attention *attention);

/* True if everything beyond the plain equation is done to rows before and after the loop over
 * pairs, and that loop is the plain one: one decay per head on the weights, every key visible,
 * values unchanged. False if the decay has a rate: the gradients of a_log and dt_bias are sums over
 * all tokens of differences between rows and columns of w dw, which cancel in float; other kernels
 * compute each of them directly. */
bool sr_pairs_are_plain(const srnn_attention *attention);

/* The width of a feature of D channels, and of a decay vector: 1 or the width of a key. */
int sr_feature_width(const srnn_attention *attention, int D);
int sr_decay_numbers(const srnn_attention *attention, int D);

/* True if the decay reads a_log and dt_bias. */
bool sr_decay_has_rate(const srnn_attention *attention);

/* True if C_i - C_j is added to the logits: decay_place=logit, or per channel. */
bool sr_decay_in_logits(const srnn_attention *attention);

/* True if C may increase from a token to the next: weights then grow with the distance. */
bool sr_decay_may_rise(const srnn_attention *attention);

/* Keys that row i (from 1) of a document sees. */
int64_t sr_keys_seen(const srnn_attention *attention, int64_t i);

/* True if heads share q and k rather than k and v. */
bool sr_shares_queries(const srnn_attention *attention);

/* True if multiplying every w_ij of a row, and its sink, by one constant leaves o_i unchanged.
 * Then, and only then, a kernel may subtract the row maximum before exp, or divide a row's
 * weights. */
bool sr_row_scale_invariant(const srnn_attention *attention);

/* True if the floor of the norm is relative to the row sum: then a common factor of the row's
 * weights cancels below the floor too, and a row whose logits are all very negative is not a zero
 * row. */
bool sr_floor_follows_rows(const srnn_attention *attention);

/* True unless the delta rule may grow without bound: it is stable while beta score(|feature(k)|^2)
 * is at most 2, which unit keys ensure unless the range of beta times the score of 1 exceeds it. */
bool sr_delta_is_stable(const srnn_attention *attention);

/* True if the delta rule has a gate for each channel. */
bool sr_writes_channels(const srnn_attention *attention);

/* True if the erased content is addressed by vectors other than the keys that are written. */
bool sr_erases_apart(const srnn_attention *attention);

/* True if every head has its own norm weights. */
bool sr_norm_weighs_heads(const srnn_attention *attention);

/* The largest beta of the delta rule. */
double sr_write_range(const srnn_attention *attention);

/* The factor between <feature(q), feature(k)> and s. */
double sr_scale_factor(const srnn_attention *attention, int D);

/* True if the normaliser reads sum_j w_ij. */
bool sr_needs_row_sum(const srnn_attention *attention);

/* True if the variant reads operands.output_gate. */
bool sr_uses_output_gate(const srnn_attention *attention);

/* True if order n of the power series of the score is present: its state has one entry per multiset
 * of n indices. Meaningful for variants with a state. */
bool sr_has_order(const srnn_attention *attention, int n);

/* The highest order of the score's power series; 0 if the score is not one. */
int sr_highest_order(const srnn_attention *attention);

/* A tensor that a layer of the variant learns in addition to the q, k, v and o projections. */
typedef struct sr_learned {
    char name[24];    /* its name in the reference's checkpoints: "out_gate_proj" */
    char tensors[64]; /* "weight (H, C), bias (H)" */
} sr_learned;

enum { SR_LEARNED_MAX = 20 };

/* Fills `learned` (SR_LEARNED_MAX entries) and returns their number. */
size_t sr_attention_learned(sr_learned *learned, const srnn_attention *attention);

/* True if both describe the same combination. */
bool sr_attention_same(const srnn_attention *a, const srnn_attention *b);

/* The named variant, or NULL. */
const srnn_variant *sr_variant_find(const char *name);

#ifdef __cplusplus
}
#endif

#endif
