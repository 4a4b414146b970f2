/* attention_backward.c: one attention layer, backward. */
#include "attention/kernel.h"
#include "model/layer/context/crossing.h"
#include "model/layer/rwkv7.h"

/* What one call is about. */
typedef struct back {
    sr_attention_layer *layer;
    sr_layer_arrays in, d; /* what forward left; the gradients of it */
    const sr_layer_weights *weights;
    const sr_layer_pointers *gradients;
    const sr_layer_piece *piece;
} back;

static void linear_gradients(sr_linear_gradient *out, const back *b) {
    const sr_layer_wiring *w = &b->layer->wiring;
    for (int i = 0; i < w->linear_count; i++) {
        const sr_wire_linear *l = &w->linears[i];
        const sr_wire_projection *p = &w->projections[l->projection];
        const int64_t in = p->from_input ? b->layer->dims.C : p->from.count;
        out[i] =
            (sr_linear_gradient){(float *)b->gradients->slot[p->weight] + l->row * in,
                                 l->bias < 0 ? NULL : b->gradients->slot[l->bias], l->to.count};
    }
}

static sr_matrix columns(sr_matrix m, sr_columns c) {
    return sr_matrix_columns(m, c.first, c.count);
}

/* A gradient until it is added to those that exist already. */
static sr_matrix share_of(const back *b, int64_t count) {
    return sr_matrix_of(b->d.share, b->d.projected.rows, count, b->layer->backend->number);
}

/* One product whose input is made of columns of `projected`. */
static srnn_status inner_back(const back *b, const sr_linear *linear,
                              const sr_linear_gradient *d_linear, const sr_wire_linear *wire) {
    sr_backend *backend = b->layer->backend;
    const sr_wire_projection *p = &b->layer->wiring.projections[wire->projection];
    const sr_matrix d_out = columns(b->d.projected, wire->to);
    const sr_matrix d_from = columns(b->d.projected, p->from);
    const sr_matrix d_in = p->shared ? share_of(b, p->from.count) : d_from;
    const sr_matrix in = columns(b->in.projected, p->from);
    const sr_linear_backward call = {d_in, d_out, in, linear, d_linear, 1};
    SR_TRY(backend->linear_backward(backend, &call));
    return p->shared ? backend->add_rows(backend, d_from, d_in) : SRNN_OK;
}

/* From the gradients of the projections of the input to those of x and of their weights, through
 * activations and token shifts. */
static srnn_status shifts_back(const back *b, sr_matrix d_x, sr_matrix x, const sr_linear *linears,
                               const sr_linear_gradient *d_linears) {
    sr_attention_layer *layer = b->layer;
    sr_backend *backend = layer->backend;
    const sr_layer_wiring *w = &layer->wiring;
    const size_t wide = (size_t)(x.rows * layer->dims.C) * sizeof(float);
    const size_t shifts = (size_t)w->shift_count, taps = 2 * (size_t)layer->dims.C * sizeof(float);
    SR_TRY(sr_device_zero(backend->device, b->d.shifted.data, shifts * wide));
    SR_TRY(sr_device_zero(backend->device, b->d.taps, shifts * taps));
    SR_TRY(sr_device_zero(backend->device, d_x.data, wide));
    for (int i = 0; i < w->input_linears; i++) {
        const sr_wire_projection *p = &w->projections[w->linears[i].projection];
        const sr_matrix d_out = columns(b->d.projected, w->linears[i].to);
        const sr_matrix d_in = share_of(b, layer->dims.C);
        sr_rwkv7_activate_backward(d_out, columns(b->in.projected, w->linears[i].to),
                                   p->activation);
        const sr_matrix in = sr_layer_shifted(layer, &b->in, x, p->shift);
        const sr_linear_backward call = {d_in, d_out, in, &linears[i], &d_linears[i], 1};
        SR_TRY(backend->linear_backward(backend, &call));
        SR_TRY(backend->add_rows(backend, sr_layer_shifted(layer, &b->d, d_x, p->shift), d_in));
    }
    SR_TRY(sr_crossing_shifts_begin(layer, b->piece));
    for (int i = 0; i < w->shift_count; i++) {
        const sr_short_conv shift = sr_rwkv7_shift(layer, &b->in, x, b->piece, i);
        const sr_matrix d_in = share_of(b, layer->dims.C);
        const sr_matrix d_out = sr_layer_shifted(layer, &b->d, d_x, i + 1);
        SR_TRY(backend->short_conv_backward(backend, d_in, b->d.taps + i * 2 * layer->dims.C, NULL,
                                            d_out, &shift));
        SR_TRY(sr_crossing_shift_back(layer, d_out, &shift, b->piece));
        SR_TRY(backend->add_rows(backend, d_x, d_in));
    }
    SR_TRY(sr_crossing_shifts_end(layer, d_x, b->piece));
    sr_rwkv7_taps_backward(layer, &b->d, b->gradients);
    return SRNN_OK;
}

