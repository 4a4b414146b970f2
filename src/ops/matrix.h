/* matrix.h: a matrix in the memory of a device, or some rows or columns of one. */
#ifndef SR_OPS_MATRIX_H
#define SR_OPS_MATRIX_H

#include "attention/kernel.h"

/* How a matrix is handed to linear layers that multiply in 8 bits. */
typedef enum sr_handed {
    SR_HANDED_NUMBERS = 0,
    SR_HANDED_MEASURED, /* the note has a size that no number of it exceeds */

    /* Numbers of 8 bits in place of numbers of `dtype`, which is bf16: (rows, columns) of them,
     * then the same transposed; the note has their scale. A whole matrix without gaps, of which
     * nothing but rows of linear layers' operands can be taken. */
    SR_HANDED_CODES,
} sr_handed;

/* What goes with such a matrix, in device memory, aligned to 16 bytes. */
typedef struct sr_matrix_note {
    float scale;       /* of its codes */
    uint32_t largest;  /* bits of the largest size */
    uint32_t gate, up; /* the same of silu(gate) and of up, where it is the product of both */
    uint32_t expected; /* workspace: the same of a matrix that should be alike; 0: of none */
    uint32_t unused[3];
} sr_matrix_note;

/* Element (r, c) is at data + r * stride + c. */
typedef struct sr_matrix {
    void *data;
    int64_t rows;
    int64_t columns;
    int64_t stride;
    srnn_dtype dtype;
    sr_handed handed;
    sr_matrix_note *note; /* NULL: none */
} sr_matrix;

static inline void *sr_number_at(void *data, int64_t index, srnn_dtype dtype) {
    return data ? (char *)data + index * (int64_t)sr_element_bytes(dtype) : NULL;
}

/* A whole matrix whose rows follow each other. */
static inline sr_matrix sr_matrix_of(void *data, int64_t rows, int64_t columns, srnn_dtype dtype) {
    sr_matrix m = {data, rows, columns, columns, dtype, SR_HANDED_NUMBERS, NULL};
    return m;
}

static inline sr_matrix sr_matrix_handed(sr_matrix m, sr_handed handed, sr_matrix_note *note) {
    m.handed = handed;
    m.note = note;
    return m;
}

static inline sr_matrix sr_matrix_columns(sr_matrix m, int64_t first, int64_t columns) {
    m.data = sr_number_at(m.data, first, m.dtype);
    m.columns = columns;
    return m;
}

static inline sr_matrix sr_matrix_rows(sr_matrix m, int64_t first, int64_t rows) {
    m.data = sr_number_at(m.data, first * m.stride, m.dtype);
    m.rows = rows;
    return m;
}

/* out (rows, columns), host memory, = a matrix whose rows follow each other, as floats; waits. */
srnn_status sr_matrix_fetch(float *out, srnn_device *device, sr_matrix m);

#endif
