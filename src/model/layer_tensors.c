/* layer_tensors.c: the tensors that an attention layer learns, derived from its descriptor. */
#include "model/layer_tensors.h"

#include <math.h>
#include <stdio.h>

typedef struct builder {
    sr_tensor_table *table;
    const char *prefix;
    srnn_status status;
} builder;

static void append(builder *b, sr_layer_slot slot, const char *name, sr_tensor_spec spec) {
    if (b->status != SRNN_OK)
        return;
    const int length = snprintf(spec.name, sizeof spec.name, "%s%s", b->prefix, name);
    spec.slot = (int)slot;
    b->status = length < (int)sizeof spec.name
                    ? sr_tensor_table_add(b->table, &spec)
                    : SR_FAIL(SRNN_ERR_ARGUMENT, "%s%s: name too long", b->prefix, name);
}

static sr_tensor_spec matrix(int64_t rows, int64_t columns, sr_initialiser how, double size) {
    return (sr_tensor_spec){.rank = 2, .shape = {rows, columns}, .initialiser = how, .size = size};
}

static sr_tensor_spec vector(int64_t length, sr_initialiser how, double size) {
    return (sr_tensor_spec){.rank = 1, .shape = {length}, .initialiser = how, .size = size};
}

/* A projection of the model's width, as Hugging Face starts it. */
static void projection(builder *b, sr_layer_slot weight, const char *name, int64_t out, int64_t in,
                       bool bias) {
    char text[SR_SPEC_NAME];
    snprintf(text, sizeof text, "%s.weight", name);
    append(b, weight, text, matrix(out, in, SR_INIT_NORMAL, 0));
    snprintf(text, sizeof text, "%s.bias", name);
    if (bias)
        append(b, weight + 1, text, vector(out, SR_INIT_CONSTANT, 0));
}

/* A gate, as torch.nn.Linear starts it. */
static void gate(builder *b, sr_layer_slot weight, const char *name, int64_t out, int64_t in) {
    char text[SR_SPEC_NAME];
    const double bound = 1.0 / sqrt((double)in);
    snprintf(text, sizeof text, "%s.weight", name);
    append(b, weight, text, matrix(out, in, SR_INIT_UNIFORM, bound));
    snprintf(text, sizeof text, "%s.bias", name);
    append(b, weight + 1, text, vector(out, SR_INIT_UNIFORM, bound));
}

static void inputs(builder *b, const srnn_attention *a, const sr_layer_dims *d) {
    const int64_t queries = (int64_t)d->H * d->D, keys = (int64_t)d->Hkv * d->D;
    if (a->short_conv == 0) {
        projection(b, SR_LAYER_Q_WEIGHT, "q_proj", queries, d->C, d->qkv_bias);
        projection(b, SR_LAYER_K_WEIGHT, "k_proj", keys, d->C, d->qkv_bias);
        projection(b, SR_LAYER_V_WEIGHT, "v_proj", keys, d->C, d->qkv_bias);
        return;
    }
    const int64_t channels = queries + 2 * keys;
    const double bound = 1.0 / sqrt((double)a->short_conv);
    projection(b, SR_LAYER_QKV_WEIGHT, "qkv_proj", channels, d->C, d->qkv_bias);
    append(b, SR_LAYER_CONV_WEIGHT, "conv1d.weight",
           (sr_tensor_spec){.rank = 3,
                            .shape = {channels, 1, a->short_conv},
                            .initialiser = SR_INIT_UNIFORM,
                            .size = bound});
    if (d->qkv_bias)
        append(b, SR_LAYER_CONV_BIAS, "conv1d.bias", vector(channels, SR_INIT_UNIFORM, bound));
}

/* What is learned for one operand. */
static void operand(builder *b, sr_operand which, const srnn_attention *a, const sr_layer_dims *d) {
    const sr_operand_row *row = sr_operand_at(which);
    const sr_layer_slot slot = sr_layer_operand_slot(which);
    const int64_t heads = sr_layer_extent(row->heads, a, d),
                  width = sr_layer_extent(row->width, a, d);
    switch (row->origin) {
    case SR_ORIGIN_INPUTS:
        break;
    case SR_ORIGIN_PROJECTION:
        gate(b, slot, row->file, heads * width, d->C);
        break;
    case SR_ORIGIN_LEARNED:
        append(b, slot, row->file,
               row->file_rank == 1
                   ? vector(heads * width, SR_INIT_CONSTANT, row->initial)
                   : (sr_tensor_spec){.rank = 4, .shape = {1, width, 1, 1}, .size = row->initial});
        break;
    }
}

int64_t sr_layer_extent(sr_extent extent, const srnn_attention *a, const sr_layer_dims *d) {
    return sr_extent_in(
        extent, &(srnn_problem){.attention = *a, .H = d->H, .Hkv = d->Hkv, .D = d->D, .Dv = d->D});
}

srnn_status sr_layer_tensors(sr_tensor_table *table, const char *prefix,
                             const srnn_attention *attention, const sr_layer_dims *dims) {
    const srnn_attention *a = attention;
    const sr_layer_dims *d = dims;
    builder b = {.table = table, .prefix = prefix};
    inputs(&b, a, d);
    projection(&b, SR_LAYER_O_WEIGHT, "o_proj", d->C, (int64_t)d->H * d->D, d->o_bias);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (sr_operand_used((sr_operand)which, a))
            operand(&b, (sr_operand)which, a, d);
    return b.status;
}
