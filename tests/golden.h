/* golden.h: reference numbers of the paper's own code for 17 variants and of related systems in
 * double, and comparisons with them. */
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

/* Systems other than the paper's, in another file of the same kind, with 4 heads of 4. */
enum { GOLDEN_SYSTEM_H = 4 };

typedef struct golden_case {
    const char *name, *attention; /* in the file; as a text form */
    int H;                        /* of the configuration */
} golden_case;

static const golden_case golden_systems[] = {
    {"power", "power", GOLDEN_SYSTEM_H},
    {"mamba2", "mamba2", GOLDEN_SYSTEM_H},
    {"log_linear_mamba2", "log_linear_mamba2", GOLDEN_SYSTEM_H},
    {"gated_softmax_plusplus_mamba", "gated_softmax_plusplus_mamba", GOLDEN_SYSTEM_H},
    {"gla", "gla", GOLDEN_SYSTEM_H},
    {"gated_delta_net", "gated_delta_net", GOLDEN_SYSTEM_H},
    {"rat", "rat,pool=4", GOLDEN_SYSTEM_H},
    {"nala", "nala", GOLDEN_SYSTEM_H},
    {"avey_causal", "avey_causal,chunk=4,chunks=3",
     GOLDEN_SYSTEM_H}, /* has no layer of attention */
};
enum { GOLDEN_SYSTEMS = sizeof golden_systems / sizeof *golden_systems };

/* Layers with other state updates, and of published models, in a third file. There q_proj and the
 * output gate are two tensors, and norms multiply by their weights. */
static const golden_case golden_writes[] = {
    {"gated_delta_net_neg", "gated_delta_net,write_range=2", GOLDEN_SYSTEM_H},
    {"kda", "kda", GOLDEN_SYSTEM_H},
    {"kda_bounded", "kda,layer=kda_fla,decay=bounded,decay_bound=5,write_range=2", GOLDEN_SYSTEM_H},
    {"gdn2", "gdn2", GOLDEN_SYSTEM_H},
    {"rwkv7", "rwkv7", GOLDEN_SYSTEM_H},
    {"rwkv7_residual", "rwkv7", GOLDEN_SYSTEM_H}, /* a later layer, with the first one's values */
    {"2mamba", "2mamba", GOLDEN_SYSTEM_H},
    {"2mamba_e", "2mamba_e", GOLDEN_SYSTEM_H},
    {"gated_attention",
     "softmax,layer=nala,output_gate=sigmoid,gate_width=channel,qk_norm=head,rope_part=0.5",
     GOLDEN_SYSTEM_H},
    {"row_norm_attention", "softmax,qk_norm=row", GOLDEN_SYSTEM_H},
};
enum { GOLDEN_WRITES = sizeof golden_writes / sizeof *golden_writes };

/* The variants and then the systems, and which file each is in. After the last but one, which has
 * no attention layer, follow the layers of the third file. */
enum { GOLDEN_CASES = GOLDEN_VARIANTS + GOLDEN_SYSTEMS };
enum { GOLDEN_BOTH = GOLDEN_CASES - 1, GOLDEN_LAYERS = GOLDEN_BOTH + GOLDEN_WRITES };

static inline golden_case golden_case_at(size_t n) {
    if (n < GOLDEN_VARIANTS)
        return (golden_case){golden_variants[n], golden_variants[n], GOLDEN_H};
    return golden_systems[n - GOLDEN_VARIANTS];
}

static inline golden_case golden_layer_at(size_t n) {
    return n < GOLDEN_BOTH ? golden_case_at(n) : golden_writes[n - GOLDEN_BOTH];
}

typedef struct golden_files {
    sr_safetensors *variants, *systems, *writes;
} golden_files;

static inline int golden_open(golden_files *files) {
    return sr_safetensors_open(&files->variants, SOFTRNN_TEST_INPUTS "/golden.safetensors") ||
           sr_safetensors_open(&files->systems, SOFTRNN_TEST_INPUTS "/systems.safetensors") ||
           sr_safetensors_open(&files->writes, SOFTRNN_TEST_INPUTS "/writes.safetensors");
}

static inline void golden_close(golden_files *files) {
    sr_safetensors_free(files->variants);
    sr_safetensors_free(files->systems);
    sr_safetensors_free(files->writes);
}

static inline const sr_safetensors *golden_file_of(const golden_files *files, size_t n) {
    return n < GOLDEN_VARIANTS ? files->variants : files->systems;
}

static inline const sr_safetensors *golden_layer_file(const golden_files *files, size_t n) {
    return n < GOLDEN_BOTH ? golden_file_of(files, n) : files->writes;
}

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

/* Norm of the difference divided by the norm of the reference. */
static inline double golden_error(const float *got, const float *want, size_t count) {
    const double size = golden_norm(want, NULL, count);
    return golden_norm(got, want, count) / (size > 0 ? size : 1);
}

#endif
