/* tensors.c: the tensors of a gated short convolution. */
#include "model/conv/conv.h"

#include <math.h>
#include <stdio.h>

bool sr_layer_is_conv(const srnn_attention *attention) {
    return attention->wiring.layer == SRNN_LAYER_CONV;
}

int64_t sr_conv_state_numbers(const srnn_attention *attention, int C) {
    return (int64_t)(attention->wiring.short_conv - 1) * C;
}

static srnn_status add(sr_tensor_table *table, const char *prefix, const char *name, int slot,
                       sr_tensor_spec spec) {
    const int length = snprintf(spec.name, sizeof spec.name, "%s%s", prefix, name);
    spec.slot = slot;
    return length < (int)sizeof spec.name
               ? sr_tensor_table_add(table, &spec)
               : SR_FAIL(SRNN_ERR_ARGUMENT, "%s%s: name too long", prefix, name);
}

static sr_tensor_spec matrix(int64_t C) {
    return (sr_tensor_spec){.rank = 2, .shape = {C, C}, .initialiser = SR_INIT_NORMAL};
}

static sr_tensor_spec zeros(int64_t C) {
    return (sr_tensor_spec){.rank = 1, .shape = {C}, .initialiser = SR_INIT_CONSTANT};
}

/* In the order of their columns, see conv.c. */
srnn_status sr_conv_tensors(sr_tensor_table *table, const char *prefix,
                            const srnn_attention *attention, const sr_layer_dims *dims) {
    static const char *const weights[] = {"b_proj.weight", "x_proj.weight", "c_proj.weight"};
    static const char *const biases[] = {"b_proj.bias", "x_proj.bias", "c_proj.bias"};
    const int64_t C = dims->C;
    const int taps = attention->wiring.short_conv;
    const sr_tensor_spec conv = {.rank = 3,
                                 .shape = {C, 1, taps},
                                 .initialiser = SR_INIT_UNIFORM,
                                 .size = 1.0 / sqrt((double)taps)};
    for (int i = 0; i < 3; i++)
        SR_TRY(add(table, prefix, weights[i], SR_LAYER_PROJECTIONS + 2 * i, matrix(C)));
    for (int i = 0; dims->qkv_bias && i < 3; i++)
        SR_TRY(add(table, prefix, biases[i], SR_LAYER_PROJECTIONS + 2 * i + 1, zeros(C)));
    SR_TRY(add(table, prefix, "conv1d.weight", SR_LAYER_CONVS, conv));
    if (dims->qkv_bias)
        SR_TRY(add(table, prefix, "conv1d.bias", SR_LAYER_CONVS + 1, zeros(C)));
    SR_TRY(add(table, prefix, "out_proj.weight", SR_LAYER_OUTPUT, matrix(C)));
    return dims->o_bias ? add(table, prefix, "out_proj.bias", SR_LAYER_OUTPUT + 1, zeros(C))
                        : SRNN_OK;
}
