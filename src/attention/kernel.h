/* kernel.h: the contract between the public attention calls and the kernels behind them.
 */
#ifndef SR_ATTENTION_KERNEL_H
#define SR_ATTENTION_KERNEL_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One document: tokens start .. start+length-1 of batch row b. */
typedef struct sr_document_range {
    int64_t b, start, length;
    int64_t before; /* tokens of it in earlier parts of the row, see sr_plan_continue */
} sr_document_range;

/* What forward leaves for backward of the same kernel. Rows may be scaled by exp(-maximum): see
 * sr_row_scale_invariant. The numerator has the problem's number type, or its wider one where the
 * kernel saves_wide; the statistics have the wider one (sr_element_accumulator). */
typedef struct sr_saved {
    void *numerator; /* (B, H, T, Dv): sum_j w_ij value_gate_j v_j, times exp(-maximum_i) */
    void *row_sum;   /* (B, H, T): sum_j w_ij, times exp(-maximum_i); 0 if nothing needs it */
    void *maximum;   /* (B, H, T): 0 where the variant is not row-scale invariant */
} sr_saved;

typedef struct sr_attention_kernel sr_attention_kernel;

/* Keys and values of T tokens that come before the queries in another part of the rows. A call with
 * them adds them to what forward has saved so far, or gives their gradients. */
typedef struct sr_earlier_keys {
    int64_t gap;          /* tokens from the first of these keys to the first query; 0: none */
    const int32_t *first; /* (B, T): the first of these keys that each query sees, not falling
                             within a row; T: none */
    /* The queries are another rank's, which has their sums so far and writes their outputs: forward
     * saves sums over these keys alone (with a maximum of -infinity where there are none and maxima
     * are subtracted), and backward reads the gradients of sums, see d_sums. */
    bool visitors;
    /* Backward: NULL, or where the gradients of the numerator and of the row sum are copied to, and
     * the maximum. */
    const sr_saved *d_sums;
    /* Where weights decay: C of the queries and of the keys, (B, Hkv, T), counted from one token;
     * and where backward writes their gradients. */
    const double *query_decay, *key_decay;
    double *d_query_decay, *d_key_decay;
} sr_earlier_keys;

/* The decays of rows that are parts of longer ones. */
typedef struct sr_part_decays {
    /* Where calls with the part's own keys leave C (B, Hkv, T), and C after the last token of each
     * row (B, Hkv), which has its gate in any case. NULL: nowhere. */
    double *own, *end;
    /* Gradients of both. Not NULL: backward computes those of the decays from them, and nothing
     * else. */
    const double *d_own, *d_end;
} sr_part_decays;

/* The running sums of output gates of rows that are parts of longer ones, (B, H): before the part,
 * of documents that continue; and where backward leaves their gradients. NULL: there are none. */
typedef struct sr_part_sums {
    const double *before;
    double *d_before;
} sr_part_sums;

/* Integers of a plan that are zero between calls: a kernel that counts in them leaves them so. */
enum { SR_PLAN_COUNTERS = 2 };

struct srnn_plan {
    srnn_device *device;
    srnn_problem problem; /* with Hkv, Dv, threads and chunk filled in; offsets is NULL */
    /* The same as the core sees it, after the prologue: D is the width of a feature, Hkv counts
     * heads of keys and values that go together. */
    srnn_problem core;

    /* The documents, in host memory, and a copy that kernels of the device can read. */
    sr_document_range *documents; /* (B*T at most), row by row */
    int64_t document_count;
    int64_t *row_documents; /* (B + 1): where the documents of a row start */
    int32_t *host_first;    /* (B, T): where the document of a token starts in its row */
    int32_t *first;         /* the same, device memory */
    int32_t *counters;      /* (SR_PLAN_COUNTERS), behind it; NULL where the device is the host */

    const sr_attention_kernel *kernel;
    void *scratch; /* device memory */
    size_t scratch_bytes;

    bool continues;     /* rows are parts, see sr_plan_continue */
    srnn_states states; /* of the call; all NULL: documents start from nothing and leave nothing */
    sr_earlier_keys earlier; /* of the call; gap 0: keys are those of the queries' own tokens */
    sr_part_decays decays;
    sr_part_sums sums;
};

