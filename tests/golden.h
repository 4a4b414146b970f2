/* golden.h: numbers of the paper's own code for 17 variants, and how near we are to them. */
#ifndef SR_TESTS_GOLDEN_H
#define SR_TESTS_GOLDEN_H

#include "files/safetensors.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of every golden model, from the file's metadata. */
enum { GOLDEN_B = 2, GOLDEN_T = 11, GOLDEN_C = 16, GOLDEN_H = 2, GOLDEN_D = 8 };
enum { GOLDEN_F = 24, GOLDEN_V = 32, GOLDEN_STEPS = 3 };

static const char *const golden_variants[] = {
    "softmax",
    "softmax_detach_denom",
    "softmax_detach_denom_gate",
    "softmax_divs",
    "softmax_divS_gate",
    "softmax_divS_norm",
    "softmax_taylor_80terms",
    "gated_softmax",
    "gated_softmax_no_in_gate",
    "gated_relu_no_in_gate_no_norm",
    "gated_softmax_no_gate_L2norm_nodivS_noclamp",
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
    "gated_softmax_cumgate",
    "gated_softmax_decay",
    "linear_elu",
    "linear_cosine",
    "gated_softmax_plusplus",
};
enum { GOLDEN_VARIANTS = sizeof golden_variants / sizeof *golden_variants };

/* The numbers of tensor <variant>/<prefix><name>; free() them. */
static inline float *golden_numbers(const sr_safetensors *file, const char *variant,
                                    const char *prefix, const char *name, size_t count) {
    char key[256];
    snprintf(key, sizeof key, "%s/%s%s", variant, prefix, name);
    const sr_tensor *tensor = sr_safetensors_find(file, key);
    if (!tensor)
        fail_msg("no %s", key);
    assert_int_equal(tensor->count, count);
    float *numbers = malloc((count + 1) * sizeof *numbers);
    assert_non_null(numbers);
    sr_tensor_to_float(numbers, tensor);
    return numbers;
}

static inline double golden_norm(const float *x, const float *y, size_t count) {
    double squares = 0;
    for (size_t i = 0; i < count; i++)
        squares += pow((double)x[i] - (y ? (double)y[i] : 0.0), 2);
    return sqrt(squares);
}

/* Norm of the difference over norm of the wanted. */
static inline double golden_error(const float *got, const float *want, size_t count) {
    const double size = golden_norm(want, NULL, count);
    return golden_norm(got, want, count) / (size > 0 ? size : 1);
}

#endif