/* From the gradients of all projections to those of their input and of their weights. */
static srnn_status project_back(const back *b, sr_matrix d_input, sr_matrix input) {
    sr_backend *backend = b->layer->backend;
    const sr_layer_wiring *w = &b->layer->wiring;
    sr_linear linears[SR_WIRE_LINEARS];
    sr_linear_gradient d_linears[SR_WIRE_LINEARS];
    sr_layer_linears(linears, b->layer, b->weights, 0, w->linear_count);
    linear_gradients(d_linears, b);
    SR_TRY(sr_layer_scale_parts(b->layer, &b->d));
    for (int i = w->linear_count - 1; i >= w->input_linears; i--)
        SR_TRY(inner_back(b, &linears[i], &d_linears[i], &w->linears[i]));
    if (w->shift_count)
        return shifts_back(b, d_input, input, linears, d_linears);
    const sr_wire_linear *last = &w->linears[w->input_linears - 1];
    const sr_matrix d_out = sr_matrix_columns(b->d.projected, 0, last->to.first + last->to.count);
    return backend->linear_backward(backend, &(sr_linear_backward){d_input, d_out, input, linears,
                                                                   d_linears, w->input_linears});
}

/* The equation writes the gradients of its small tensors; the layer adds them up. */
static srnn_status add_small(const back *b) {
    sr_backend *backend = b->layer->backend;
    for (int n = 0; n < SR_OPERANDS; n++) {
        const int64_t numbers = b->layer->wiring.learned[n];
        if (numbers)
            SR_TRY(backend->add(backend, b->gradients->slot[sr_layer_operand_slot((sr_operand)n)],
                                b->d.learned[n], numbers));
    }
    return SRNN_OK;
}

/* From the gradient of o to those of everything that the equation read. `position`: of q and k, and
 * whether their gradients are freed of it. */
static srnn_status attend_back(const back *b, sr_rope_inverse *position) {
    sr_attention_layer *layer = b->layer;
    const srnn_operands in = sr_layer_operands(layer, &b->in, b->weights, layer->T);
    srnn_operands out = sr_layer_operands(layer, &b->d, b->weights, layer->T);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (layer->wiring.learned[which])
            sr_operand_place((sr_operand)which, &out, b->d.learned[which]);
    if (b->piece->crossing) {
        SR_TRY(sr_crossing_attend_back(layer, &out, &b->d, &in, &b->in, b->piece));
        return add_small(b);
    }
    if (sr_layer_rope_is_plain(layer))
        position->rope = (sr_rope_angles){layer->rope_table, layer->positions};
    SR_TRY(sr_attention_rope_backward(layer->plan, &out, sr_layer_output(layer, &b->d, layer->T),
                                      &in, b->in.attention, position));
    return add_small(b);
}

static srnn_status conv_back(const back *b, int which) {
    sr_backend *backend = b->layer->backend;
    const sr_wire_conv *wire = &b->layer->wiring.convs[which];
    const sr_short_conv conv = sr_layer_conv(b->layer, &b->in, b->weights, b->piece, which);
    const sr_matrix d_from = columns(b->d.projected, wire->from);
    const sr_matrix d_x = wire->shared ? share_of(b, wire->from.count) : d_from;
    const sr_matrix d_out = columns(b->d.convolved, wire->to);
    SR_TRY(backend->short_conv_backward(backend, d_x, b->gradients->slot[wire->weight],
                                        b->gradients->slot[wire->weight + 1], d_out, &conv));
    SR_TRY(sr_crossing_conv_back(b->layer, d_x, d_out, &conv, b->piece, which));
    return wire->shared ? backend->add_rows(backend, d_from, d_x) : SRNN_OK;
}

