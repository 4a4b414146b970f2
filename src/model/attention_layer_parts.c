/* attention_layer_parts.c: what forward, backward and feeding by pieces share. */
#include "model/attention_layer_parts.h"

sr_layer_arrays sr_layer_arrays_at(const sr_attention_layer *layer, const sr_layer_layout *layout,
                                   void *base, int64_t rows) {
    char *bytes = base;
    const srnn_dtype number = layer->backend->number;
    const sr_matrix projected = {bytes + layout->projected, rows, layer->width, layer->stride,
                                 number};
    sr_layer_arrays arrays = {
        .projected = projected,
        .qkv = layer->attention.short_conv
                   ? sr_matrix_of(bytes + layout->qkv, rows, layer->channels, number)
                   : sr_matrix_columns(projected, 0, layer->channels),
        .o = sr_matrix_of(bytes + layout->o, rows, layer->queries, number),
        .attention = bytes + layout->attention,
    };
    for (int which = 0; which < SR_OPERANDS; which++)
        arrays.learned[which] = (float *)(void *)(bytes + layout->learned[which]);
    return arrays;
}

void sr_layer_linears(sr_linear *linears, const sr_attention_layer *layer,
                      const sr_layer_weights *weights) {
    for (int i = 0; i < layer->projection_count; i++) {
        const sr_projection *p = &layer->projections[i];
        linears[i] = (sr_linear){weights->working->slot[p->weight],
                                 weights->master->slot[p->weight + 1], p->columns};
    }
}

const sr_projection *sr_layer_projection(const sr_attention_layer *layer, sr_layer_slot weight) {
    for (int i = 0; i < layer->projection_count; i++)
        if (layer->projections[i].weight == weight)
            return &layer->projections[i];
    return NULL;
}

sr_rope sr_layer_rope(const sr_attention_layer *layer, const int32_t *positions) {
    return (sr_rope){.table = layer->rope_table,
                     .positions = positions,
                     .heads = layer->dims.H + layer->dims.Hkv,
                     .D = layer->dims.D};
}

sr_short_conv sr_layer_conv(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_weights *weights, const sr_layer_piece *piece) {
    return (sr_short_conv){.x = sr_matrix_columns(arrays->projected, 0, layer->channels),
                           .weight = weights->master->slot[SR_LAYER_CONV_WEIGHT],
                           .bias = weights->master->slot[SR_LAYER_CONV_BIAS],
                           .positions = piece->positions,
                           .width = layer->attention.short_conv,
                           .T = piece->T,
                           .history = piece->history};
}

srnn_status sr_layer_project(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                             const sr_layer_weights *weights, const sr_layer_piece *piece) {
    sr_backend *backend = layer->backend;
    sr_linear linears[SR_LINEAR_GROUP_MAX];
    sr_layer_linears(linears, layer, weights);
    SR_TRY(backend->linear_forward(backend, arrays->projected, (sr_matrix){0}, x, linears,
                                   layer->projection_count));
    if (layer->attention.short_conv) {
        const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, piece);
        SR_TRY(backend->short_conv_forward(backend, arrays->qkv, &conv));
    }
    if (layer->attention.position != SRNN_POSITION_ROPE)
        return SRNN_OK;
    const sr_rope rope = sr_layer_rope(layer, piece->positions);
    return backend->rope_forward(
        backend, sr_matrix_columns(arrays->qkv, 0, layer->queries + layer->keys), &rope);
}

/* Heads of `width` numbers each that stand side by side in the rows of a matrix. */
static srnn_tensor heads(sr_matrix m, int64_t T, int64_t width) {
    return (srnn_tensor){.data = m.data, .batch = T * m.stride, .head = width, .time = m.stride};
}

/* An operand that is a projection of the layer's input. */
static srnn_tensor projected(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                             int64_t T, sr_operand which) {
    const sr_projection *p = sr_layer_projection(layer, sr_layer_operand_slot(which));
    return heads(sr_matrix_columns(arrays->projected, p->first, p->columns), T,
                 sr_layer_extent(sr_operand_at(which)->width, &layer->attention, &layer->dims));
}

srnn_operands sr_layer_operands(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                const sr_layer_weights *weights, int64_t T) {
    const int D = layer->dims.D, queries = layer->queries, keys = layer->keys;
    srnn_operands operands = {
        .q = heads(sr_matrix_columns(arrays->qkv, 0, queries), T, D),
        .k = heads(sr_matrix_columns(arrays->qkv, queries, keys), T, D),
        .v = heads(sr_matrix_columns(arrays->qkv, queries + keys, keys), T, D),
    };
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        if (!sr_operand_used(which, &layer->attention))
            continue;
        switch (sr_operand_at(which)->origin) {
        case SR_ORIGIN_INPUTS:
            break;
        case SR_ORIGIN_PROJECTION:
            sr_operand_set_tensor(which, &operands, projected(layer, arrays, T, which));
            break;
        case SR_ORIGIN_LEARNED:
            sr_operand_place(which, &operands, weights->master->slot[sr_layer_operand_slot(which)]);
            break;
        }
    }
    return operands;
}

srnn_tensor sr_layer_output(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            int64_t T) {
    return heads(arrays->o, T, layer->dims.D);
}
