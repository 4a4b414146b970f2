/* linear.h (private): linear scores through a state, with every axis that applies to pairs. */
#ifndef SR_ATTENTION_CPU_LINEAR_LINEAR_H
#define SR_ATTENTION_CPU_LINEAR_LINEAR_H

#include "attention/cpu/shared/prologue.h"
#include "attention/cpu/shared/tiles.h"

#define linear_forward          SR_ISA_REAL(sr_linear_forward)
#define linear_forward_scratch  SR_ISA_REAL(sr_linear_forward_scratch)
#define linear_feed             SR_ISA_REAL(sr_linear_feed)
#define linear_backward         SR_ISA_REAL(sr_linear_backward)
#define linear_backward_scratch SR_ISA_REAL(sr_linear_backward_scratch)

size_t linear_forward_scratch(const srnn_plan *plan);
srnn_status linear_forward(const sr_attention_call *call);
size_t linear_backward_scratch(const srnn_plan *plan);
srnn_status linear_backward(const sr_attention_call *call);

/* Like chunked_feed. */
srnn_status linear_feed(const sr_attention_call *call, char *states, int64_t capacity,
                        sr_carry *carry);

/* sum_j exp(C - C_j) k_j u_j^T over the tokens seen, per level. Level 0 holds the tokens since the
 * last merge. */
typedef struct linear_state {
    real *matrix; /* (levels, rows of a level, stride of Dv) */
    real *column; /* (levels, stride of D): the same with v = 1, of keys that are not rotated */
    /* (levels, stride of D): factors of the rows of `matrix`, so that a token leaves alone the
     * matrices that only decay. Zeros: the level is empty, whatever its matrix holds. NULL: 1. */
    real *scale;
    real *last_key, *last_value; /* (stride of D), (stride of Dv): what level 0 has besides its
                                  * matrix, key value'; with `scale` only */
    double *reference;           /* (numbers of a decay): C of the last token */
} linear_state;

static inline int64_t linear_levels(const srnn_problem *p) {
    return p->attention.levels == SRNN_LEVELS_FENWICK ? p->levels : 1;
}

/* Decay values per token, for D of the core. */
static inline int64_t linear_decays(const srnn_problem *p) {
    return p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
}

/* Size of the matrix of one level: D rows, padded to whole blocks. */
static inline int64_t linear_matrix(const srnn_problem *p) {
    return round_up(p->D, ROWS) * row_stride(p->Dv);
}

/* True if states that are read have factors: all but one level only decay, unless the delta rule
 * writes to them. */
static inline bool linear_scales(const srnn_problem *p) {
    return linear_levels(p) > 1 && p->attention.write == SRNN_WRITE_ADD;
}

static inline linear_state linear_state_place(const srnn_problem *p, sr_layout *layout) {
    const bool scales = linear_scales(p);
    return (linear_state){
        .matrix = take_reals(layout, linear_levels(p), linear_matrix(p)),
        .column = take_reals(layout, linear_levels(p), row_stride(p->D)),
        .scale = scales ? take_reals(layout, linear_levels(p), row_stride(p->D)) : NULL,
        .last_key = scales ? take_reals(layout, 1, row_stride(p->D)) : NULL,
        .last_value = scales ? take_reals(layout, 1, row_stride(p->Dv)) : NULL,
        .reference = sr_layout_take(layout, (size_t)linear_decays(p), sizeof(double)),
    };
}

static inline size_t linear_state_bytes(const srnn_problem *p) {
    sr_layout layout = {0};
    linear_state_place(p, &layout);
    return layout.used;
}

#endif
