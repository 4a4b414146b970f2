/* fake_cublaslt.c: a library with cuBLASLt's names that multiplies in host memory, for
 * test_cublaslt.c.
 *
 * It implements only what the real one documents: matrices by columns, op(A) (m, k), op(B) (k, n),
 * D = A B + beta C. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct description {
    int compute, scale;
    int32_t transpose[2];
    const float *factor[2]; /* of the operands of 8 bits */
    int8_t fast;
} description;

typedef struct layout {
    int type; /* 0: float, 14: bf16, 28: E4M3, 29: E5M2 */
    uint64_t rows, columns;
    int64_t stride;
    int32_t batch;  /* matrices */
    int64_t offset; /* stride in elements */
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t alignment[4];
} preference;

typedef struct result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} result;

/* The number of heuristic queries, and the proposal used last; read by the test. */
EXPORT int fake_questions;
EXPORT int fake_taken;
int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
const char *cublasLtGetStatusString(int status);
int cublasLtMatmulDescCreate(void **out, int compute, int scale);
int cublasLtMatmulDescDestroy(void *memory);
int cublasLtMatmulDescSetAttribute(void *out, int attribute, const void *value, size_t bytes);
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns,
                               int64_t stride);
int cublasLtMatrixLayoutDestroy(void *memory);
int cublasLtMatrixLayoutSetAttribute(void *out, int attribute, const void *value, size_t bytes);
int cublasLtMatmulPreferenceCreate(void **out);
int cublasLtMatmulPreferenceDestroy(void *memory);
int cublasLtMatmulPreferenceSetAttribute(void *out, int attribute, const void *value, size_t bytes);
/* cuBLASLt's own parameters. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                   void *preferred, int wanted, void *results, int *found);
int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *value,
                                         size_t bytes, size_t *written);
/* cuBLASLt's own parameters. */
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const void *algorithm, void *workspace, size_t bytes,
                   void *stream);

static int make(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    return *out ? 0 : 3;
}

EXPORT int cublasLtCreate(void **handle) {
    fake_questions = 0;
    return make(handle, 1);
}

EXPORT int cublasLtDestroy(void *handle) {
    free(handle);
    return 0;
}

EXPORT const char *cublasLtGetStatusString(int status) {
    return status == 7 ? "an invalid value" : "something else";
}

EXPORT int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    const int status = make(out, sizeof(description));
    if (status == 0)
        *(description *)*out = (description){.compute = compute, .scale = scale};
    return status;
}

EXPORT int cublasLtMatmulDescDestroy(void *memory) {
    free(memory);
    return 0;
}

EXPORT int cublasLtMatmulDescSetAttribute(void *out, int attribute, const void *value,
                                          size_t bytes) {
    description *desc = out;
    if ((attribute == 3 || attribute == 4) && bytes == sizeof(int32_t))
        memcpy(&desc->transpose[attribute - 3], value, bytes);
    else if ((attribute == 17 || attribute == 18) && bytes == sizeof(float *))
        memcpy(&desc->factor[attribute - 17], value, bytes);
    else if (attribute == 25 && bytes == sizeof desc->fast)
        memcpy(&desc->fast, value, bytes);
    else
        return 7;
    return 0;
}

EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns,
                                      int64_t stride) {
    const int status = make(out, sizeof(layout));
    if (status == 0)
        *(layout *)*out = (layout){type, rows, columns, stride, 1, 0};
    return status;
}

