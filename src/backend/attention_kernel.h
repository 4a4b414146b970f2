/* attention_kernel.h: the contract between the public attention calls and the kernels behind them.
 */
#ifndef SR_BACKEND_ATTENTION_KERNEL_H
#define SR_BACKEND_ATTENTION_KERNEL_H

#include "softrnn.h"

/* One document: tokens start .. start+length-1 of batch row b. */
typedef struct sr_span {
    int64_t b, start, length;
} sr_span;

/* What forward leaves for backward, and every kernel writes alike, so that any backward can follow
 * any forward. Rows may be scaled by exp(-maximum): see sr_row_scale_invariant. */
typedef struct sr_saved {
    void *numerator; /* (B, H, T, Dv): sum_j w_ij value_gate_j v_j, times exp(-maximum_i) */
    void *row_sum;   /* (B, H, T): sum_j w_ij, times exp(-maximum_i); 0 if nothing needs it */
    void *maximum;   /* (B, H, T): 0 where the variant is not row-scale invariant */
} sr_saved;

typedef struct sr_attention_kernel sr_attention_kernel;

struct srnn_plan {
    srnn_problem problem; /* with Hkv, Dv, threads and chunk filled in; offsets is NULL */
    sr_span *spans;       /* (B*T at most), row by row */
    int64_t span_count;
    int64_t *row_spans; /* (B + 1): where the spans of a row start */
    int32_t *first;     /* (B, T): where the document of a token starts in its row */
    const sr_attention_kernel *kernel;
    void *scratch;
    size_t scratch_bytes;
};

/* One call: the plan, the tensors with their strides filled in, and the scratch memory. */
typedef struct sr_attention_call {
    const srnn_plan *plan;
    const srnn_operands *in;
    srnn_tensor o;                  /* forward: output; backward: gradient of the output */
    const srnn_operands *gradients; /* backward */
    sr_saved saved;                 /* numerator is NULL when forward need not save */
} sr_attention_call;

struct sr_attention_kernel {
    const char *name;
    srnn_form form;
    srnn_dtype dtype;
    bool (*supports)(const srnn_problem *problem);
    size_t (*scratch)(const srnn_plan *plan); /* bytes */
    void (*forward)(const sr_attention_call *call);
    void (*backward)(const sr_attention_call *call); /* NULL: no backward in this form */
};

/* Running sums at the end of what a state has seen, so that the next piece can go on. */
typedef struct sr_carry {
    int64_t position;   /* tokens before this piece */
    double *decay;      /* (B, Hkv): C of the next token */
    double *cumulative; /* (B, H): sum of exp(output gate) */
} sr_carry;

/* How a state is kept between calls. */
typedef struct sr_state_kernel {
    srnn_dtype dtype;
    bool fixed; /* a fixed-size state; else keys and values */

    /* Memory for `capacity` tokens (a fixed-size state ignores it); zero bytes are the empty state. */
    size_t (*bytes)(const srnn_problem *problem, int64_t capacity);

    /* Scratch for feeding plan->problem.T tokens, and feeding them; moves the carry on. */
    size_t (*scratch)(const srnn_plan *plan);
    void (*feed)(const sr_attention_call *call, char *memory, int64_t capacity, sr_carry *carry);

    /* The state as plain numbers without padding, the same on every machine: how many bytes, out, in. */
    size_t (*plain_bytes)(const srnn_problem *problem, int64_t position);
    void (*to_plain)(char *plain, const char *memory, int64_t capacity, const srnn_problem *problem,
                     int64_t position);
    void (*from_plain)(char *memory, int64_t capacity, const char *plain,
                       const srnn_problem *problem, int64_t position);
} sr_state_kernel;

/* Rows of numbers in one contiguous (B, heads, T) array of a plan. */
static inline int64_t sr_row_index(const srnn_problem *p, int heads, int64_t b, int h, int64_t t) {
    return (b * heads + h) * p->T + t;
}

#endif
