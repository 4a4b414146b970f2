/* call.h: one call of attention as CUDA kernels see it: passed by value, built on the host, and the
 * workspace that all of them share. N is the problem's number type: sr_bf16 or float. */
#ifndef SR_ATTENTION_CUDA_SHARED_CALL_H
#define SR_ATTENTION_CUDA_SHARED_CALL_H

#include "attention/cuda/shared/gates.h"
#include "attention/cuda/shared/score.h"
#include "attention/kernel.h"
#include "base/memory.h"
#include "equation/norm.h"

/* An array with a row (for gates: a number) per batch row, head and position. data NULL: absent, or
 * not requested. */
template <class N> struct sr_strided {
    N *data;
    int64_t batch, head, time; /* strides in numbers */

    SR_BOTH N *at(int b, int h, int64_t t) const {
        return data + b * batch + h * head + t * time;
    }
};

/* The descriptor's choices for rows; the score has its own rule. */
struct sr_choices {
    srnn_feature feature;
    srnn_normaliser normaliser;
    srnn_gate output_gate;
    srnn_norm norm;
    srnn_sink sink;
    bool detach, post_gate, value_gate;
    bool decays;        /* one number per head and token */
    bool decays_logits; /* which multiplies logits, not weights */
    bool cumulates;     /* uses running sums of exp(output gate) */
    bool gated;         /* reads the output gate */
    bool sums_rows;     /* the normaliser, or the floor of the norm, is made of row sums */
    bool floor_follows_rows;
    bool only_divided; /* rows are divided by their sums, and that is all */
    float epsilon;
};

/* Arrays over all positions in the plan's workspace; NULL where the variant does not need one. Rows
 * of q, k, v and d_numerator are aligned to 16 bytes. */
template <class N> struct sr_attention_scratch {
    sr_strided<N> q, k, v; /* features of q and k, v times its factor */
    float *value_factor;   /* (B, Hkv, T) */
    double *decay;         /* (B, Hkv, T): C_i */
    int32_t *seen;         /* (B, T): the first position a row sees; with a window only */
    double *cumulative;    /* (B, H, T): sum_{m<=i} exp(output gate_m) */
    float *q_inverse;      /* (B, T, D): 1 / norm across the heads, unit_heads only */
    float *k_inverse;
    /* Backward only, from the backward preprocess. The core works with weights w' = a w, where a_i
     * is such that the gradient of the sum of w' v has the magnitude of d_o: see
     * row_output_backward.
     *
     * row_scale, (B, H, T): a_i (polynomial); else the term subtracted from log2 w; in float
     * without the maximum, which is subtracted first. */
    float *row_scale;
    float *d_row_sum; /* (B, H, T): gradient of sum_j w'_ij */
    /* (B, H, T, Dv): gradient of sum_j w'_ij v_j; data NULL: it is d_o */
    sr_strided<N> d_numerator;
    float *d_cumulative; /* (B, H, T) */
    float *row_dot;      /* (B, H, T): sum_j w'_ij dw'_ij, by the core */
    float *column_dot;   /* (B, Hkv, T): the same over i and the heads of the group, by the core */
    float *value_dot;    /* (B, Hkv, T): <factor v, its gradient>, by the core */
    float *d_sink;       /* (B, H, T): the row's share of the gradient of its sink's logit */
    double *d_gate;      /* (B, Hkv, T): gradients of the logarithms of the gates */
    double *partial;     /* (SR_SUM_PARTS, H): for sums over all rows */
    float *norm_partial; /* (SR_NORM_PARTS, 2, Dv): gradients of norm weight and bias */
};

enum { SR_NORM_PARTS = 528 }; /* at most: four for each multiprocessor of an H200 */

template <class N> struct sr_attention_view {
    int B, H, Hkv, T, D, Dv;
    int group; /* query heads of a kv head */
    sr_choices choices;
    sr_score_rule score;
    sr_gate_rule gate;
    int window;              /* keys that a row sees at most; 0: all */
    const int32_t *document; /* (B, T): where the document of a token starts */
    const int32_t *first;    /* (B, T): the first position a row sees; it never falls */
    sr_carry carry;          /* of a state that T more tokens are fed to; position NULL: no state */

    /* As the core reads them: features and factors applied, in the workspace or in the caller's
     * arrays. */
    sr_strided<const N> q, k, v;
    /* As the caller gave them. */
    sr_strided<const N> raw_q, raw_k, raw_v;
    sr_strided<const N> value_gate, output_gate, decay;
    const float *norm_weight, *norm_bias, *value_power, *sinks;

    sr_strided<N> o; /* forward */

    /* Saved by forward for backward: (B, H, T, Dv) without gaps, and (B, H, T). numerator NULL:
     * nothing is saved. */
    N *numerator;
    float *row_sum, *maximum;

    sr_strided<const N> d_o;         /* backward */
    sr_strided<const N> d_numerator; /* in scratch memory, or d_o */
    sr_strided<N> d_q, d_k, d_v, d_value_gate, d_output_gate, d_decay;
    float *d_norm_weight, *d_norm_bias, *d_value_power, *d_sinks, *d_a_log, *d_dt_bias;
    /* RoPE whose inverse is applied to d_q and d_k as they are stored, by cores that support it */
    sr_rope_angles rope;

    sr_attention_scratch<N> scratch;

    /* Tokens before the first of this call. */
    SR_DEVICE int64_t position() const {
        return carry.position ? *carry.position : 0;
    }

    /* The place of a row's number in an array (B, heads, T). */
    SR_BOTH int64_t row_index(int heads, int b, int h, int64_t t) const {
        return ((int64_t)b * heads + h) * T + t;
    }
};

/* Where the features of q and k are computed: in the prologue, or in the core as it reads them. */
enum sr_feature_maker { SR_FEATURES_BEFORE, SR_FEATURES_IN_CORE };

/* Takes the arrays that the plan needs from `layout`, which a kernel may continue. */
template <class N>
sr_attention_scratch<N> sr_attention_scratch_place(const srnn_plan *plan, sr_layout *layout,
                                                   sr_feature_maker maker = SR_FEATURES_BEFORE);

/* The call, with the scratch arrays in `layout`. */
template <class N>
sr_attention_view<N> sr_attention_forward_view(const sr_attention_call *call, sr_layout *layout,
                                               sr_feature_maker maker = SR_FEATURES_BEFORE);
template <class N>
sr_attention_view<N> sr_attention_backward_view(const sr_attention_call *call, sr_layout *layout,
                                                sr_feature_maker maker = SR_FEATURES_BEFORE);

/* True if every row of the array is aligned to 16 bytes. */
template <class N> bool sr_rows_aligned(const sr_strided<N> &rows);

/* The score's class, for choosing a kernel. */
sr_score_class sr_score_class_of(const srnn_attention *attention);

#endif