EXPORT int cublasLtMatrixLayoutDestroy(void *memory) {
    free(memory);
    return 0;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(void *out, int attribute, const void *value,
                                            size_t bytes) {
    layout *m = out;
    if (attribute == 5 && bytes == sizeof m->batch)
        memcpy(&m->batch, value, bytes);
    else if (attribute == 6 && bytes == sizeof m->offset)
        memcpy(&m->offset, value, bytes);
    else
        return 7;
    return 0;
}

EXPORT int cublasLtMatmulPreferenceCreate(void **out) {
    return make(out, sizeof(preference));
}

EXPORT int cublasLtMatmulPreferenceDestroy(void *memory) {
    free(memory);
    return 0;
}

EXPORT int cublasLtMatmulPreferenceSetAttribute(void *out, int attribute, const void *value,
                                                size_t bytes) {
    preference *preferred = out;
    if (attribute == 1 && bytes == sizeof preferred->workspace)
        memcpy(&preferred->workspace, value, bytes);
    else if (attribute >= 5 && attribute <= 8 && bytes == sizeof *preferred->alignment)
        memcpy(&preferred->alignment[attribute - 5], value, bytes);
    else
        return 7;
    return 0;
}

static uint64_t op_rows(const layout *m, int32_t transpose) {
    return transpose ? m->columns : m->rows;
}

static uint64_t op_columns(const layout *m, int32_t transpose) {
    return transpose ? m->rows : m->columns;
}

/* Operands of 8 bits on Hopper: the first transposed and the second not, one of them E4M3, each
 * with a scale; rows of 16 bytes and more; results of 16 bits or float. */
static int small_fit(const description *desc, const layout *a, const layout *b, const layout *d) {
    const int64_t step = d->type == 0 ? 4 : 8; /* numbers of 16 bytes */
    return a->type >= 28 && b->type >= 28 && a->type + b->type < 58 && desc->transpose[0] == 1 &&
           desc->transpose[1] == 0 && desc->factor[0] && desc->factor[1] && a->rows % 16 == 0 &&
           a->columns % 16 == 0 && a->stride % 16 == 0 && b->stride % 16 == 0 &&
           d->stride % step == 0 && (d->type == 0 || d->type == 14);
}

static int types_fit(const description *desc, const layout *a, const layout *b, const layout *d) {
    if (a->type < 28 && b->type < 28)
        return a->type == b->type && !desc->fast;
    return small_fit(desc, a, b, d);
}

static int fits(const description *desc, const layout *a, const layout *b, const layout *c,
                const layout *d) {
    return desc->compute == 68 && desc->scale == 0 && types_fit(desc, a, b, d) &&
           c->type == d->type &&
           op_columns(a, desc->transpose[0]) == op_rows(b, desc->transpose[1]) &&
           op_rows(a, desc->transpose[0]) == d->rows &&
           op_columns(b, desc->transpose[1]) == d->columns && c->rows == d->rows &&
           c->columns == d->columns && a->stride >= (int64_t)a->rows &&
           b->stride >= (int64_t)b->rows && c->stride >= (int64_t)c->rows &&
           d->stride >= (int64_t)d->rows && a->batch == d->batch && b->batch == d->batch &&
           c->batch == d->batch;
}

/* The proposals with their properties: family, tile, split-K. */
static const struct {
    int32_t config[3];
    float waves;
} proposals[] = {
    {{66, 20, 4}, 8.0f}, {{66, 28, 1}, 8.0f},  {{66, 29, 1}, 2.2f}, {{13, 29, 1}, 9.9f},
    {{66, 20, 1}, 7.9f}, {{66, 29, 1}, 14.0f}, {{66, 20, 1}, 8.0f}, {{66, 29, 1}, 14.0f},
};
enum { PROPOSALS = sizeof proposals / sizeof *proposals, FIRST_NAME = 42 };

/* It has no proposal for matrices of 13 columns, to test a refusal; for 12, only the first three.
 * cuBLASLt's own parameters. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c,
                                          void *d, void *preferred, int wanted, void *results,
                                          int *found) {
    const preference *wishes = preferred;
    fake_questions++;
    *found = 0;
    if (!handle || wanted < 1 || wanted > PROPOSALS || !fits(desc, a, b, c, d) ||
        wishes->workspace == 0)
        return 7;
    const uint32_t least = ((const layout *)a)->type >= 28 ? 16 : 1;
    for (int i = 0; i < 4; i++)
        if (wishes->alignment[i] == 0 || (wishes->alignment[i] & (wishes->alignment[i] - 1)))
            return 7;
    for (int i = 0; i < 4; i++)
        if (wishes->alignment[i] < least)
            return 15;
    if (((const layout *)d)->columns == 13)
        return 15;
    *found = ((const layout *)d)->columns == 12 && wanted > 3 ? 3 : wanted;
    for (int i = 0; i < *found; i++)
        ((result *)results)[i] =
            (result){.algorithm = {(uint64_t)(FIRST_NAME + i)}, .waves = proposals[i].waves};
    return 0;
}

EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *value,
                                                size_t bytes, size_t *written) {
    uint64_t name;
    memcpy(&name, algorithm, sizeof name);
    if (attribute < 0 || attribute > 2 || bytes != sizeof(int32_t) || name < FIRST_NAME ||
        name >= FIRST_NAME + PROPOSALS)
        return 7;
    memcpy(value, &proposals[name - FIRST_NAME].config[attribute], bytes);
    *written = bytes;
    return 0;
}

static int batch_place; /* index in the batch being multiplied */

static size_t place_of(const layout *m, uint64_t row, uint64_t column) {
    return (size_t)row + (size_t)column * (size_t)m->stride +
           (size_t)batch_place * (size_t)m->offset;
}

/* A number of 8 bits by its definition; NaN where all bits of E4M3 are ones. */
static float small_number(uint8_t code, int mantissa, int bias) {
    const int exponent = (code & 127) >> mantissa, rest = code & ((1 << mantissa) - 1);
    const int least = exponent > 0 ? exponent : 1, one = exponent > 0 ? 1 << mantissa : 0;
    const float size = ldexpf((float)(one + rest), least - bias - mantissa);
    if (mantissa == 3 && (code & 127) == 127)
        return NAN;
    return code & 128 ? -size : size;
}

static float number_at(const void *data, const layout *m, uint64_t row, uint64_t column) {
    const size_t at = place_of(m, row, column);
    float x;
    if (m->type == 0) {
        memcpy(&x, (const char *)data + at * sizeof x, sizeof x);
    } else if (m->type >= 28) {
        x = small_number(((const uint8_t *)data)[at], m->type == 28 ? 3 : 2,
                         m->type == 28 ? 7 : 15);
    } else {
        uint16_t narrow;
        memcpy(&narrow, (const char *)data + at * sizeof narrow, sizeof narrow);
        const uint32_t bits = (uint32_t)narrow << 16;
        memcpy(&x, &bits, sizeof x);
    }
    return x;
}

typedef struct operand {
    const void *data;
    const layout *layout;
    int32_t transpose;
} operand;

static float op_at(const operand *x, uint64_t row, uint64_t column) {
    return x->transpose ? number_at(x->data, x->layout, column, row)
                        : number_at(x->data, x->layout, row, column);
}

static float product_at(const operand *a, const operand *b, uint64_t row, uint64_t column) {
    const uint64_t K = op_columns(a->layout, a->transpose);
    float sum = 0;
    for (uint64_t k = 0; k < K; k++)
        sum += op_at(a, row, k) * op_at(b, k, column);
    return sum;
}

/* cuBLASLt's own parameters. */
EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a,
                          void *a_layout, const void *b, void *b_layout, const void *beta,
                          const void *c, void *c_layout, void *d, void *d_layout,
                          const void *algorithm, void *workspace, size_t bytes, void *stream) {
    const description *how = desc;
    const layout *to = d_layout;
    float factor, more;
    uint64_t chosen;
    memcpy(&factor, alpha, sizeof factor);
    memcpy(&more, beta, sizeof more);
    memcpy(&chosen, algorithm, sizeof chosen);
    if (!handle || chosen < FIRST_NAME || (uintptr_t)workspace % 256 != 0 || bytes == 0 ||
        !stream || !fits(how, a_layout, b_layout, c_layout, d_layout))
        return 7;
    if (((const layout *)a_layout)->type >= 28) {
        if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 != 0)
            return 7;
        if (((uintptr_t)how->factor[0] | (uintptr_t)how->factor[1]) % 16 != 0)
            return 15; /* only here, as 13.1 does: the heuristic accepts such scales */
        factor *= *how->factor[0] * *how->factor[1];
    }
    fake_taken = (int)(chosen - FIRST_NAME);
    if (to->type != 0) /* it stores floats only */
        return 0;
    const operand first = {a, a_layout, how->transpose[0]};
    const operand second = {b, b_layout, how->transpose[1]};
    for (batch_place = 0; batch_place < to->batch; batch_place++)
        for (uint64_t n = 0; n < to->rows * to->columns; n++) {
            const uint64_t row = n % to->rows, column = n / to->rows;
            const float addend = more != 0 ? more * number_at(c, c_layout, row, column) : 0;
            const float sum = addend + factor * product_at(&first, &second, row, column);
            memcpy((char *)d + place_of(to, row, column) * sizeof sum, &sum, sizeof sum);
        }
    return 0;
}
