/* backward.h (private): shared by the two files of the linear kernel's backward. */
#ifndef SR_ATTENTION_CPU_LINEAR_BACKWARD_H
#define SR_ATTENTION_CPU_LINEAR_BACKWARD_H

#include "attention/cpu/linear/chunk.h"

#define linear_chunk_backward SR_ISA_REAL(sr_linear_chunk_backward)

typedef struct linear_workspace {
    linear_rows rows;
    linear_buffers buffers;
    linear_state state, gradient; /* gradient: R */
    linear_state *before;         /* (blocks): states before each */
    /* (T and a block of rows, stride of Dv): the delta rule's errors of the first pass; NULL with
     * levels */
    real *errors;
    linear_state *inside;              /* (block): states before each of its chunks */
    real *d_numerators;                /* (heads of a group, block, stride of Dv) */
    real *weights, *d_weights;         /* (rows, stride of tokens) */
    real *u_columns;                   /* (Dv, stride of tokens) */
    real *transposed;                  /* (Dv, stride of D): a matrix of a state or of R */
    real *product_d, *product_dv;      /* (rows, stride of D, Dv): of one chunk */
    real *d_u;                         /* (parts, rows, stride of Dv) */
    real *d_late;                      /* (rows, stride of D) */
    real *d_keys, *d_plain_keys;       /* (block, stride of D) */
    real *d_queries, *d_plain_queries; /* (heads of a group, block, stride of D) */
    real *d_values;                    /* (block, stride of Dv) */
    real *d_erase, *d_removed;         /* (block, stride of D): if the rule has erase rows of its
                                        * own */
    real *d_own_values;                /* (rows, stride of Dv): gradients of the values, which
                                        * removal writes separately */
    double *change; /* (block, decay values): differences between gradients of consecutive gates */
    double *onward; /* (decay values): gradient of the gate after the chunk */
    /* (decay values): gradient of the chunk's first gate, computed from what it passes on of the
     * state before; NULL if no rate multiplies the rounding error of the differences */
    double *across;
    double *later; /* (decay values): the gradient written for the next token */
} linear_workspace;

/* Arguments of the backward of one chunk. */
typedef struct linear_chunk_place {
    const linear_workspace *w;
    const linear_walk *x;
    const linear_chunk *c;
    const linear_keys *k;
    const linear_state *state; /* before it */
} linear_chunk_place;

/* Writes the gradients of the chunk's rows, and propagates R to the state before it. */
void linear_chunk_backward(const linear_chunk_place *at);

#endif
