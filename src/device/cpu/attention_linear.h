/* attention_linear.h (private): linear scores with everything that pairs may have, token by token on a state. */
#ifndef SR_CPU_ATTENTION_LINEAR_H
#define SR_CPU_ATTENTION_LINEAR_H

#include "device/cpu/attention_edges.h"
#include "device/cpu/attention_tiles.h"

#define linear_forward          SR_ISA_REAL(sr_linear_forward)
#define linear_forward_scratch  SR_ISA_REAL(sr_linear_forward_scratch)
#define linear_feed             SR_ISA_REAL(sr_linear_feed)
#define linear_backward         SR_ISA_REAL(sr_linear_backward)
#define linear_backward_scratch SR_ISA_REAL(sr_linear_backward_scratch)

size_t linear_forward_scratch(const srnn_plan *plan);
srnn_status linear_forward(const sr_attention_call *call);
size_t linear_backward_scratch(const srnn_plan *plan);
srnn_status linear_backward(const sr_attention_call *call);

/* As chunked_feed. */
srnn_status linear_feed(const sr_attention_call *call, char *states, int64_t capacity,
                        sr_carry *carry);

enum { LINEAR_CHUNK = 32 }; /* tokens whose rows are loaded, and whose states are kept, at a time */

/* sum_j exp(C - C_j) k_j u_j^T over the tokens seen, of each level. */
typedef struct linear_state {
    real *matrix;      /* (levels, D, stride of Dv) */
    real *column;      /* (levels, D): the same with v = 1, of keys that are not turned */
    double *reference; /* (numbers of a decay): C of the last token */
} linear_state;

static inline int64_t linear_levels(const srnn_problem *p) {
    return p->attention.levels == SRNN_LEVELS_FENWICK ? p->levels : 1;
}

/* Numbers of a decay where D is that of the core. */
static inline int64_t linear_decays(const srnn_problem *p) {
    return p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
}

static inline linear_state linear_state_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t rows = linear_levels(p) * p->D;
    return (linear_state){
        .matrix = take_reals(layout, rows, row_stride(p->Dv)),
        .column = take_reals(layout, rows, 1),
        .reference = sr_layout_take(layout, (size_t)linear_decays(p), sizeof(double)),
    };
}

static inline size_t linear_state_bytes(const srnn_problem *p) {
    sr_layout layout = {0};
    linear_state_place(p, &layout);
    return layout.used;
}

/* Tokens of one head on their way through the state. */
typedef struct linear_walk {
    const srnn_problem *p;
    int64_t ld, levels;
    const double *decay;     /* (T, numbers) from the document's first token, or NULL */
    bool sums, delta, first; /* first: no token came before this call's */
} linear_walk;

/* What a step reads of token r of its chunk, and leaves. */
typedef struct linear_token {
    const real *key, *plain_key; /* (D): turned, not turned */
    const real *value;           /* (stride of Dv) */
    real beta;
    int64_t position; /* in the document */
    int64_t at;       /* in the call's part of it */
    real *factor;     /* (D): what the state was multiplied by */
    real *error, *u;  /* (levels, stride of Dv) */
} linear_token;

/* Levels whose states hold something once the token is written: into list, returns how many. */
static inline int linear_active(const linear_walk *x, int64_t position, int list[SR_LEVELS_MAX]) {
    int count = 0;
    list[count++] = 0;
    for (int level = 1; level < x->levels; level++)
        if (position >> (level - 1) & 1)
            list[count++] = level;
    return count;
}

/* The level that takes in all lower ones before the token at this position is written; 0: none. */
static inline int linear_merged(const linear_walk *x, int64_t position) {
    return x->levels > 1 && position > 0 ? __builtin_ctzll((unsigned long long)position) + 1 : 0;
}

/* out[d] += factor * row[d], and <a, b>; n a multiple of LANES, rows aligned. */
static inline void linear_add(real *out, real factor, const real *row, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES)
        vec_store(out + d, vec_load(out + d) + factor * vec_load(row + d));
}

static inline real linear_dot(const real *a, const real *b, int64_t n) {
    vec sum = {0};
    for (int64_t d = 0; d < n; d += LANES)
        sum += vec_load(a + d) * vec_load(b + d);
    return vec_sum(sum);
}

#endif
