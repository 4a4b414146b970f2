/* prologue.h (private): what happens to rows before and after the core of the equation.
 *
 * Every kernel is prologue, core, epilogue. The core, O(T^2) or a state update, is what kernels
 * differ in; prologue and epilogue, O(T), are here once: features of q and k, the factor on v, the
 * running sums, the normaliser, gates and norms, each with its backward. Sums are kept in
 * double. */
#ifndef SR_ATTENTION_CPU_SHARED_PROLOGUE_H
#define SR_ATTENTION_CPU_SHARED_PROLOGUE_H

#include "attention/cpu/shared/real.h"
#include "attention/kernel.h"
#include "base/memory.h"

enum { SR_NORM_WORKSPACE = 10 };

/* Arrays over all positions, filled by sr_prologue_prepare; NULL where the variant has no use for
 * one. Hkv is that of the plan's core: heads of keys and values that go together. */
typedef struct sr_row_workspace {
    real *value_factor; /* (B, Hkv, T): v_j is multiplied by it */
    double *decay;      /* (B, Hkv, T), or (B, Hkv, T, D) per channel: C_i */
    double *cumulative; /* (B, H, T): sum_{m<=i} exp(output gate_m) */
    real *q_inverse;    /* (B, T, D): 1 / norm across the heads, unit_heads only */
    real *k_inverse;
    double *level;             /* (B, H, T, levels): what weights of a level are multiplied by */
    real *beta;                /* (B, Hkv, T): the delta rule's */
    real *pooled_k, *pooled_v; /* (B, Hkv, T, D) and (.., Dv): running averages */
    double *norm_workspace; /* (B or threads, H, SR_NORM_ROOM Dv): for norms over several heads */
    real *angles;           /* (1 + B, T, D/2, 2): cosine and sine of the tokens of a document; of
                               those that rows continue (sr_plan_continue), at 1 + b */
    /* Backward only: */
    double *d_before;     /* (B, H, T, Dv): of the input of a norm over several heads */
    real *d_numerator;    /* (B, H, T, Dv) */
    real *d_row_sum;      /* (B, H, T) */
    double *d_cumulative; /* (B, H, T) */
    double *value_dot;    /* (B, Hkv, T): gradient of factor*v, times factor*v */
    double *norm_partial; /* (B, H, 2 Dv): gradients of norm weight and bias */
    double *sink_partial; /* (B, H): gradients of sinks */
    double *d_decay;      /* as decay: of C, by the core */
    double *d_end;        /* (B, Hkv), or (.., D): of C after a row's last token; learned only */
    double *d_level;      /* as level, by the core */
    double *d_beta;       /* as beta, by the core */
    real *d_skip;         /* (B, H, T, Dv): of y */
    double *skip_partial; /* (B, H, Dv or D): of the weights of the skip */
    double *head_partial; /* (B, Hkv, T, 2): shares in the gradients of a_log and dt_bias */
    real *d_q, *d_k; /* (B, H, T, D), (B, Hkv, T, D): where several heads or tokens share one */
    real *d_v;       /* (B, Hkv, T, Dv): of pooled values */
    real *d_erase, *d_removal; /* (B, Hkv, T, D): of erase gates or removal keys, of removal gates,
                                  where several heads share one */
} sr_row_workspace;

/* Takes the arrays that the variant needs from `layout`. */
void SR_ISA_REAL(sr_workspace_place)(sr_row_workspace *row_work, const srnn_plan *plan,
                                     bool backward, sr_layout *layout);

/* Fills the forward arrays. `carry` may be NULL; otherwise it is read and moved to the end. */
void SR_ISA_REAL(sr_prologue_prepare)(const sr_row_workspace *row_work, const srnn_plan *plan,
                                      const srnn_operands *in, sr_carry *carry);

/* Rows t .. t+count-1 of head h of row b of the batch. */
typedef struct sr_rows {
    int64_t b;
    int h;
    int64_t t, count;
} sr_rows;

/* out (count, ld) = feature(q) * scale, or feature(k), without the rotation of rope_features. */
void SR_ISA_REAL(sr_prologue_query_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                         const sr_attention_call *call, sr_rows rows);
void SR_ISA_REAL(sr_prologue_key_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                       const sr_attention_call *call, sr_rows rows);

/* Rotates rows of features with rope_features, in place, by the angles of their tokens, or
 * back. */
void SR_ISA_REAL(sr_prologue_rope)(real *rows, int64_t ld, const sr_row_workspace *row_work,
                                   const sr_attention_call *call, sr_rows which, bool back);

/* What the rule takes back by, where that is not the keys themselves (sr_erases_apart). */
typedef struct sr_erase_rows {
    real *erase;   /* (count, ld): f, or n */
    real *removed; /* (count, ld): b, with write=removal */
} sr_erase_rows;

/* From the rows of keys that sr_prologue_key_rows gave. */
void SR_ISA_REAL(sr_prologue_erase_rows)(sr_erase_rows out, const real *keys, int64_t ld,
                                         const sr_attention_call *call, sr_rows rows);

/* out (count, ld) = factor * v. */
void SR_ISA_REAL(sr_prologue_value_rows)(real *out, int64_t ld, const sr_row_workspace *row_work,
                                         const sr_attention_call *call, sr_rows rows);

/* What the core of the equation gives for some rows. */
typedef struct sr_row_results {
    const real *numerator; /* (count, ld) */
    int64_t ld;
    const real *row_sum; /* (count) */
    const real *maximum; /* (count): of what both were divided by, the logarithm; NULL: nothing */
    int64_t length;      /* of the document up to the first of the rows, this one included */
} sr_row_results;

/* Rows of call->o. */
void SR_ISA_REAL(sr_epilogue_rows)(sr_row_results results, const sr_row_workspace *row_work,
                                   const sr_attention_call *call, sr_rows rows);

/* After all rows: norms over several heads. */
void SR_ISA_REAL(sr_epilogue_finish)(const sr_row_workspace *row_work,
                                     const sr_attention_call *call);

/* First pass of the backward: d_numerator, d_row_sum and norm_partial from call->o and
 * saved, and the gradients of the output gate. */
void SR_ISA_REAL(sr_epilogue_backward)(const sr_row_workspace *row_work,
                                       const sr_attention_call *call);

/* Writes gradient rows of q, k or v from gradients of what the row functions above returned. */
void SR_ISA_REAL(sr_prologue_query_rows_backward)(const real *gradient, int64_t ld,
                                                  const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows);
void SR_ISA_REAL(sr_prologue_key_rows_backward)(const real *gradient, int64_t ld,
                                                const sr_row_workspace *row_work,
                                                const sr_attention_call *call, sr_rows rows);
/* Adds to d_keys (count, ld) what the erase rows got of the keys that sr_prologue_key_rows gave,
 * and writes the gradients of what else they are made of. Its parameters are the forward's and the
 * gradients. */
void SR_ISA_REAL(sr_prologue_erase_rows_backward)(real *d_keys, sr_erase_rows gradient,
                                                  const real *keys, int64_t ld,
                                                  const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows);
/* also fills value_dot; `value` holds the rows that sr_prologue_value_rows gave. */
void SR_ISA_REAL(sr_prologue_value_rows_backward)(const real *gradient, const real *value,
                                                  int64_t ld, const sr_row_workspace *row_work,
                                                  const sr_attention_call *call, sr_rows rows);

/* Last pass: gradients that need all rows or all heads (unit_heads, shared q and k, pooling, gates,
 * value power, decay, what is learned itself). */
void SR_ISA_REAL(sr_prologue_backward)(const sr_row_workspace *row_work,
                                       const sr_attention_call *call);

#endif
