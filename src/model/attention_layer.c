/* attention_layer.c: one attention layer, forward and backward. */
#include "model/attention_layer.h"

#include "base/memory.h"
#include "model/attention_layer_parts.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t size) {
    const size_t start = *bytes;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* Where each array stands in the saved bytes. */
static void lay_out_saved(sr_attention_layer *layer) {
    const srnn_attention *a = &layer->attention;
    const size_t rows = (size_t)layer->B * (size_t)layer->T * sizeof(float);
    sr_layer_layout *s = &layer->saved;
    s->projected = take(&s->bytes, a->short_conv ? rows * (size_t)layer->channels : 0);
    s->qkv = take(&s->bytes, rows * (size_t)layer->channels);
    s->out_gate = take(&s->bytes, sr_uses_output_gate(a) ? rows * (size_t)layer->dims.H : 0);
    s->in_gate = take(&s->bytes, a->value_gate ? rows * (size_t)layer->dims.Hkv : 0);
    s->decay = take(&s->bytes, a->decay ? rows * (size_t)layer->dims.Hkv : 0);
    s->o = take(&s->bytes, rows * (size_t)layer->queries);
    s->attention = take(&s->bytes, layer->plan ? srnn_plan_saved_bytes(layer->plan) : 0);
}

/* Backward's scratch has the gradient of each saved array in the same place, and then those of the
 * small tensors. */
static void lay_out_scratch(sr_attention_layer *layer) {
    sr_layer_layout *s = &layer->scratch;
    *s = layer->saved;
    s->bytes = s->attention;
    s->norm_weight = take(&s->bytes, (size_t)layer->dims.D * sizeof(float));
    s->norm_bias = take(&s->bytes, (size_t)layer->dims.D * sizeof(float));
    s->value_power = take(&s->bytes, (size_t)layer->dims.Hkv * sizeof(float));
}

static srnn_status take_positions(sr_attention_layer *layer) {
    const size_t rows = (size_t)layer->B * (size_t)layer->T;
    void *memory;
    SR_TRY(sr_device_allocate(layer->backend->device, &memory, rows * sizeof(int32_t)));
    layer->positions = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof(int32_t)));
    layer->host_positions = memory;
    return SRNN_OK;
}

static srnn_status place_tokens(sr_attention_layer *layer, const int64_t *offsets,
                                int64_t documents) {
    const int64_t rows = (int64_t)layer->B * layer->T;
    int64_t start = 0, document = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (offsets && document < documents && row == offsets[document])
            start = offsets[document++];
        if (!offsets && row % layer->T == 0)
            start = row;
        layer->host_positions[row] = (int32_t)(row - start);
    }
    return sr_device_copy_in(layer->backend->device, layer->positions, layer->host_positions,
                             (size_t)rows * sizeof(int32_t));
}

static srnn_status check(const sr_layer_setup *setup) {
    const sr_layer_dims *d = &setup->dims;
    const bool rope = setup->attention.position == SRNN_POSITION_ROPE;
    SR_TRY(srnn_attention_check(&setup->attention));
    if (d->C < 1 || d->H < 1 || d->Hkv < 1 || d->D < 1 || setup->B < 1 || setup->T < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "an attention layer needs sizes of at least 1");
    if (d->H % d->Hkv)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d query heads cannot share %d key and value heads",
                       d->H, d->Hkv);
    if (rope && d->D % 2)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "rotary position needs an even head width, not %d; use position=none", d->D);
    if (rope && setup->rope_positions < setup->T)
        return SR_FAIL(SRNN_ERR_LIMIT, "%d tokens are more than the model's %lld positions",
                       setup->T, (long long)setup->rope_positions);
    return SRNN_OK;
}

static srnn_status fill(sr_attention_layer *layer, const sr_layer_setup *setup) {
    const sr_layer_dims *d = &setup->dims;
    layer->attention = setup->attention;
    layer->dims = *d;
    layer->B = setup->B;
    layer->T = setup->T;
    layer->queries = d->H * d->D;
    layer->keys = d->Hkv * d->D;
    layer->channels = layer->queries + 2 * layer->keys;
    layer->rope_table = setup->rope_table;
    layer->rope_positions = setup->rope_positions;
    layer->problem = (srnn_problem){.attention = setup->attention,
                                    .B = setup->B,
                                    .H = d->H,
                                    .Hkv = d->Hkv,
                                    .T = setup->T,
                                    .D = d->D,
                                    .Dv = d->D,
                                    .offsets = setup->offsets,
                                    .documents = setup->documents,
                                    .form = setup->form,
                                    .chunk = setup->chunk,
                                    .kernel = setup->kernel,
                                    .threads = layer->backend->threads,
                                    .state_limit = setup->state_limit};
    SR_TRY(take_positions(layer));
    SR_TRY(srnn_plan_create(&layer->plan, &layer->problem));
    SR_TRY(place_tokens(layer, setup->offsets, setup->documents));
    layer->problem.offsets = NULL;
    layer->problem.documents = 0;
    lay_out_saved(layer);
    lay_out_scratch(layer);
    return SRNN_OK;
}

