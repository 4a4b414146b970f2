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

static void add_projection(sr_attention_layer *layer, sr_layer_slot weight, int64_t columns) {
    layer->projections[layer->projection_count++] = (sr_projection){weight, layer->width, columns};
    layer->width += columns;
}

/* What x is projected to, side by side. */
static void list_projections(sr_attention_layer *layer) {
    enum { ROW_NUMBERS = 16 }; /* rows start where copies of 16 bytes may */
    if (layer->attention.short_conv) {
        add_projection(layer, SR_LAYER_QKV_WEIGHT, layer->channels);
    } else {
        add_projection(layer, SR_LAYER_Q_WEIGHT, layer->queries);
        add_projection(layer, SR_LAYER_K_WEIGHT, layer->keys);
        add_projection(layer, SR_LAYER_V_WEIGHT, layer->keys);
    }
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (row->origin == SR_ORIGIN_PROJECTION && sr_operand_used(which, &layer->attention))
            add_projection(layer, sr_layer_operand_slot(which),
                           sr_layer_extent(row->heads, &layer->attention, &layer->dims) *
                               sr_layer_extent(row->width, &layer->attention, &layer->dims));
    }
    layer->stride = (layer->width + ROW_NUMBERS - 1) / ROW_NUMBERS * ROW_NUMBERS;
}

/* Numbers of an operand that the layer learns itself; 0 if it has none. */
static int64_t learned_numbers(const sr_attention_layer *layer, sr_operand which) {
    const sr_operand_row *row = sr_operand_at(which);
    const bool learned =
        row->origin == SR_ORIGIN_LEARNED && sr_operand_used(which, &layer->attention);
    return learned ? sr_layer_extent(row->heads, &layer->attention, &layer->dims) *
                         sr_layer_extent(row->width, &layer->attention, &layer->dims)
                   : 0;
}

/* Where each array stands in the saved bytes. */
static void lay_out_saved(sr_attention_layer *layer) {
    const size_t rows =
        (size_t)layer->B * (size_t)layer->T * sr_number_bytes(layer->backend->number);
    sr_layer_layout *s = &layer->saved;
    s->projected = take(&s->bytes, rows * (size_t)layer->stride);
    s->qkv = take(&s->bytes, layer->attention.short_conv ? rows * (size_t)layer->channels : 0);
    s->o = take(&s->bytes, rows * (size_t)layer->queries);
    s->attention = take(&s->bytes, layer->plan ? srnn_plan_saved_bytes(layer->plan) : 0);
}

/* Backward's scratch has the gradient of each saved array in the same place, and then those of the
 * small tensors. */
static void lay_out_scratch(sr_attention_layer *layer) {
    sr_layer_layout *s = &layer->scratch;
    *s = layer->saved;
    s->bytes = s->attention;
    for (int which = 0; which < SR_OPERANDS; which++)
        s->learned[which] =
            take(&s->bytes, (size_t)learned_numbers(layer, (sr_operand)which) * sizeof(float));
}

void sr_layer_positions(int32_t *positions, int64_t rows, int T, const int64_t *offsets,
                        int64_t documents) {
    int64_t start = 0, document = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (offsets && document < documents && row == offsets[document])
            start = offsets[document++];
        if (!offsets && row % T == 0)
            start = row;
        positions[row] = (int32_t)(row - start);
    }
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
    layer->positions = setup->positions;
    list_projections(layer);
    layer->problem = (srnn_problem){.attention = setup->attention,
                                    .dtype = layer->backend->number,
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
                                    .state_limit = setup->state_limit,
                                    .device = layer->backend->device};
    SR_TRY(srnn_plan_create(&layer->plan, &layer->problem));
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
    free(layer);
}

srnn_status sr_attention_layer_documents(sr_attention_layer *layer, const int64_t *offsets,
                                         int64_t documents) {
    return srnn_plan_documents(layer->plan, offsets, documents);
}

size_t sr_attention_layer_saved_bytes(const sr_attention_layer *layer) {
    return layer->saved.bytes;
}

size_t sr_attention_layer_scratch_bytes(const sr_attention_layer *layer) {
    return layer->scratch.bytes;
}

size_t sr_attention_layer_own_bytes(const sr_attention_layer *layer) {
    return srnn_plan_scratch_bytes(layer->plan);
}

srnn_status sr_attention_layer_attend(sr_attention_layer *layer, sr_matrix x,
                                      const sr_layer_weights *weights, void *saved) {
    const sr_layer_piece piece = {.rows = x.rows, .T = layer->T, .positions = layer->positions};
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, saved, x.rows);
    SR_TRY(sr_layer_project(layer, &arrays, x, weights, &piece));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, layer->T);
    return srnn_attention_forward(layer->plan, sr_layer_output(layer, &arrays, layer->T), &in,
                                  arrays.attention);
}

static sr_linear output_linear(const sr_layer_weights *weights, int64_t N) {
    return (sr_linear){weights->working->slot[SR_LAYER_O_WEIGHT],
                       weights->master->slot[SR_LAYER_O_BIAS], N};
}

srnn_status sr_attention_layer_finish(sr_attention_layer *layer, sr_matrix y, sr_matrix addend,
                                      const sr_layer_weights *weights, void *saved) {
    sr_backend *backend = layer->backend;
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, saved, y.rows);
    const sr_linear output = output_linear(weights, y.columns);
    return backend->linear_forward(backend, y, addend, arrays.o, &output, 1);
}

