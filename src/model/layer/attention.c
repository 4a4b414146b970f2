/* attention.c: one attention layer: how it is made, and forward. */
#include "model/layer/attention.h"

#include "base/memory.h"
#include "model/layer/context/crossing.h"
#include "model/layer/context/heads.h"
#include "model/layer/context/ring.h"
#include "model/layer/rwkv7.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t size) {
    const size_t start = *bytes;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* Where each array stands in the saved bytes. */
static void lay_out_saved(sr_attention_layer *layer) {
    const size_t tokens = (size_t)layer->B * (size_t)layer->T;
    const size_t rows = tokens * sr_element_bytes(layer->backend->number);
    const size_t own = layer->wiring.form->own_norm ? 1 : 0;
    const size_t wide = layer->backend->number == SRNN_F32 ? 0 : own;
    sr_layer_layout *s = &layer->saved;
    s->projected = take(&s->bytes, rows * (size_t)layer->stride);
    s->convolved = take(&s->bytes, rows * (size_t)layer->wiring.convolved);
    s->o = take(&s->bytes, rows * (size_t)layer->wiring.output);
    const size_t shifted = (size_t)layer->wiring.shift_count * (size_t)layer->dims.C;
    s->shifted = take(&s->bytes, rows * shifted);
    s->taps = take(&s->bytes, 2 * shifted * sizeof(float));
    s->normed = take(&s->bytes, own * rows * (size_t)layer->dims.C);
    s->wide = take(&s->bytes, wide * tokens * (size_t)layer->dims.C * sizeof(float));
    s->rstd = take(&s->bytes, own * tokens * sizeof(float));
    s->attention = take(&s->bytes, layer->heads  ? sr_heads_saved_bytes(layer->heads)
                                   : layer->plan ? srnn_plan_saved_bytes(layer->plan)
                                                 : 0);
}

/* Numbers of one part of the gradients of norms. */
static size_t part_columns(const sr_attention_layer *layer) {
    const sr_wire_norm *q = &layer->wiring.norms[0];
    if (q->name)
        return 2 * (size_t)q->from.count;
    return layer->wiring.form->own_norm ? (size_t)layer->dims.C : 0;
}

/* Backward's scratch has the gradient of each saved array in the same place, then
 * temporary arrays. */
static void lay_out_scratch(sr_attention_layer *layer) {
    const size_t rows =
        (size_t)layer->B * (size_t)layer->T * sr_element_bytes(layer->backend->number);
    sr_layer_layout *s = &layer->scratch;
    *s = layer->saved;
    s->bytes = s->attention;
    for (int which = 0; which < SR_OPERANDS; which++)
        s->learned[which] = take(&s->bytes, (size_t)layer->wiring.learned[which] * sizeof(float));
    s->share = take(&s->bytes, rows * (size_t)layer->shared_columns);
    s->parts = take(&s->bytes, SR_ROW_PARTS * part_columns(layer) * sizeof(float));
    s->state = take(&s->bytes, layer->crossing.each.state);
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
    const int width = sr_layer_rope_width(&setup->attention, d->D);
    if (rope && (width < 2 || width % 2))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "rotary position needs an even head width, not %d; use position=none",
                       width);
    const int T = setup->part ? setup->part->T : setup->T;
    if (rope && setup->rope_positions < T)
        return SR_FAIL(SRNN_ERR_LIMIT, "%d tokens are more than the model's %lld positions", T,
                       (long long)setup->rope_positions);
    return SRNN_OK;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void measure(sr_attention_layer *layer) {
    enum { ROW_NUMBERS = 16 }; /* rows start where copies of 16 bytes may */
    const sr_layer_wiring *w = &layer->wiring;
    layer->stride = (w->projected + ROW_NUMBERS - 1) / ROW_NUMBERS * ROW_NUMBERS;
    for (int i = w->input_count; i < w->projection_count; i++)
        if (w->projections[i].shared)
            layer->shared_columns = larger(layer->shared_columns, w->projections[i].from.count);
    for (int i = 0; i < w->conv_count; i++)
        if (w->convs[i].shared)
            layer->shared_columns = larger(layer->shared_columns, w->convs[i].from.count);
    if (w->shift_count)
        layer->shared_columns = larger(layer->shared_columns, layer->dims.C);
}

static void set_problem(sr_attention_layer *layer, const sr_layer_setup *setup) {
    srnn_problem *p = &layer->problem;
    *p = sr_layer_problem(&setup->attention, &setup->dims);
    p->dtype = layer->backend->number;
    p->B = setup->B;
    p->T = setup->T;
    p->offsets = setup->offsets;
    p->documents = setup->documents;
    p->form = setup->form;
    p->chunk = setup->chunk;
    p->kernel = setup->kernel;
    p->threads = layer->backend->threads;
    p->state_limit = setup->state_limit;
    p->rope_theta = setup->rope_theta;
    p->device = layer->backend->device;
}

