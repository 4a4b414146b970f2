/* tensor.h: a named array as stored in files. */
#ifndef SR_FILES_TENSOR_H
#define SR_FILES_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sr_dtype {
    SR_DTYPE_F32 = 0,
    SR_DTYPE_F64,
    SR_DTYPE_F16,
    SR_DTYPE_BF16,
    SR_DTYPE_I64,
    SR_DTYPE_I32,
    SR_DTYPE_I16,
    SR_DTYPE_I8,
    SR_DTYPE_U8,
    SR_DTYPE_BOOL,
} sr_dtype;

enum { SR_TENSOR_MAX_RANK = 8 };

/* An array of numbers, row-major, little-endian. Owns nothing. */
typedef struct sr_tensor {
    const char *name;
    sr_dtype dtype;
    int rank; /* 0 .. SR_TENSOR_MAX_RANK; a scalar has 0 */
    int64_t shape[SR_TENSOR_MAX_RANK];
    const void *data; /* (shape); not necessarily aligned for its type */
    size_t count;     /* elements: the product of the shape */
    size_t bytes;
} sr_tensor;

/* The name in files ("BF16"), and bytes per element. */
const char *sr_dtype_name(sr_dtype dtype);
size_t sr_dtype_bytes(sr_dtype dtype);

/* False if no type has this name. */
bool sr_dtype_find(sr_dtype *dtype, const char *name);

/* Fills count and bytes from dtype, rank and shape; false if a size is negative or the product
 * overflows size_t. */
bool sr_tensor_measure(sr_tensor *tensor);

/* True if the tensor has exactly these sizes: sr_tensor_has_shape(t, 2, (const int64_t[]){H, D}) */
bool sr_tensor_has_shape(const sr_tensor *tensor, int rank, const int64_t *shape);

/* "(2, 3)", of up to SR_TENSOR_MAX_RANK sizes. */
enum { SR_SHAPE_BYTES = 22 * SR_TENSOR_MAX_RANK + 3 };
void sr_shape_print(char text[SR_SHAPE_BYTES], int rank, const int64_t *shape);

/* out (count) = the numbers, rounded to nearest if float is narrower; bool gives 0 and 1. */
void sr_tensor_to_float(float *out, const sr_tensor *tensor);
void sr_tensor_to_double(double *out, const sr_tensor *tensor);

#endif