static srnn_status norm_qk_back(const back *b) {
    sr_backend *backend = b->layer->backend;
    const sr_wire_norm *norms = b->layer->wiring.norms;
    for (int n = 0; n < 2 && norms[n].name; n++) {
        const sr_norm norm = sr_layer_qk_norm(b->layer, &b->in, b->weights, n);
        const sr_norm_gradient out = {.d_x = columns(b->d.projected, norms[n].from),
                                      .d_weight = b->gradients->slot[norms[n].weight],
                                      .scratch = b->d.parts};
        SR_TRY(backend->norm_backward(backend, &out, columns(b->d.convolved, norms[n].to), &norm));
    }
    return SRNN_OK;
}

/* Norm, RoPE and scale of q and k. */
static srnn_status place_qk_back(const back *b, bool rope_inverted) {
    const sr_attention_layer *layer = b->layer;
    const bool norm_last = layer->attention.wiring.qk_norm == SRNN_QK_NORM_HEAD_ROTATED;
    const float factor = sr_layer_q_factor(layer);
    if (factor != 1.0f)
        SR_TRY(layer->backend->scale(layer->backend, sr_layer_q(layer, &b->d), factor));
    if (norm_last)
        SR_TRY(norm_qk_back(b));
    if (!rope_inverted)
        SR_TRY(sr_layer_rope(layer, &b->d, layer->positions, true));
    return norm_last ? SRNN_OK : norm_qk_back(b);
}

/* From the gradients of operands to those of their projections: position and convolutions, of which
 * those that write come before those that add. */
static srnn_status place_back(const back *b, bool rope_inverted) {
    const sr_layer_wiring *w = &b->layer->wiring;
    SR_TRY(place_qk_back(b, rope_inverted));
    for (int adds = 0; adds < 2; adds++)
        for (int i = 0; i < w->conv_count; i++)
            if (w->convs[i].shared == (adds == 1))
                SR_TRY(conv_back(b, i));
    return SRNN_OK;
}

/* The layer's own norm, and the residual around it. */
static srnn_status own_norm_back(const back *b, sr_matrix d_x, sr_matrix d_y, sr_matrix x) {
    sr_backend *backend = b->layer->backend;
    const sr_rmsnorm norm = sr_layer_own_norm(b->layer, &b->in, x, b->weights);
    float *wide = sr_layer_input_as_float(b->layer, &b->d, d_x);
    const sr_rmsnorm_gradient out = {.d_x = wide,
                                     .narrow = d_x.data,
                                     .d_weight = b->gradients->slot[SR_LAYER_OWN_NORM],
                                     .scratch = b->d.parts};
    SR_TRY(backend->widen(backend, wide, d_y.data, x.rows * x.columns));
    return backend->rmsnorm_backward(backend, &out, b->d.normed.data, &norm);
}

/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_attention_layer_backward(sr_attention_layer *layer, sr_matrix d_x,
                                        const sr_layer_pointers *gradients, sr_matrix d_y,
                                        sr_matrix x, const sr_layer_weights *weights, void *saved,
                                        void *scratch, const sr_layer_crossing *crossing) {
    sr_backend *backend = layer->backend;
    const void *history[SR_FORM_CONVS];
    const sr_layer_piece piece = sr_crossing_piece(layer, crossing, x.rows, history);
    const back b = {.layer = layer,
                    .in = sr_layer_arrays_at(layer, &layer->saved, saved, x.rows),
                    .d = sr_layer_arrays_at(layer, &layer->scratch, scratch, x.rows),
                    .weights = weights,
                    .gradients = gradients,
                    .piece = &piece};
    const sr_linear output = sr_layer_output_linear(weights, d_y.columns);
    const sr_linear_gradient d_output = {gradients->slot[SR_LAYER_OUTPUT],
                                         gradients->slot[SR_LAYER_OUTPUT + 1], output.N};
    const bool own_norm = layer->wiring.form->own_norm != NULL;
    SR_TRY(backend->linear_backward(backend, &(sr_linear_backward){b.d.o, d_y, b.in.o, &output,
                                                                   &d_output, 1}));
    sr_rope_inverse position = {0};
    SR_TRY(attend_back(&b, &position));
    SR_TRY(place_back(&b, position.done));
    sr_rwkv7_make_backward(layer, &b.d, &b.in, weights, gradients);
    SR_TRY(project_back(&b, own_norm ? b.d.normed : d_x, sr_layer_input(layer, &b.in, x)));
    return own_norm ? own_norm_back(&b, d_x, d_y, x) : SRNN_OK;
}