static srnn_status fill(sr_attention_layer *layer, const sr_layer_setup *setup) {
    const sr_layer_dims *d = &setup->dims;
    layer->attention = setup->attention;
    layer->dims = *d;
    layer->B = setup->B;
    layer->T = setup->T;
    layer->rope_table = setup->rope_table;
    layer->rope_positions = setup->rope_positions;
    layer->positions = setup->positions;
    layer->first_values = setup->first_values;
    layer->d_first_values = setup->d_first_values;
    layer->first_columns = setup->first_columns;
    if (setup->part)
        layer->part = *setup->part;
    SR_TRY(sr_layer_wire(&layer->wiring, &setup->attention, d));
    SR_TRY(sr_rwkv7_check(layer));
    if (layer->wiring.input_linears > SR_LINEAR_GROUP_MAX)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a layer projects its input to at most %d matrices",
                       SR_LINEAR_GROUP_MAX);
    measure(layer);
    set_problem(layer, setup);
    SR_TRY(sr_crossing_lay_out(layer));
    /* What is fed by pieces has a state in place of a plan, and the kernels of states. */
    if (setup->positions)
        SR_TRY(sr_crossing_open(layer));
    /* A backend that rounds operands of its own products does so with those of attention; rings of
     * ranks add keys in float. */
    if (setup->positions && layer->part.count <= 1 && layer->backend->product == SRNN_BF16)
        SR_TRY(sr_plan_round(layer->plan));
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
    sr_ring_free(layer->ring);
    sr_heads_free(layer->heads);
    free(layer);
}

srnn_status sr_attention_layer_documents(sr_attention_layer *layer, const sr_documents *documents) {
    if (layer->heads)
        return sr_heads_documents(layer->heads, documents);
    SR_TRY(srnn_plan_documents(layer->plan, documents->offsets, documents->count));
    if (layer->part.count > 1)
        sr_plan_continue(layer->plan, documents->before, layer->part.first);
    return SRNN_OK;
}

size_t sr_attention_layer_saved_bytes(const sr_attention_layer *layer) {
    return layer->saved.bytes;
}

size_t sr_attention_layer_scratch_bytes(const sr_attention_layer *layer) {
    return layer->scratch.bytes;
}

size_t sr_attention_layer_crossing_bytes(const sr_attention_layer *layer) {
    return layer->crossing.bytes;
}

size_t sr_attention_layer_own_bytes(const sr_attention_layer *layer) {
    if (layer->heads)
        return sr_heads_bytes(layer->heads);
    return srnn_plan_scratch_bytes(layer->plan) + (layer->ring ? sr_ring_bytes(layer->ring) : 0);
}

bool sr_attention_layer_takes_codes(const sr_attention_layer *layer,
                                    const sr_layer_weights *weights, int64_t rows) {
    const sr_layer_wiring *w = &layer->wiring;
    sr_linear linears[SR_WIRE_LINEARS];
    if (w->form->own_norm || w->shift_count)
        return false;
    sr_layer_linears(linears, layer, weights, 0, w->input_linears);
    return layer->backend->takes_codes(layer->backend, linears, w->input_linears, rows,
                                       layer->dims.C);
}

srnn_status sr_attention_layer_attend(sr_attention_layer *layer, sr_matrix x,
                                      const sr_layer_weights *weights, void *saved,
                                      const sr_layer_crossing *crossing) {
    const void *history[SR_FORM_CONVS];
    const sr_layer_piece piece = sr_crossing_piece(layer, crossing, x.rows, history);
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, saved, x.rows);
    SR_TRY(sr_layer_project(layer, &arrays, x, weights, &piece));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, layer->T);
    return sr_crossing_attend(layer, &arrays, &in, &piece);
}

sr_linear sr_layer_output_linear(const sr_layer_weights *weights, int64_t N) {
    return (sr_linear){weights->working->slot[SR_LAYER_OUTPUT],
                       weights->master->slot[SR_LAYER_OUTPUT + 1], N, weights->narrow, true};
}

bool sr_attention_layer_takes_gradient_codes(const sr_attention_layer *layer,
                                             const sr_layer_weights *weights, int64_t rows) {
    const sr_linear output = sr_layer_output_linear(weights, layer->dims.C);
    return !layer->wiring.form->own_norm && !output.bias &&
           layer->backend->takes_codes(layer->backend, &output, 1, rows, layer->wiring.output);
}

srnn_status sr_attention_layer_finish(sr_attention_layer *layer, sr_matrix y, sr_matrix addend,
                                      sr_matrix x, const sr_layer_weights *weights, void *saved) {
    sr_backend *backend = layer->backend;
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, saved, y.rows);
    const sr_linear output = sr_layer_output_linear(weights, y.columns);
    SR_TRY(backend->linear_forward(backend, y, addend, arrays.o, &output, 1));
    return layer->wiring.form->own_norm
               ? backend->add(backend, y.data, sr_layer_input_as_float(layer, &arrays, x),
                              y.rows * y.columns)
               : SRNN_OK;
}

srnn_operands sr_attention_layer_operands(const sr_attention_layer *layer, srnn_tensor *o,
                                          const sr_layer_weights *weights, void *saved) {
    const sr_layer_arrays arrays =
        sr_layer_arrays_at(layer, &layer->saved, saved, (int64_t)layer->B * layer->T);
    *o = sr_layer_output(layer, &arrays, layer->T);
    return sr_layer_operands(layer, &arrays, weights, layer->T);
}