/* The plan's rows are parts of longer ones from now on, until srnn_plan_documents: before (B;
 * NULL: `first` in each) tokens of a row's first document come before it. Kernels of the CPU alone
 * count them. */
void sr_plan_continue(srnn_plan *plan, const int32_t *before, int first);

/* Tokens of the document of token t of row b that come before the row. */
static inline int64_t sr_tokens_before(const srnn_plan *plan, int64_t b, int64_t t) {
    return plan->host_first[b * plan->problem.T + t]
               ? 0
               : plan->documents[plan->row_documents[b]].before;
}

/* The operands of the plan's products may be rounded to bf16 from now on, where the device has a
 * kernel that does so. Before the first call. */
srnn_status sr_plan_round(srnn_plan *plan);

/* srnn_states_sizes of a plan that continues. */
srnn_status sr_states_sizes(int64_t sizes[4], const srnn_problem *problem);

/* The arrays in memory for what forward saves; NULL: none. */
sr_saved sr_plan_saved(const srnn_plan *plan, void *saved);

/* Rotary position that q and k still lack, or that their gradients still have: channel c of a head
 * rotates with channel c + D/2. table NULL: there is nothing to rotate. */
typedef struct sr_rope_angles {
    const float *table;       /* (positions, D): cosines of the D/2 angles, then their sines */
    const int32_t *positions; /* (B*T) of each token in its sequence */
} sr_rope_angles;

/* One call: the plan, the tensors with their strides filled in, and the scratch memory. */
typedef struct sr_attention_call {
    const srnn_plan *plan;
    const srnn_operands *in;
    srnn_tensor o;                  /* forward: output; backward: gradient of the output */
    const srnn_operands *gradients; /* backward */
    sr_saved saved;                 /* numerator is NULL when forward need not save */
    /* Feeding a state whose kernel applies RoPE, or backward of q and k with RoPE applied; else
     * empty. */
    sr_rope_angles rope;
    /* Backward with RoPE: whether the inverse was applied to d_q and d_k, as only some kernels
     * do. */
    bool *rope_inverted;
} sr_attention_call;

/* The RoPE of q and k before attention; whether its inverse was applied to their gradients. */
typedef struct sr_rope_inverse {
    sr_rope_angles rope;
    bool done;
} sr_rope_inverse;

/* srnn_attention_backward of q and k with RoPE applied. Where `back` is not done then, it is left
 * to the caller. */
srnn_status sr_attention_rope_backward(srnn_plan *plan, const srnn_operands *gradients,
                                       srnn_tensor d_o, const srnn_operands *in, const void *saved,
                                       sr_rope_inverse *back);

struct sr_attention_kernel {
    const char *name;
    srnn_form form;
    srnn_dtype dtype;

    /* What it can compute: the axes and values of the equation (equation/support.h); and of those
     * which sizes, GPUs and combinations (NULL: all). */
    const char *computes;
    bool (*fits)(const srnn_problem *problem);

    /* Whether it is the kernel to choose where it can compute a problem (NULL: always); else it
     * runs only if it is requested by name. */
    bool (*pays)(const srnn_problem *problem);

    size_t (*scratch)(const srnn_plan *plan); /* bytes */
    srnn_status (*forward)(const sr_attention_call *call);
    srnn_status (*backward)(const sr_attention_call *call); /* NULL: no backward in this form */

    /* Numerators are saved in the wider type: where an output does not depend on the length of a
     * row of one key, the gradient of that key's weight is 0 only for the exact direction. */
    bool saves_wide;
};

/* Whether it can compute the problem; and whether it has this type and form too. */
bool sr_kernel_can(const sr_attention_kernel *kernel, const srnn_problem *problem);
bool sr_kernel_serves(const sr_attention_kernel *kernel, const srnn_problem *problem,
                      srnn_form form);

/* Running sums at the end of what a state has seen, from which the next piece continues. All in
 * device memory: a recorded feed finds there how far it has come. */