srnn_status sr_attention_layer_create(sr_attention_layer **layer, sr_backend *backend,
                                      const sr_layer_setup *setup) {
    *layer = NULL;
    SR_TRY(check(setup));
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **layer));
    sr_attention_layer *created = memory;
    created->backend = backend;
    const srnn_status status = fill(created, setup);
    if (status != SRNN_OK) {
        sr_attention_layer_free(created);
        return status;
    }
    *layer = created;
    return SRNN_OK;
}

void sr_attention_layer_free(sr_attention_layer *layer) {
    if (!layer)
        return;
    srnn_plan_free(layer->plan);
    sr_device_release(layer->backend->device, layer->positions);
    free(layer->host_positions);
    free(layer);
}

srnn_status sr_attention_layer_documents(sr_attention_layer *layer, const int64_t *offsets,
                                         int64_t documents) {
    SR_TRY(srnn_plan_documents(layer->plan, offsets, documents));
    return place_tokens(layer, offsets, documents);
}

size_t sr_attention_layer_saved_bytes(const sr_attention_layer *layer) {
    return layer->saved.bytes;
}

size_t sr_attention_layer_scratch_bytes(const sr_attention_layer *layer) {
    return layer->scratch.bytes;
}

size_t sr_attention_layer_own_bytes(const sr_attention_layer *layer) {
    return srnn_plan_scratch_bytes(layer->plan) +
           2 * (size_t)layer->B * (size_t)layer->T * sizeof(int32_t);
}

srnn_status sr_attention_layer_attend(sr_attention_layer *layer, sr_matrix x,
                                      const sr_layer_pointers *weights, void *saved) {
    const sr_layer_piece piece = {.rows = x.rows, .T = layer->T, .positions = layer->positions};
    const sr_layer_arrays arrays = sr_layer_arrays_at(&layer->saved, saved);
    SR_TRY(sr_layer_project(layer, &arrays, x, weights, &piece));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, layer->T);
    return srnn_attention_forward(layer->plan, sr_layer_output(layer, &arrays, layer->T), &in,
                                  arrays.attention);
}

srnn_status sr_attention_layer_finish(sr_attention_layer *layer, sr_matrix y,
                                      const sr_layer_pointers *weights, void *saved, bool add) {
    sr_backend *backend = layer->backend;
    const sr_layer_arrays arrays = sr_layer_arrays_at(&layer->saved, saved);
    return backend->linear_forward(backend, y, sr_matrix_of(arrays.o, y.rows, layer->queries),
                                   weights->slot[SR_LAYER_O_WEIGHT], weights->slot[SR_LAYER_O_BIAS],
                                   add);
}

srnn_status sr_attention_layer_forward(sr_attention_layer *layer, sr_matrix y, sr_matrix x,
                                       const sr_layer_pointers *weights, void *saved, bool add) {
    SR_TRY(sr_attention_layer_attend(layer, x, weights, saved));
    return sr_attention_layer_finish(layer, y, weights, saved, add);
}

srnn_operands sr_attention_layer_operands(const sr_attention_layer *layer, srnn_tensor *o,
                                          const sr_layer_pointers *weights, void *saved) {
    const sr_layer_arrays arrays = sr_layer_arrays_at(&layer->saved, saved);
    *o = sr_layer_output(layer, &arrays, layer->T);
    return sr_layer_operands(layer, &arrays, weights, layer->T);
}

/* One linear layer's backward: d_x (adds unless it is the first), d_weight, d_bias. */
static srnn_status linear_back(sr_backend *backend, sr_matrix d_x, bool add,
                               const sr_layer_pointers *gradients, sr_matrix d_y, sr_matrix x,
                               const sr_layer_pointers *weights, sr_layer_slot weight) {
    SR_TRY(backend->linear_backward_input(backend, d_x, d_y, weights->slot[weight], add));
    return backend->linear_backward_weight(backend, gradients->slot[weight],
                                           gradients->slot[weight + 1], d_y, x);
}

