/* matrix.h: a matrix in the memory of a device, or some rows or columns of one. */
#ifndef SR_OPS_MATRIX_H
#define SR_OPS_MATRIX_H

#include "attention/kernel.h"

/* Element (r, c) is at data + r * stride + c. */
typedef struct sr_matrix {
    void *data;
    int64_t rows;
    int64_t columns;
    int64_t stride;
    srnn_dtype dtype;
} sr_matrix;

static inline void *sr_number_at(void *data, int64_t index, srnn_dtype dtype) {
    return data ? (char *)data + index * (int64_t)sr_element_bytes(dtype) : NULL;
}

/* A whole matrix whose rows follow each other. */
static inline sr_matrix sr_matrix_of(void *data, int64_t rows, int64_t columns, srnn_dtype dtype) {
    sr_matrix m = {data, rows, columns, columns, dtype};
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
