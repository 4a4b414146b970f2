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

/* A linear layer of the model's width. */
typedef struct linear {
    sr_layer_slot weight; /* its bias has the next one */
    const char *name;
    int64_t out, in;
    bool bias;
    bool gate; /* begins as torch.nn.Linear does; else as Hugging Face's models do */
} linear;

static double gate_bound(const linear *l) {
    return 1.0 / sqrt((double)l->in);
}

static void append_weight(builder *b, const linear *l) {
    char name[SR_SPEC_NAME];
    snprintf(name, sizeof name, "%s.weight", l->name);
    append(b, l->weight, name,
           l->gate ? matrix(l->out, l->in, SR_INIT_UNIFORM, gate_bound(l))
                   : matrix(l->out, l->in, SR_INIT_NORMAL, 0));
}

static void append_bias(builder *b, const linear *l) {
    char name[SR_SPEC_NAME];
    snprintf(name, sizeof name, "%s.bias", l->name);
    if (l->bias)
        append(b, l->weight + 1, name,
               l->gate ? vector(l->out, SR_INIT_UNIFORM, gate_bound(l))
                       : vector(l->out, SR_INIT_CONSTANT, 0));
}

/* q, k and v: three linear layers, or one before a convolution. */
static int list_inputs(linear *list, const srnn_attention *a, const sr_layer_dims *d) {
    const int64_t queries = (int64_t)d->H * d->D, keys = (int64_t)d->Hkv * d->D;
    const bool bias = d->qkv_bias;
    if (a->short_conv) {
        list[0] = (linear){SR_LAYER_QKV_WEIGHT, "qkv_proj", queries + 2 * keys, d->C, .bias = bias};
        return 1;
    }
    list[0] = (linear){SR_LAYER_Q_WEIGHT, "q_proj", queries, d->C, .bias = bias};
    list[1] = (linear){SR_LAYER_K_WEIGHT, "k_proj", keys, d->C, .bias = bias};
    list[2] = (linear){SR_LAYER_V_WEIGHT, "v_proj", keys, d->C, .bias = bias};
    return 3;
}

/* What x is projected to. The weights stand together, so that a backend may see one matrix. */
static void append_projections(builder *b, const srnn_attention *a, const sr_layer_dims *d) {
    linear list[3 + SR_OPERANDS];
    int count = list_inputs(list, a, d);
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        const int64_t out = sr_layer_extent(row->heads, a, d) * sr_layer_extent(row->width, a, d);
        if (row->origin == SR_ORIGIN_PROJECTION && sr_operand_used(which, a))
            list[count++] = (linear){
                sr_layer_operand_slot(which), row->file, out, d->C, .bias = true, .gate = true};
    }
    for (int i = 0; i < count; i++)
        append_weight(b, &list[i]);
    for (int i = 0; i < count; i++)
        append_bias(b, &list[i]);
}

static void append_convolution(builder *b, const srnn_attention *a, const sr_layer_dims *d) {
    const int64_t channels = ((int64_t)d->H + 2 * (int64_t)d->Hkv) * d->D;
    const double bound = 1.0 / sqrt((double)a->short_conv);
    append(b, SR_LAYER_CONV_WEIGHT, "conv1d.weight",
           (sr_tensor_spec){.rank = 3,
                            .shape = {channels, 1, a->short_conv},
                            .initialiser = SR_INIT_UNIFORM,
                            .size = bound});
    if (d->qkv_bias)
        append(b, SR_LAYER_CONV_BIAS, "conv1d.bias", vector(channels, SR_INIT_UNIFORM, bound));
}

static void append_output(builder *b, const sr_layer_dims *d) {
    const linear output = {SR_LAYER_O_WEIGHT, "o_proj", d->C, (int64_t)d->H * d->D,
                           .bias = d->o_bias};
    append_weight(b, &output);
    append_bias(b, &output);
}

/* An operand that is learned itself. */
static void append_learned(builder *b, sr_operand which, const srnn_attention *a,
                           const sr_layer_dims *d) {
    const sr_operand_row *row = sr_operand_at(which);
    const int64_t heads = sr_layer_extent(row->heads, a, d),
                  width = sr_layer_extent(row->width, a, d);
    append(b, sr_layer_operand_slot(which), row->file,
           row->file_rank == 1
               ? vector(heads * width, SR_INIT_CONSTANT, row->initial)
               : (sr_tensor_spec){.rank = 4, .shape = {1, width, 1, 1}, .size = row->initial});
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
    append_projections(&b, a, d);
    if (a->short_conv)
        append_convolution(&b, a, d);
    append_output(&b, d);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (sr_operand_at((sr_operand)which)->origin == SR_ORIGIN_LEARNED &&
            sr_operand_used((sr_operand)which, a))
            append_learned(&b, (sr_operand)which, a, d);
    return b.status;
}
