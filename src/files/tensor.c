/* tensor.c: number types, sizes and conversions of named arrays. */
#include "files/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [SR_DTYPE_F32] = {"F32", 4},   [SR_DTYPE_F64] = {"F64", 8}, [SR_DTYPE_F16] = {"F16", 2},
    [SR_DTYPE_BF16] = {"BF16", 2}, [SR_DTYPE_I64] = {"I64", 8}, [SR_DTYPE_I32] = {"I32", 4},
    [SR_DTYPE_I16] = {"I16", 2},   [SR_DTYPE_I8] = {"I8", 1},   [SR_DTYPE_U8] = {"U8", 1},
    [SR_DTYPE_BOOL] = {"BOOL", 1},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, BLOCK = 512 };

const char *sr_dtype_name(sr_dtype dtype) {
    return dtypes[dtype].name;
}

size_t sr_dtype_bytes(sr_dtype dtype) {
    return dtypes[dtype].bytes;
}

bool sr_dtype_find(sr_dtype *dtype, const char *name) {
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (sr_dtype)i;
            return true;
        }
    return false;
}

bool sr_tensor_measure(sr_tensor *tensor) {
    size_t count = 1;
    bool empty = false;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return false;
        empty |= tensor->shape[i] == 0;
        if (!empty && __builtin_mul_overflow(count, (size_t)tensor->shape[i], &count))
            return false;
    }
    tensor->count = empty ? 0 : count;
    return !__builtin_mul_overflow(tensor->count, sr_dtype_bytes(tensor->dtype), &tensor->bytes);
}

bool sr_tensor_has_shape(const sr_tensor *tensor, int rank, const int64_t *shape) {
    if (tensor->rank != rank)
        return false;
    for (int i = 0; i < rank; i++)
        if (tensor->shape[i] != shape[i])
            return false;
    return true;
}

void sr_shape_print(char text[SR_SHAPE_BYTES], int rank, const int64_t *shape) {
    size_t length = (size_t)snprintf(text, SR_SHAPE_BYTES, "(");
    for (int i = 0; i < rank; i++)
        length += (size_t)snprintf(text + length, SR_SHAPE_BYTES - length, "%s%lld", i ? ", " : "",
                                   (long long)shape[i]);
    snprintf(text + length, SR_SHAPE_BYTES - length, ")");
}

/* ---- conversions: memcpy because the data of a file may be unaligned */

static double from_f16(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023;
    double size;
    if (exponent == 0)
        size = fraction * 0x1p-24;
    else if (exponent < 31)
        size = ldexp(fraction + 1024, exponent - 25);
    else
        size = fraction == 0 ? (double)INFINITY : (double)NAN;
    return bits >> 15 ? -size : size;
}

static double from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

#define CONVERT(type, expression)                  \
    for (size_t i = 0; i < count; i++) {           \
        type x;                                    \
        memcpy(&x, from + i * sizeof x, sizeof x); \
        out[i] = (expression);                     \
    }                                              \
    break

static void convert(double *out, sr_dtype dtype, const uint8_t *from, size_t count) {
    switch (dtype) {
    case SR_DTYPE_F32:
        CONVERT(float, (double)x);
    case SR_DTYPE_F64:
        CONVERT(double, x);
    case SR_DTYPE_F16:
        CONVERT(uint16_t, from_f16(x));
    case SR_DTYPE_BF16:
        CONVERT(uint16_t, from_bf16(x));
    case SR_DTYPE_I64:
        CONVERT(int64_t, (double)x);
    case SR_DTYPE_I32:
        CONVERT(int32_t, x);
    case SR_DTYPE_I16:
        CONVERT(int16_t, x);
    case SR_DTYPE_I8:
        CONVERT(int8_t, x);
    case SR_DTYPE_U8:
        CONVERT(uint8_t, x);
    case SR_DTYPE_BOOL:
        CONVERT(uint8_t, x != 0);
    }
}

void sr_tensor_to_double(double *out, const sr_tensor *tensor) {
    convert(out, tensor->dtype, tensor->data, tensor->count);
}

void sr_tensor_to_float(float *out, const sr_tensor *tensor) {
    if (tensor->dtype == SR_DTYPE_F32 && tensor->count > 0) {
        memcpy(out, tensor->data, tensor->bytes);
        return;
    }
    double block[BLOCK];
    for (size_t start = 0; start < tensor->count; start += BLOCK) {
        size_t count = tensor->count - start < BLOCK ? tensor->count - start : BLOCK;
        const uint8_t *from = (const uint8_t *)tensor->data + start * sr_dtype_bytes(tensor->dtype);
        convert(block, tensor->dtype, from, count);
        for (size_t i = 0; i < count; i++)
            out[start + i] = (float)block[i];
    }
}
