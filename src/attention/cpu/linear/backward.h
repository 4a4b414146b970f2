/* backward.h (private): what the two files of the linear kernel's backward share. */
#ifndef SR_ATTENTION_CPU_LINEAR_BACKWARD_H
#define SR_ATTENTION_CPU_LINEAR_BACKWARD_H

#include "attention/cpu/linear/chunk.h"

#define linear_chunk_backward SR_ISA_REAL(sr_linear_chunk_backward)

typedef struct linear_workspace {
    linear_rows rows;
    linear_buffers buffers;
    linear_state state, gradient; /* gradient: R */
    linear_state *before;         /* (blocks): states before each */
    /* (T and a block of rows, stride of Dv): the delta rule's, of the first walk; NULL with
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
    real *d_erase, *d_removed;         /* (block, stride of D): where the rule erases apart */
    real *d_beside;                    /* (rows, stride of Dv): of the values that removal writes */
    double *change; /* (block, numbers of a decay): of the gradients of gates from token to token */
    double *onward; /* (numbers of a decay): that of the gate behind the chunk */
    /* (numbers of a decay): of the chunk's first gate, by what it lets through of the state before;
     * NULL where nothing multiplies what rounding leaves of it */
    double *across;
    double *later; /* (numbers of a decay): what was given for the token behind */
} linear_workspace;

/* A chunk whose gradients are wanted. */
typedef struct linear_chunk_place {
    const linear_workspace *w;
    const linear_walk *x;
    const linear_chunk *c;
    const linear_keys *k;
    const linear_state *state; /* before it */
} linear_chunk_place;

/* Writes gradients of the chunk's rows to their places, and moves R before it. */
void linear_chunk_backward(const linear_chunk_place *at);

#endif
