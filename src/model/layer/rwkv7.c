/* rwkv7.c: token shifts, activations inside low-rank paths, keys and values of RWKV-7's layer. */
#include "model/layer/rwkv7.h"

#include <math.h>
#include <string.h>

srnn_status sr_rwkv7_check(const sr_attention_layer *layer) {
    const sr_layer_wiring *w = &layer->wiring;
    if (!w->shift_count)
        return SRNN_OK;
    if (!sr_device_is_host(layer->backend->device) || layer->backend->number != SRNN_F32)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layer=rwkv7 is computed on the CPU, in float: use "
                                             "--device cpu");
    if (w->value_mix.count && (!layer->first_values || layer->first_columns != w->raw_value.count))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a later layer of RWKV-7 mixes in the first one's %lld values of a token, "
                       "and it was given %lld",
                       (long long)w->raw_value.count,
                       (long long)(layer->first_values ? layer->first_columns : 0));
    return SRNN_OK;
}

static float sigmoid(float z) {
    return (float)(1.0 / (1.0 + exp(-(double)z)));
}

static float *row_of(sr_matrix m, int64_t row, int64_t column) {
    return (float *)m.data + row * m.stride + column;
}

/* ---- token shifts: convolutions of two taps, x and 1 - x */

void sr_rwkv7_taps(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                   const sr_layer_weights *weights) {
    const int64_t C = layer->dims.C;
    for (int i = 0; i < layer->wiring.shift_count; i++) {
        const float *x = weights->master->slot[SR_LAYER_SHIFTS + i];
        float *taps = arrays->taps + i * 2 * C;
        for (int64_t c = 0; c < C; c++) {
            taps[2 * c] = x[c];
            taps[2 * c + 1] = 1 - x[c];
        }
    }
}

void sr_rwkv7_taps_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                            const sr_layer_pointers *gradients) {
    const int64_t C = layer->dims.C;
    for (int i = 0; i < layer->wiring.shift_count; i++) {
        float *d_x = gradients->slot[SR_LAYER_SHIFTS + i];
        const float *taps = d->taps + i * 2 * C;
        for (int64_t c = 0; c < C; c++)
            d_x[c] += taps[2 * c] - taps[2 * c + 1];
    }
}

sr_short_conv sr_rwkv7_shift(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                             sr_matrix x, const sr_layer_piece *piece, int which) {
    return (sr_short_conv){.x = x,
                           .weight = arrays->taps + which * 2 * layer->dims.C,
                           .positions = piece->positions,
                           .width = 2,
                           .plain = true,
                           .T = piece->T,
                           .history = piece->shift_history};
}

/* ---- activations */

static float activated(float z, sr_path_activation activation) {
    switch (activation) {
    case SR_PATH_NONE:
        break;
    case SR_PATH_TANH:
        return tanhf(z);
    case SR_PATH_SIGMOID:
        return sigmoid(z);
    }
    return z;
}

/* Of what an activation left. */
static float slope_at(float y, sr_path_activation activation) {
    switch (activation) {
    case SR_PATH_NONE:
        break;
    case SR_PATH_TANH:
        return 1 - y * y;
    case SR_PATH_SIGMOID:
        return y * (1 - y);
    }
    return 1;
}

void sr_rwkv7_activate(sr_matrix y, sr_path_activation activation) {
    for (int64_t row = 0; activation != SR_PATH_NONE && row < y.rows; row++)
        for (int64_t c = 0; c < y.columns; c++)
            *row_of(y, row, c) = activated(*row_of(y, row, c), activation);
}

void sr_rwkv7_activate_backward(sr_matrix d, sr_matrix y, sr_path_activation activation) {
    for (int64_t row = 0; activation != SR_PATH_NONE && row < y.rows; row++)
        for (int64_t c = 0; c < y.columns; c++)
            *row_of(d, row, c) *= slope_at(*row_of(y, row, c), activation);
}

/* ---- keys: n = k k_k, k~ = k (1 + (alpha - 1) k_a), alpha = sigmoid(removal gate) */

static int64_t made_at(const sr_attention_layer *layer, sr_operand which) {
    return layer->wiring.places[which].at.first;
}

static void make_keys(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                      const sr_layer_weights *weights, int64_t row) {
    const sr_layer_wiring *w = &layer->wiring;
    const float *scale = weights->master->slot[SR_LAYER_KEY_SCALE];
    const float *gate = weights->master->slot[SR_LAYER_KEY_GATE];
    const float *k = row_of(arrays->projected, row, w->raw_key.first);
    const float *z = row_of(arrays->projected, row, w->removal_gate.first);
    float *key = row_of(arrays->convolved, row, made_at(layer, SR_OPERAND_K));
    float *removal = row_of(arrays->convolved, row, made_at(layer, SR_OPERAND_REMOVAL_KEY));
    for (int64_t c = 0; c < w->raw_key.count; c++) {
        removal[c] = k[c] * scale[c];
        key[c] = k[c] * (1 + (sigmoid(z[c]) - 1) * gate[c]);
    }
}

