/* transposed.c: matrices of experts that files hold transposed, with several of ours in one. */
#include "model/files/transposed.h"

#include "base/memory.h"
#include "model/files/tensor_stream.h"

#include <stdlib.h>

static int64_t numbers_of_one(const sr_transposed *s) {
    return s->rows * s->columns;
}

/* Number (row, column) of a part, in one expert of the file. */
static int64_t place_there(const sr_transposed *s, int part, int64_t row, int64_t column) {
    return column * s->rows * s->parts + row * s->parts + part;
}

/* scratch (parts + 1, rows, columns) */
static srnn_status load_all(sr_backend *backend, sr_matrix to, const sr_tensor *tensor,
                            const sr_transposed *s, int part, float *scratch) {
    const int64_t one = numbers_of_one(s), whole = one * s->parts;
    float *there = scratch, *here = there + whole;
    const size_t bytes = (size_t)whole * sr_dtype_bytes(tensor->dtype);
    for (int64_t e = 0; e < s->experts; e++) {
        sr_tensor expert = *tensor;
        expert.data = (const char *)tensor->data + (size_t)e * bytes;
        expert.count = (size_t)whole;
        expert.bytes = bytes;
        sr_tensor_to_float(there, &expert);
        for (int64_t row = 0; row < s->rows; row++)
            for (int64_t column = 0; column < s->columns; column++)
                here[row * s->columns + column] = there[place_there(s, part, row, column)];
        SR_TRY(sr_stream_floats(backend, sr_matrix_columns(to, e * one, one), here));
    }
    return SRNN_OK;
}

srnn_status sr_transposed_load(sr_backend *backend, sr_matrix to, const sr_tensor *tensor,
                               const sr_transposed *shape, int part) {
    const size_t one = (size_t)numbers_of_one(shape);
    void *memory;
    SR_TRY(sr_alloc(&memory, one * (size_t)(shape->parts + 1), sizeof(float)));
    const srnn_status status = load_all(backend, to, tensor, shape, part, memory);
    free(memory);
    return status;
}

static srnn_status fetch(sr_transposed_reader *r, const sr_transposed_parts *from, int64_t expert) {
    const sr_transposed *s = &from->shape;
    const float *const *parts = from->parts;
    const size_t one = (size_t)numbers_of_one(s), whole = one * (size_t)s->parts;
    void *memory;
    if (r->of == parts[0] && r->expert == expert)
        return SRNN_OK;
    if (r->capacity < whole) {
        sr_transposed_reader_free(r);
        SR_TRY(sr_alloc(&memory, whole, sizeof(float)));
        r->numbers = memory;
        r->capacity = whole;
    }
    r->of = NULL;
    for (int p = 0; p < s->parts; p++)
        SR_TRY(sr_device_copy_out(from->backend->device, r->numbers + (size_t)p * one,
                                  parts[p] + (size_t)expert * one, one * sizeof(float)));
    r->of = parts[0];
    r->expert = expert;
    return SRNN_OK;
}

srnn_status sr_transposed_read(sr_transposed_reader *r, float *out, const sr_transposed_parts *from,
                               size_t first, size_t count) {
    const sr_transposed *s = &from->shape;
    const int64_t one = numbers_of_one(s), whole = one * s->parts, wide = s->rows * s->parts;
    for (size_t i = 0; i < count; i++) {
        const int64_t at = (int64_t)(first + i), inside = at % whole;
        const int64_t column = inside / wide, row = inside % wide / s->parts;
        SR_TRY(fetch(r, from, at / whole));
        out[i] = r->numbers[inside % wide % s->parts * one + row * s->columns + column];
    }
    return SRNN_OK;
}

void sr_transposed_reader_free(sr_transposed_reader *r) {
    free(r->numbers);
    *r = (sr_transposed_reader){0};
}
