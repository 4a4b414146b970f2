/* carried.h (private): initial and final states of a call, and their gradients, as kernels read and
 * write them. */
#ifndef SR_ATTENTION_CPU_SHARED_CARRIED_H
#define SR_ATTENTION_CPU_SHARED_CARRIED_H

#include "attention/cpu/shared/rows.h"
#include "attention/kernel.h"
#include "equation/facts.h"

/* The matrix of a head in a kernel's memory. */
typedef struct carried_matrix {
    real *matrix; /* (rows, ld) */
    real *column; /* (rows) */
    int64_t rows, ld;
} carried_matrix;

/* Whether a document is the one that the initial state of its row is before, or that leaves the
 * final one. */
static inline bool carried_into(const srnn_states *states, const sr_document_range *document) {
    return states->initial && document->start == 0;
}

static inline bool carried_out(const void *states, const srnn_problem *p,
                               const sr_document_range *document) {
    return states && document->start + document->length == p->T;
}

/* Numbers from one row of a state to the next. */
static inline int64_t carried_width(const srnn_problem *p) {
    return p->Dv + sr_needs_row_sum(&p->attention);
}

static inline int64_t carried_offset(const srnn_problem *p, int64_t b, int kv, int64_t rows) {
    return (b * p->Hkv + kv) * rows * carried_width(p);
}

/* matrix and column = the state of head kv of row b, times factor. What is not written is 0. */
static inline void carried_load(const carried_matrix *to, const void *states, const srnn_problem *p,
                                int64_t b, int kv, real factor) {
    const real *from = (const real *)states + carried_offset(p, b, kv, to->rows);
    const bool sums = sr_needs_row_sum(&p->attention);
    for (int64_t m = 0; m < to->rows; m++, from += carried_width(p)) {
        for (int d = 0; d < p->Dv; d++)
            to->matrix[m * to->ld + d] = factor * from[d];
        if (sums)
            to->column[m] = factor * from[p->Dv];
    }
}

/* The other way round. */
static inline void carried_store(void *states, const carried_matrix *from, const srnn_problem *p,
                                 int64_t b, int kv, real factor) {
    real *to = (real *)states + carried_offset(p, b, kv, from->rows);
    const bool sums = sr_needs_row_sum(&p->attention);
    for (int64_t m = 0; m < from->rows; m++, to += carried_width(p)) {
        for (int d = 0; d < p->Dv; d++)
            to[d] = factor * from->matrix[m * from->ld + d];
        if (sums)
            to[p->Dv] = factor * from->column[m];
    }
}

/* <state, gradient> of the final state, where `from` holds it but for the factor. */
static inline double carried_dot(const carried_matrix *from, const void *gradients,
                                 const srnn_problem *p, int64_t b, int kv, double factor) {
    const real *d = (const real *)gradients + carried_offset(p, b, kv, from->rows);
    const bool sums = sr_needs_row_sum(&p->attention);
    double sum = 0.0;
    for (int64_t m = 0; m < from->rows; m++, d += carried_width(p)) {
        sum += row_dot(from->matrix + m * from->ld, d, p->Dv);
        sum += sums ? (double)from->column[m] * (double)d[p->Dv] : 0.0;
    }
    return factor * sum;
}

#endif