static void keys_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                          const sr_layer_arrays *in, const sr_layer_weights *weights,
                          const sr_layer_pointers *gradients, int64_t row) {
    const sr_layer_wiring *w = &layer->wiring;
    const float *scale = weights->master->slot[SR_LAYER_KEY_SCALE];
    const float *gate = weights->master->slot[SR_LAYER_KEY_GATE];
    float *d_scale = gradients->slot[SR_LAYER_KEY_SCALE];
    float *d_gate = gradients->slot[SR_LAYER_KEY_GATE];
    const float *k = row_of(in->projected, row, w->raw_key.first);
    const float *z = row_of(in->projected, row, w->removal_gate.first);
    const float *d_key = row_of(d->convolved, row, made_at(layer, SR_OPERAND_K));
    const float *d_removal = row_of(d->convolved, row, made_at(layer, SR_OPERAND_REMOVAL_KEY));
    float *d_k = row_of(d->projected, row, w->raw_key.first);
    float *d_z = row_of(d->projected, row, w->removal_gate.first);
    for (int64_t c = 0; c < w->raw_key.count; c++) {
        const float alpha = sigmoid(z[c]);
        d_k[c] = d_key[c] * (1 + (alpha - 1) * gate[c]) + d_removal[c] * scale[c];
        d_z[c] += d_key[c] * k[c] * gate[c] * alpha * (1 - alpha);
        d_scale[c] += d_removal[c] * k[c];
        d_gate[c] += d_key[c] * k[c] * (alpha - 1);
    }
}

/* ---- values: v + (first - v) sigmoid(mix) in later layers */

static void make_values(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                        int64_t row) {
    const sr_layer_wiring *w = &layer->wiring;
    const int64_t count = w->raw_value.count;
    const float *v = row_of(arrays->projected, row, w->raw_value.first);
    const float *z = row_of(arrays->projected, row, w->value_mix.first);
    float *out = row_of(arrays->convolved, row, made_at(layer, SR_OPERAND_V));
    float *first = layer->first_values ? layer->first_values + row * count : NULL;
    for (int64_t c = 0; w->value_mix.count && c < count; c++)
        out[c] = v[c] + (first[c] - v[c]) * sigmoid(z[c]);
    if (w->value_mix.count)
        return;
    memcpy(out, v, (size_t)count * sizeof *out);
    if (first)
        memcpy(first, v, (size_t)count * sizeof *out);
}

/* The first layer takes what the later ones have left, and leaves zeros for the next time. */
static void values_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                            const sr_layer_arrays *in, int64_t row) {
    const sr_layer_wiring *w = &layer->wiring;
    const int64_t count = w->raw_value.count;
    const float *v = row_of(in->projected, row, w->raw_value.first);
    const float *z = row_of(in->projected, row, w->value_mix.first);
    const float *d_out = row_of(d->convolved, row, made_at(layer, SR_OPERAND_V));
    float *d_v = row_of(d->projected, row, w->raw_value.first);
    float *d_z = row_of(d->projected, row, w->value_mix.first);
    const float *first = layer->first_values ? layer->first_values + row * count : NULL;
    float *d_first = layer->d_first_values ? layer->d_first_values + row * count : NULL;
    for (int64_t c = 0; w->value_mix.count && c < count; c++) {
        const float mix = sigmoid(z[c]);
        d_v[c] = d_out[c] * (1 - mix);
        d_z[c] = d_out[c] * (first[c] - v[c]) * mix * (1 - mix);
        if (d_first)
            d_first[c] += d_out[c] * mix;
    }
    for (int64_t c = 0; !w->value_mix.count && c < count; c++) {
        d_v[c] = d_out[c] + (d_first ? d_first[c] : 0);
        if (d_first)
            d_first[c] = 0;
    }
}

void sr_rwkv7_make(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                   const sr_layer_weights *weights) {
    for (int64_t row = 0; layer->wiring.raw_key.count && row < arrays->projected.rows; row++) {
        make_keys(layer, arrays, weights, row);
        make_values(layer, arrays, row);
    }
}

void sr_rwkv7_make_backward(const sr_attention_layer *layer, const sr_layer_arrays *d,
                            const sr_layer_arrays *in, const sr_layer_weights *weights,
                            const sr_layer_pointers *gradients) {
    for (int64_t row = 0; layer->wiring.raw_key.count && row < d->projected.rows; row++) {
        keys_backward(layer, d, in, weights, gradients, row);
        values_backward(layer, d, in, row);
    }
}
