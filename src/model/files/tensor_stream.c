/* tensor_stream.c: numbers between backend memory and files, a block at a time. */
#include "model/files/tensor_stream.h"

#include "base/bf16.h"

#include <string.h>

enum { BLOCK = 4096 };

/* Rounds to nearest, ties to even; NaN stays one: half of the spacing of its numbers decides. */
static uint16_t to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below 2^-14 the numbers are multiples of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &size, sizeof magnitude);
        const float shifted = magnitude * 16777216.0f + 8388608.0f; /* rounds to a whole number */
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits & 0x7fffu));
    }
    return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

static srnn_status narrow_out(sr_backend *backend, uint16_t *to, const float *from, size_t count,
                              sr_dtype dtype) {
    float block[BLOCK];
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t here = count - done < BLOCK ? count - done : BLOCK;
        SR_TRY(sr_device_copy_out(backend->device, block, from + done, here * sizeof *block));
        for (size_t i = 0; i < here; i++)
            to[done + i] = dtype == SR_DTYPE_BF16 ? sr_bf16_of(block[i]) : to_f16(block[i]);
    }
    return SRNN_OK;
}

srnn_status sr_stream_out(void *context, void *to, const sr_tensor *tensor, size_t first,
                          size_t count) {
    sr_backend *backend = context;
    const float *from = (const float *)tensor->data + first;
    return tensor->dtype == SR_DTYPE_F32
               ? sr_device_copy_out(backend->device, to, from, count * sizeof *from)
               : narrow_out(backend, to, from, count, tensor->dtype);
}

srnn_status sr_stream_round(void *to, const sr_tensor *tensor, size_t count) {
    const float *from = tensor->data;
    uint16_t *narrow = to;
    if (tensor->dtype == SR_DTYPE_F32)
        memcpy(to, from, count * sizeof *from);
    for (size_t i = 0; tensor->dtype != SR_DTYPE_F32 && i < count; i++)
        narrow[i] = tensor->dtype == SR_DTYPE_BF16 ? sr_bf16_of(from[i]) : to_f16(from[i]);
    return SRNN_OK;
}

srnn_status sr_stream_floats(sr_backend *backend, sr_matrix to, const float *numbers) {
    uint16_t narrow[BLOCK];
    srnn_device *device = backend->device;
    if (to.dtype == SRNN_F32)
        return sr_device_copy_in(device, to.data, numbers, (size_t)to.columns * sizeof *numbers);
    for (int64_t done = 0; done < to.columns; done += BLOCK) {
        const int64_t left = to.columns - done, here = left < BLOCK ? left : BLOCK;
        for (int64_t i = 0; i < here; i++)
            narrow[i] = sr_bf16_of(numbers[done + i]);
        SR_TRY(sr_device_copy_in(device, sr_number_at(to.data, done, to.dtype), narrow,
                                 (size_t)here * sizeof *narrow));
    }
    return SRNN_OK;
}

/* Numbers that stay as they are in the file are copied at once. */
srnn_status sr_stream_in(sr_backend *backend, sr_matrix to, const sr_tensor *tensor, size_t first) {
    float block[BLOCK];
    const size_t bytes = sr_dtype_bytes(tensor->dtype), count = (size_t)to.columns;
    const char *from = (const char *)tensor->data + first * bytes;
    const sr_dtype same = to.dtype == SRNN_F32 ? SR_DTYPE_F32 : SR_DTYPE_BF16;
    if (tensor->dtype == same)
        return sr_device_copy_in(backend->device, to.data, from, count * bytes);
    for (size_t done = 0; done < count; done += BLOCK) {
        sr_tensor part = *tensor;
        part.data = from + done * bytes;
        part.count = count - done < BLOCK ? count - done : BLOCK;
        part.bytes = part.count * bytes;
        sr_tensor_to_float(block, &part);
        SR_TRY(sr_stream_floats(backend, sr_matrix_columns(to, (int64_t)done, (int64_t)part.count),
                                block));
    }
    return SRNN_OK;
}

srnn_status sr_stream_compare(sr_backend *backend, const float *numbers, size_t count,
                              const sr_tensor *tensor, const char *path) {
    char block[BLOCK * sizeof(float)];
    sr_tensor written = *tensor;
    if (tensor->count != count || tensor->dtype != SR_DTYPE_F32)
        return SR_FAIL(SRNN_ERR_IO, "%s: %s reads back with another size than was written", path,
                       tensor->name);
    written.data = numbers;
    for (size_t first = 0; first < count; first += BLOCK) {
        const size_t here = count - first < BLOCK ? count - first : BLOCK;
        SR_TRY(sr_stream_out(backend, block, &written, first, here));
        if (memcmp(block, (const float *)tensor->data + first, here * sizeof(float)) != 0)
            return SR_FAIL(SRNN_ERR_IO, "%s: %s reads back as something else than was written",
                           path, tensor->name);
    }
    return SRNN_OK;
}