typedef struct sr_carry {
    int64_t *position;  /* (1): tokens before this piece */
    double *decay;      /* (B, Hkv), or (B, Hkv, D) per channel: C of the next token */
    double *cumulative; /* (B, H): sum of exp(output gate) */
    double *pool;       /* (B, Hkv, D + Dv): running averages of k and v; NULL without pool */
} sr_carry;

/* Where the numbers of a state are, for copying them. */
typedef struct sr_state_memory {
    const srnn_plan *plan; /* its device, its problem */
    char *memory;          /* device memory */
    int64_t capacity;      /* tokens that it has room for */
    int64_t position;      /* tokens that it has seen */
} sr_state_memory;

/* How a state is kept between calls. */
typedef struct sr_state_kernel {
    srnn_dtype dtype;
    bool recurrent;       /* a fixed-size state; else a KV cache */
    const char *computes; /* as that of a kernel */

    /* Memory for `capacity` tokens (a fixed-size state ignores it); zero bytes are the empty
     * state. */
    size_t (*bytes)(const srnn_problem *problem, int64_t capacity);

    /* Scratch for feeding plan->problem.T tokens, and feeding them; moves the carry on. */
    size_t (*scratch)(const srnn_plan *plan);
    srnn_status (*feed)(const sr_attention_call *call, char *memory, int64_t capacity,
                        sr_carry *carry);

    /* The state as plain numbers without padding, the same on every machine, in host memory: how
     * many bytes, out, in. */
    size_t (*plain_bytes)(const srnn_problem *problem, int64_t position);
    srnn_status (*to_plain)(char *plain, const sr_state_memory *state);
    srnn_status (*from_plain)(const sr_state_memory *state, const char *plain);

    /* The same numbers in larger, empty memory. NULL: through the plain form. */
    srnn_status (*move)(const sr_state_memory *larger, const sr_state_memory *state);

    /* Whether feeding T tokens applies RoPE to q and k where the call has one. NULL: never. */
    bool (*applies_rope)(const srnn_problem *problem, int T);
} sr_state_kernel;

/* The attention of a device. */
typedef struct sr_attention_kernels {
    const sr_attention_kernel *const *(*list)(void); /* best first, ended by NULL */

    /* How states of a problem are kept, with a fixed size or as a KV cache; NULL: they are not. */
    const sr_state_kernel *(*state)(const srnn_problem *problem, bool recurrent);

    /* Whether the chunked form of a problem that has a state is faster here than the parallel
     * one. */
    bool (*chunked_pays)(const srnn_problem *problem);

    int value_size_max; /* of Dv */

    /* Whether the kernel of a plan takes an initial state and leaves a final one (srnn_states). */
    bool (*carries_states)(const srnn_plan *plan);

    /* Whether it takes earlier keys (sr_earlier_keys). NULL: none does. */
    bool (*takes_earlier)(const srnn_plan *plan);

    /* The plan's kernel for float with operands of its products rounded to bf16, see sr_plan_round.
     * NULL, or returns NULL: there is none. */
    const sr_attention_kernel *(*rounded)(const srnn_plan *plan);
} sr_attention_kernels;

/* How many running sums a carry has in all. */
size_t sr_carry_numbers(const srnn_plan *plan);

/* Rows of numbers in one contiguous (B, heads, T) array of a plan. */
static inline int64_t sr_row_index(const srnn_problem *p, int heads, int64_t b, int h, int64_t t) {
    return (b * heads + h) * p->T + t;
}

/* Bytes of one number, and the type in which such numbers are summed. */
static inline size_t sr_element_bytes(srnn_dtype dtype) {
    switch (dtype) {
    case SRNN_F32:
        return sizeof(float);
    case SRNN_F64:
        return sizeof(double);
    case SRNN_BF16:
        break;
    }
    return 2;
}

static inline srnn_dtype sr_element_accumulator(srnn_dtype dtype) {
    return dtype == SRNN_F64 ? SRNN_F64 : SRNN_F32;
}

#ifdef __cplusplus
}
#endif

#endif
