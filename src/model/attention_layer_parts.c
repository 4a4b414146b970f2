/* attention_layer_parts.c: what forward, backward and feeding by pieces share. */
#include "model/attention_layer_parts.h"

sr_layer_arrays sr_layer_arrays_at(const sr_layer_layout *layout, void *base) {
    char *bytes = base;
    return (sr_layer_arrays){
        .projected = (float *)(void *)(bytes + layout->projected),
        .qkv = (float *)(void *)(bytes + layout->qkv),
        .out_gate = (float *)(void *)(bytes + layout->out_gate),
        .in_gate = (float *)(void *)(bytes + layout->in_gate),
        .decay = (float *)(void *)(bytes + layout->decay),
        .o = (float *)(void *)(bytes + layout->o),
        .attention = bytes + layout->attention,
        .norm_weight = (float *)(void *)(bytes + layout->norm_weight),
        .norm_bias = (float *)(void *)(bytes + layout->norm_bias),
        .value_power = (float *)(void *)(bytes + layout->value_power),
    };
}

sr_rope sr_layer_rope(const sr_attention_layer *layer, const int32_t *positions) {
    return (sr_rope){.table = layer->rope_table,
                     .positions = positions,
                     .heads = layer->dims.H + layer->dims.Hkv,
                     .D = layer->dims.D};
}

sr_short_conv sr_layer_conv(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_pointers *weights, const sr_layer_piece *piece) {
    return (sr_short_conv){.x = sr_matrix_of(arrays->projected, piece->rows, layer->channels),
                           .weight = weights->slot[SR_LAYER_CONV_WEIGHT],
                           .bias = weights->slot[SR_LAYER_CONV_BIAS],
                           .positions = piece->positions,
                           .width = layer->attention.short_conv,
                           .T = piece->T,
                           .history = piece->history};
}

static srnn_status linear(sr_backend *backend, sr_matrix y, sr_matrix x,
                          const sr_layer_pointers *weights, sr_layer_slot weight) {
    return backend->linear_forward(backend, y, x, weights->slot[weight], weights->slot[weight + 1],
                                   false);
}

static srnn_status project_gates(sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                 sr_matrix x, const sr_layer_pointers *weights) {
    sr_backend *backend = layer->backend;
    const int H = layer->dims.H, Hkv = layer->dims.Hkv;
    if (weights->slot[SR_LAYER_OUT_GATE_WEIGHT])
        SR_TRY(linear(backend, sr_matrix_of(arrays->out_gate, x.rows, H), x, weights,
                      SR_LAYER_OUT_GATE_WEIGHT));
    if (weights->slot[SR_LAYER_IN_GATE_WEIGHT])
        SR_TRY(linear(backend, sr_matrix_of(arrays->in_gate, x.rows, Hkv), x, weights,
                      SR_LAYER_IN_GATE_WEIGHT));
    if (weights->slot[SR_LAYER_DECAY_WEIGHT])
        SR_TRY(linear(backend, sr_matrix_of(arrays->decay, x.rows, Hkv), x, weights,
                      SR_LAYER_DECAY_WEIGHT));
    return SRNN_OK;
}

srnn_status sr_layer_project(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                             const sr_layer_pointers *weights, const sr_layer_piece *piece) {
    sr_backend *backend = layer->backend;
    const int64_t queries = layer->queries, keys = layer->keys;
    const sr_matrix qkv = sr_matrix_of(arrays->qkv, piece->rows, layer->channels);
    if (layer->attention.short_conv) {
        const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, piece);
        SR_TRY(linear(backend, conv.x, x, weights, SR_LAYER_QKV_WEIGHT));
        SR_TRY(backend->short_conv_forward(backend, qkv, &conv));
    } else {
        SR_TRY(linear(backend, sr_matrix_columns(qkv, 0, queries), x, weights, SR_LAYER_Q_WEIGHT));
        SR_TRY(
            linear(backend, sr_matrix_columns(qkv, queries, keys), x, weights, SR_LAYER_K_WEIGHT));
        SR_TRY(linear(backend, sr_matrix_columns(qkv, queries + keys, keys), x, weights,
                      SR_LAYER_V_WEIGHT));
    }
    if (layer->attention.position == SRNN_POSITION_ROPE) {
        const sr_rope rope = sr_layer_rope(layer, piece->positions);
        SR_TRY(backend->rope_forward(backend, sr_matrix_columns(qkv, 0, queries + keys), &rope));
    }
    return project_gates(layer, arrays, x, weights);
}

/* Heads of one width side by side in rows of `row` numbers. */
static srnn_tensor heads(float *data, int64_t T, int64_t row, int64_t width) {
    return (srnn_tensor){.data = data, .batch = T * row, .head = width, .time = row};
}

srnn_operands sr_layer_operands(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                const sr_layer_pointers *weights, int64_t T) {
    const int D = layer->dims.D, H = layer->dims.H, Hkv = layer->dims.Hkv;
    const int64_t row = layer->channels;
    return (srnn_operands){
        .q = heads(arrays->qkv, T, row, D),
        .k = heads(arrays->qkv + layer->queries, T, row, D),
        .v = heads(arrays->qkv + layer->queries + layer->keys, T, row, D),
        .value_gate = heads(layer->attention.value_gate ? arrays->in_gate : NULL, T, Hkv, 1),
        .output_gate =
            heads(sr_uses_output_gate(&layer->attention) ? arrays->out_gate : NULL, T, H, 1),
        .decay = heads(layer->attention.decay ? arrays->decay : NULL, T, Hkv, 1),
        .norm_weight = weights->slot[SR_LAYER_NORM_WEIGHT],
        .norm_bias = weights->slot[SR_LAYER_NORM_BIAS],
        .value_power = weights->slot[SR_LAYER_VALUE_POWER],
    };
}

srnn_tensor sr_layer_output(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            int64_t T) {
    return heads(arrays->o, T, layer->queries, layer->dims.D);
}