srnn_operands sr_attention_layer_operands(const sr_attention_layer *layer, srnn_tensor *o,
                                          const sr_layer_weights *weights, void *saved) {
    const sr_layer_arrays arrays =
        sr_layer_arrays_at(layer, &layer->saved, saved, (int64_t)layer->B * layer->T);
    *o = sr_layer_output(layer, &arrays, layer->T);
    return sr_layer_operands(layer, &arrays, weights, layer->T);
}

/* From the gradients of all projections to those of x and of their weights. */
static srnn_status project_back(sr_attention_layer *layer, const sr_layer_arrays *d, sr_matrix d_x,
                                const sr_layer_pointers *gradients, sr_matrix x,
                                const sr_layer_weights *weights) {
    sr_backend *backend = layer->backend;
    sr_linear linears[SR_LINEAR_GROUP_MAX];
    sr_linear_gradient d_linears[SR_LINEAR_GROUP_MAX];
    sr_layer_linears(linears, layer, weights);
    for (int i = 0; i < layer->projection_count; i++) {
        const sr_layer_slot weight = layer->projections[i].weight;
        d_linears[i] = (sr_linear_gradient){gradients->slot[weight], gradients->slot[weight + 1],
                                            linears[i].N};
    }
    SR_TRY(backend->linear_backward_input(backend, d_x, d->projected, linears,
                                          layer->projection_count));
    return backend->linear_backward_weight(backend, d_linears, layer->projection_count,
                                           d->projected, x);
}

/* The equation writes the gradients of its small tensors; the layer adds them up. */
static srnn_status add_small(const sr_attention_layer *layer, const sr_layer_pointers *gradients,
                             const sr_layer_arrays *d) {
    sr_backend *backend = layer->backend;
    for (int which = 0; which < SR_OPERANDS; which++) {
        const int64_t numbers = learned_numbers(layer, (sr_operand)which);
        if (numbers)
            SR_TRY(backend->add(backend, gradients->slot[sr_layer_operand_slot((sr_operand)which)],
                                d->learned[which], numbers));
    }
    return SRNN_OK;
}

/* From the gradient of o to those of everything that the equation read. */
static srnn_status attend_back(sr_attention_layer *layer, const sr_layer_arrays *d,
                               const sr_layer_pointers *gradients, const sr_layer_arrays *arrays,
                               const sr_layer_weights *weights) {
    const srnn_operands in = sr_layer_operands(layer, arrays, weights, layer->T);
    srnn_operands out = sr_layer_operands(layer, d, weights, layer->T);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (learned_numbers(layer, (sr_operand)which))
            sr_operand_place((sr_operand)which, &out, d->learned[which]);
    SR_TRY(srnn_attention_backward(layer->plan, &out, sr_layer_output(layer, d, layer->T), &in,
                                   arrays->attention));
    return add_small(layer, gradients, d);
}

/* From the gradients of q, k, v to those of their projections: position and convolution. */
static srnn_status place_back(sr_attention_layer *layer, const sr_layer_arrays *d,
                              const sr_layer_pointers *gradients, const sr_layer_arrays *arrays,
                              const sr_layer_weights *weights) {
    sr_backend *backend = layer->backend;
    if (layer->attention.position == SRNN_POSITION_ROPE) {
        const sr_rope rope = sr_layer_rope(layer, layer->positions);
        SR_TRY(backend->rope_backward(
            backend, sr_matrix_columns(d->qkv, 0, layer->queries + layer->keys), &rope));
    }
    if (!layer->attention.short_conv)
        return SRNN_OK;
    const sr_layer_piece piece = {
        .rows = d->qkv.rows, .T = layer->T, .positions = layer->positions};
    const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, &piece);
    return backend->short_conv_backward(
        backend, sr_matrix_columns(d->projected, 0, layer->channels),
        gradients->slot[SR_LAYER_CONV_WEIGHT], gradients->slot[SR_LAYER_CONV_BIAS], d->qkv, &conv);
}

srnn_status sr_attention_layer_backward(sr_attention_layer *layer, sr_matrix d_x,
                                        const sr_layer_pointers *gradients, sr_matrix d_y,
                                        sr_matrix x, const sr_layer_weights *weights, void *saved,
                                        void *scratch) {
    sr_backend *backend = layer->backend;
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, saved, x.rows);
    const sr_layer_arrays d = sr_layer_arrays_at(layer, &layer->scratch, scratch, x.rows);
    const sr_linear output = output_linear(weights, d_y.columns);
    const sr_linear_gradient d_output = {gradients->slot[SR_LAYER_O_WEIGHT],
                                         gradients->slot[SR_LAYER_O_BIAS], output.N};
    SR_TRY(backend->linear_backward_input(backend, d.o, d_y, &output, 1));
    SR_TRY(backend->linear_backward_weight(backend, &d_output, 1, d_y, arrays.o));
    SR_TRY(attend_back(layer, &d, gradients, &arrays, weights));
    SR_TRY(place_back(layer, &d, gradients, &arrays, weights));
    return project_back(layer, &d, d_x, gradients, x, weights);
}