/* From the gradients of q, k, v and the gates to those of x and of their projections. */
static srnn_status project_back(sr_attention_layer *layer, const sr_layer_arrays *d, sr_matrix d_x,
                                const sr_layer_pointers *gradients, sr_matrix x,
                                const sr_layer_pointers *weights) {
    sr_backend *backend = layer->backend;
    const int64_t queries = layer->queries, keys = layer->keys;
    const sr_matrix d_qkv = sr_matrix_of(d->qkv, x.rows, layer->channels);
    if (layer->attention.short_conv) {
        const sr_matrix d_projected = sr_matrix_of(d->projected, x.rows, layer->channels);
        SR_TRY(linear_back(backend, d_x, false, gradients, d_projected, x, weights,
                           SR_LAYER_QKV_WEIGHT));
    } else {
        SR_TRY(linear_back(backend, d_x, false, gradients, sr_matrix_columns(d_qkv, 0, queries), x,
                           weights, SR_LAYER_Q_WEIGHT));
        SR_TRY(linear_back(backend, d_x, true, gradients, sr_matrix_columns(d_qkv, queries, keys),
                           x, weights, SR_LAYER_K_WEIGHT));
        SR_TRY(linear_back(backend, d_x, true, gradients,
                           sr_matrix_columns(d_qkv, queries + keys, keys), x, weights,
                           SR_LAYER_V_WEIGHT));
    }
    const sr_matrix out_gate = sr_matrix_of(d->out_gate, x.rows, layer->dims.H);
    const sr_matrix in_gate = sr_matrix_of(d->in_gate, x.rows, layer->dims.Hkv);
    const sr_matrix decay = sr_matrix_of(d->decay, x.rows, layer->dims.Hkv);
    if (weights->slot[SR_LAYER_OUT_GATE_WEIGHT])
        SR_TRY(linear_back(backend, d_x, true, gradients, out_gate, x, weights,
                           SR_LAYER_OUT_GATE_WEIGHT));
    if (weights->slot[SR_LAYER_IN_GATE_WEIGHT])
        SR_TRY(linear_back(backend, d_x, true, gradients, in_gate, x, weights,
                           SR_LAYER_IN_GATE_WEIGHT));
    if (weights->slot[SR_LAYER_DECAY_WEIGHT])
        SR_TRY(
            linear_back(backend, d_x, true, gradients, decay, x, weights, SR_LAYER_DECAY_WEIGHT));
    return SRNN_OK;
}

/* The equation writes the gradients of its small tensors; the layer adds them up. */
static srnn_status add_small(const sr_attention_layer *layer, const sr_layer_pointers *gradients,
                             const sr_layer_arrays *d) {
    sr_backend *backend = layer->backend;
    float *norm_weight = gradients->slot[SR_LAYER_NORM_WEIGHT];
    float *norm_bias = gradients->slot[SR_LAYER_NORM_BIAS];
    float *value_power = gradients->slot[SR_LAYER_VALUE_POWER];
    if (norm_weight)
        SR_TRY(backend->add(backend, norm_weight, norm_weight, d->norm_weight, layer->dims.D));
    if (norm_bias)
        SR_TRY(backend->add(backend, norm_bias, norm_bias, d->norm_bias, layer->dims.D));
    if (value_power)
        SR_TRY(backend->add(backend, value_power, value_power, d->value_power, layer->dims.Hkv));
    return SRNN_OK;
}

srnn_status sr_attention_layer_backward(sr_attention_layer *layer, sr_matrix d_x,
                                        const sr_layer_pointers *gradients, sr_matrix d_y,
                                        sr_matrix x, const sr_layer_pointers *weights, void *saved,
                                        void *scratch) {
    sr_backend *backend = layer->backend;
    const sr_layer_arrays arrays = sr_layer_arrays_at(&layer->saved, saved);
    const sr_layer_arrays d = sr_layer_arrays_at(&layer->scratch, scratch);
    const sr_matrix o = sr_matrix_of(arrays.o, x.rows, layer->queries);
    const sr_matrix d_o = sr_matrix_of(d.o, x.rows, layer->queries);
    SR_TRY(linear_back(backend, d_o, false, gradients, d_y, o, weights, SR_LAYER_O_WEIGHT));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, layer->T);
    srnn_operands out = sr_layer_operands(layer, &d, weights, layer->T);
    out.norm_weight = gradients->slot[SR_LAYER_NORM_WEIGHT] ? d.norm_weight : NULL;
    out.norm_bias = gradients->slot[SR_LAYER_NORM_BIAS] ? d.norm_bias : NULL;
    out.value_power = gradients->slot[SR_LAYER_VALUE_POWER] ? d.value_power : NULL;
    SR_TRY(srnn_attention_backward(layer->plan, &out, sr_layer_output(layer, &d, layer->T), &in,
                                   arrays.attention));
    SR_TRY(add_small(layer, gradients, &d));
    const sr_matrix d_qkv = sr_matrix_of(d.qkv, x.rows, layer->channels);
    if (layer->attention.position == SRNN_POSITION_ROPE) {
        const sr_rope rope = sr_layer_rope(layer, layer->positions);
        SR_TRY(backend->rope_backward(
            backend, sr_matrix_columns(d_qkv, 0, layer->queries + layer->keys), &rope));
    }
    if (layer->attention.short_conv) {
        const sr_layer_piece piece = {.rows = x.rows, .T = layer->T, .positions = layer->positions};
        const sr_short_conv conv = sr_layer_conv(layer, &arrays, weights, &piece);
        SR_TRY(backend->short_conv_backward(backend,
                                            sr_matrix_of(d.projected, x.rows, layer->channels),
                                            gradients->slot[SR_LAYER_CONV_WEIGHT],
                                            gradients->slot[SR_LAYER_CONV_BIAS], d_qkv, &conv));
    }
    return project_back(layer, &d, d_x, gradients, x, weights);
}
