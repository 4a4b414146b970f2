/* transposed.h (private): matrices of experts that files hold transposed, with several of ours in
 * one: ours are (experts, rows, columns) each, the file's is (experts, columns, rows * parts) and
 * has number (row, part) at row * parts + part. Biases are matrices of one column. */
#ifndef SR_MODEL_FILES_TRANSPOSED_H
#define SR_MODEL_FILES_TRANSPOSED_H

#include "files/safetensors.h"
#include "ops/backend.h"

typedef struct sr_transposed {
    int64_t experts, rows, columns;
    int parts;
} sr_transposed;

/* to, all numbers of a part, (experts, rows, columns), backend memory, = that part of the file's
 * tensor. */
srnn_status sr_transposed_load(sr_backend *backend, sr_matrix to, const sr_tensor *tensor,
                               const sr_transposed *shape, int part);

/* What one tensor of a file is made of. */
typedef struct sr_transposed_parts {
    sr_backend *backend;
    const float *const *parts; /* ours, backend memory */
    sr_transposed shape;
} sr_transposed_parts;

/* Reads a transposed tensor back from its parts, one expert at a time. { 0 } at first. */
typedef struct sr_transposed_reader {
    float *numbers; /* (parts, rows, columns): of one expert */
    const void *of; /* whose; NULL: nothing is there */
    int64_t expert;
    size_t capacity;
} sr_transposed_reader;

/* out (count) = numbers `first` and later of the file's tensor. */
srnn_status sr_transposed_read(sr_transposed_reader *reader, float *out,
                               const sr_transposed_parts *from, size_t first, size_t count);
void sr_transposed_reader_free(sr_transposed_reader *reader);

#endif
