/* attention_parts.c: what forward, backward and feeding by pieces share. */
#include "model/layer/attention_parts.h"

#include "model/layer/context/crossing.h"
#include "model/layer/rwkv7.h"

/* Of the norm that a layer brings along. */
static const float OWN_NORM_EPSILON = 1e-5f;

sr_layer_arrays sr_layer_arrays_at(const sr_attention_layer *layer, const sr_layer_layout *layout,
                                   void *base, int64_t rows) {
    char *bytes = base;
    const srnn_dtype number = layer->backend->number;
    const sr_layer_wiring *w = &layer->wiring;
    sr_layer_arrays arrays = {
        .projected = {.data = bytes + layout->projected,
                      .rows = rows,
                      .columns = w->projected,
                      .stride = layer->stride,
                      .dtype = number},
        .convolved = sr_matrix_of(bytes + layout->convolved, rows, w->convolved, number),
        .o = sr_matrix_of(bytes + layout->o, rows, w->output, number),
        .normed = sr_matrix_of(bytes + layout->normed, rows, layer->dims.C, number),
        .wide = (float *)(void *)(bytes + layout->wide),
        .shifted = sr_matrix_of(bytes + layout->shifted, rows,
                                (int64_t)w->shift_count * layer->dims.C, number),
        .taps = (float *)(void *)(bytes + layout->taps),
        .rstd = (float *)(void *)(bytes + layout->rstd),
        .attention = bytes + layout->attention,
        .share = bytes + layout->share,
        .parts = (float *)(void *)(bytes + layout->parts),
        .state = bytes + layout->state,
    };
    for (int which = 0; which < SR_OPERANDS; which++)
        arrays.learned[which] = (float *)(void *)(bytes + layout->learned[which]);
    return arrays;
}

void sr_layer_linears(sr_linear *linears, const sr_attention_layer *layer,
                      const sr_layer_weights *weights, int first, int count) {
    const sr_layer_wiring *w = &layer->wiring;
    for (int i = 0; i < count; i++) {
        const sr_wire_linear *l = &w->linears[first + i];
        const sr_wire_projection *p = &w->projections[l->projection];
        const int64_t in = p->from_input ? layer->dims.C : p->from.count;
        linears[i] = (sr_linear){sr_number_at(weights->working->slot[p->weight], l->row * in,
                                              weights->narrow ? SRNN_BF16 : layer->backend->number),
                                 l->bias < 0 ? NULL : weights->master->slot[l->bias], l->to.count,
                                 weights->narrow, true};
    }
}

static sr_matrix columns(sr_matrix m, sr_columns c) {
    return sr_matrix_columns(m, c.first, c.count);
}

/* ---- position */

static sr_matrix place_of(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                          sr_operand which) {
    const sr_wire_place *place = &layer->wiring.places[which];
    return columns(place->convolved ? arrays->convolved : arrays->projected, place->at);
}

static sr_rope rope_of(const sr_attention_layer *layer, int64_t columns, const int32_t *positions) {
    return (sr_rope){.table = layer->rope_table,
                     .positions = positions,
                     .heads = (int)(columns / layer->dims.D),
                     .D = layer->dims.D,
                     .width = sr_layer_rope_width(&layer->attention, layer->dims.D),
                     .neighbours =
                         layer->attention.wiring.rope_pairs == SRNN_ROPE_PAIRS_NEIGHBOURS};
}

bool sr_layer_rope_is_plain(const sr_attention_layer *layer) {
    const srnn_wiring *w = &layer->attention.wiring;
    return layer->attention.position == SRNN_POSITION_ROPE &&
           sr_layer_rope_width(&layer->attention, layer->dims.D) == layer->dims.D &&
           w->rope_pairs == SRNN_ROPE_PAIRS_HALVES && w->qk_norm != SRNN_QK_NORM_HEAD_ROTATED;
}

/* Where q or k stands when RoPE is applied. */
static sr_matrix rope_place(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            sr_operand which) {
    const sr_wire_norm *norm = &layer->wiring.norms[which == SR_OPERAND_K];
    return layer->attention.wiring.qk_norm == SRNN_QK_NORM_HEAD_ROTATED
               ? columns(arrays->projected, norm->from)
               : place_of(layer, arrays, which);
}

static srnn_status apply_rope(const sr_attention_layer *layer, sr_matrix x,
                              const int32_t *positions, bool back) {
    sr_backend *backend = layer->backend;
    const sr_rope rope = rope_of(layer, x.columns, positions);
    return back ? backend->rope_backward(backend, x, &rope)
                : backend->rope_forward(backend, x, &rope);
}

srnn_status sr_layer_rope(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                          const int32_t *positions, bool back) {
    const sr_wire_place *q = &layer->wiring.places[SR_OPERAND_Q];
    const sr_wire_place *k = &layer->wiring.places[SR_OPERAND_K];
    sr_matrix first = rope_place(layer, arrays, SR_OPERAND_Q);
    if (layer->attention.position != SRNN_POSITION_ROPE)
        return SRNN_OK;
    if (q->convolved == k->convolved && q->at.first + q->at.count == k->at.first) {
        first.columns += k->at.count; /* they follow each other */
        return apply_rope(layer, first, positions, back);
    }
    SR_TRY(apply_rope(layer, first, positions, back));
    return apply_rope(layer, rope_place(layer, arrays, SR_OPERAND_K), positions, back);
}

/* ---- norms and scale of q and k */

sr_norm sr_layer_qk_norm(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                         const sr_layer_weights *weights, int which) {
    const sr_wire_norm *norm = &layer->wiring.norms[which];
    const bool per_head = layer->attention.wiring.qk_norm == SRNN_QK_NORM_LAYER;
    return (sr_norm){.x = columns(arrays->projected, norm->from),
                     .weight = weights->master->slot[norm->weight],
                     .groups = norm->groups,
                     .C = norm->from.count / norm->groups,
                     .own_weights = per_head,
                     .subtract_mean = per_head,
                     .offset = layer->dims.norm_is_minus_one ? 1.0f : 0.0f,
                     .epsilon = (float)layer->dims.norm_epsilon};
}

static srnn_status norm_qk(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                           const sr_layer_weights *weights) {
    const sr_wire_norm *norms = layer->wiring.norms;
    for (int n = 0; n < 2 && norms[n].name; n++) {
        const sr_norm norm = sr_layer_qk_norm(layer, arrays, weights, n);
        SR_TRY(layer->backend->norm_forward(layer->backend, columns(arrays->convolved, norms[n].to),
                                            &norm));
    }
    return SRNN_OK;
}

float sr_layer_q_factor(const sr_attention_layer *layer) {
    const double scale = layer->attention.wiring.softmax_scale;
    return scale == 0 ? 1.0f : (float)(scale / sr_scale_factor(&layer->attention, layer->dims.D));
}

sr_matrix sr_layer_q(const sr_attention_layer *layer, const sr_layer_arrays *arrays) {
    return place_of(layer, arrays, SR_OPERAND_Q);
}

static srnn_status scale_q(const sr_attention_layer *layer, const sr_layer_arrays *arrays) {
    const float factor = sr_layer_q_factor(layer);
    return factor == 1.0f
               ? SRNN_OK
               : layer->backend->scale(layer->backend, sr_layer_q(layer, arrays), factor);
}

/* Norm and RoPE, in the order of the layer. RoPE is left out where `rope_applied` is there to say
 * so. */
static srnn_status place_qk(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_weights *weights, const sr_layer_piece *piece) {
    const bool norm_last = layer->attention.wiring.qk_norm == SRNN_QK_NORM_HEAD_ROTATED;
    if (!norm_last)
        SR_TRY(norm_qk(layer, arrays, weights));
    if (piece->rope_applied)
        *piece->rope_applied = false;
    else
        SR_TRY(sr_layer_rope(layer, arrays, piece->positions, false));
    return norm_last ? norm_qk(layer, arrays, weights) : SRNN_OK;
}

/* ---- from x to operands */

sr_short_conv sr_layer_conv(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            const sr_layer_weights *weights, const sr_layer_piece *piece,
                            int which) {
    const sr_wire_conv *conv = &layer->wiring.convs[which];
    return (sr_short_conv){.x = columns(arrays->projected, conv->from),
                           .weight = weights->master->slot[conv->weight],
                           .bias = weights->master->slot[conv->weight + 1],
                           .positions = piece->positions,
                           .width = conv->width,
                           .plain = conv->plain,
                           .T = piece->T,
                           .history = piece->history ? piece->history[which] : NULL};
}

sr_matrix sr_layer_shifted(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                           sr_matrix x, int shift) {
    const int64_t C = layer->dims.C;
    return shift ? sr_matrix_columns(arrays->shifted, (shift - 1) * C, C) : x;
}

sr_matrix sr_layer_input(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                         sr_matrix x) {
    return layer->wiring.form->own_norm ? arrays->normed : x;
}

float *sr_layer_input_as_float(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                               sr_matrix x) {
    return layer->backend->number == SRNN_F32 ? x.data : arrays->wide;
}

sr_rmsnorm sr_layer_own_norm(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                             sr_matrix x, const sr_layer_weights *weights) {
    return (sr_rmsnorm){.x = sr_layer_input_as_float(layer, arrays, x),
                        .weight = weights->master->slot[SR_LAYER_OWN_NORM],
                        .rstd = arrays->rstd,
                        .epsilon = OWN_NORM_EPSILON,
                        .rows = x.rows,
                        .C = layer->dims.C};
}

/* Whether q and k are the first columns of what the input is projected to, with nothing between
 * that and RoPE. */
static bool rope_at_once(const sr_attention_layer *layer) {
    const sr_layer_wiring *w = &layer->wiring;
    const sr_wire_place *q = &w->places[SR_OPERAND_Q], *k = &w->places[SR_OPERAND_K];
    return sr_layer_rope_is_plain(layer) && !q->convolved && !k->convolved && q->at.first == 0 &&
           k->at.first == q->at.count && w->linear_count == w->input_linears;
}

/* The projections of what x is the norm of; with RoPE applied to q and k where one kernel does
 * both. */
static srnn_status multiply_norm(sr_attention_layer *layer, sr_matrix y, sr_matrix x,
                                 const sr_linear *linears, const sr_layer_piece *piece) {
    const sr_layer_wiring *w = &layer->wiring;
    const int64_t rope_columns =
        w->places[SR_OPERAND_Q].at.count + w->places[SR_OPERAND_K].at.count;
    const sr_rope rope = rope_of(layer, rope_columns, piece->positions);
    const sr_norm_linear of = {
        *piece->norm,       x.data, linears, w->input_linears, rope_at_once(layer) ? &rope : NULL,
        piece->rope_applied};
    return layer->backend->norm_linear_forward(layer->backend, y, &of);
}

/* Projections of what came out of others, one by one. */
static srnn_status multiply_inner(sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                  const sr_linear *linears) {
    const sr_layer_wiring *w = &layer->wiring;
    sr_backend *backend = layer->backend;
    for (int i = w->input_linears; i < w->linear_count; i++) {
        const sr_wire_linear *wire = &w->linears[i];
        const sr_matrix y = columns(arrays->projected, wire->to);
        const sr_matrix x = columns(arrays->projected, w->projections[wire->projection].from);
        SR_TRY(backend->linear_forward(backend, y, (sr_matrix){0}, x, &linears[i], 1));
    }
    return SRNN_OK;
}

/* Token shifts of the input, and the projections of each. */
static srnn_status multiply_shifted(sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                    sr_matrix x, const sr_layer_weights *weights,
                                    const sr_layer_piece *piece) {
    sr_backend *backend = layer->backend;
    const sr_layer_wiring *w = &layer->wiring;
    sr_linear linears[SR_WIRE_LINEARS];
    sr_layer_linears(linears, layer, weights, 0, w->linear_count);
    if (piece->norm)
        SR_TRY(backend->rmsnorm_forward(backend, x.data, piece->norm));
    sr_rwkv7_taps(layer, arrays, weights);
    SR_TRY(sr_crossing_shift(layer, arrays, x, piece));
    for (int i = 0; i < w->shift_count; i++) {
        const sr_short_conv shift = sr_rwkv7_shift(layer, arrays, x, piece, i);
        SR_TRY(backend->short_conv_forward(backend, sr_layer_shifted(layer, arrays, x, i + 1),
                                           &shift));
    }
    for (int i = 0; i < w->input_linears; i++) {
        const sr_wire_projection *p = &w->projections[w->linears[i].projection];
        const sr_matrix y = columns(arrays->projected, w->linears[i].to);
        SR_TRY(backend->linear_forward(backend, y, (sr_matrix){0},
                                       sr_layer_shifted(layer, arrays, x, p->shift), &linears[i],
                                       1));
        sr_rwkv7_activate(y, p->activation);
    }
    return multiply_inner(layer, arrays, linears);
}

/* Projections of the input in one call; then those of what came out, one by one. */
static srnn_status multiply(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                            const sr_layer_weights *weights, const sr_layer_piece *piece) {
    sr_backend *backend = layer->backend;
    const sr_layer_wiring *w = &layer->wiring;
    sr_linear linears[SR_WIRE_LINEARS];
    sr_layer_linears(linears, layer, weights, 0, w->linear_count);
    const sr_wire_linear *last = &w->linears[w->input_linears - 1];
    const sr_matrix y = sr_matrix_columns(arrays->projected, 0, last->to.first + last->to.count);
    SR_TRY(piece->norm && !w->form->own_norm
               ? multiply_norm(layer, y, x, linears, piece)
               : backend->linear_forward(backend, y, (sr_matrix){0}, x, linears, w->input_linears));
    return multiply_inner(layer, arrays, linears);
}

/* normed = the layer's own norm of x, of which it keeps a float copy where x is none. */
static srnn_status norm_input(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                              sr_matrix x, const sr_layer_weights *weights) {
    sr_backend *backend = layer->backend;
    const sr_rmsnorm norm = sr_layer_own_norm(layer, arrays, x, weights);
    if (backend->number != SRNN_F32)
        SR_TRY(backend->widen(backend, arrays->wide, x.data, x.rows * x.columns));
    return backend->rmsnorm_forward(backend, arrays->normed.data, &norm);
}

srnn_status sr_layer_scale_parts(const sr_attention_layer *layer, const sr_layer_arrays *arrays) {
    const sr_layer_wiring *w = &layer->wiring;
    for (int i = 0; i < w->factor_count; i++)
        SR_TRY(layer->backend->scale(layer->backend, columns(arrays->projected, w->factors[i].at),
                                     w->factors[i].factor));
    return SRNN_OK;
}

srnn_status sr_layer_project(sr_attention_layer *layer, const sr_layer_arrays *arrays, sr_matrix x,
                             const sr_layer_weights *weights, const sr_layer_piece *piece) {
    sr_backend *backend = layer->backend;
    const sr_layer_wiring *w = &layer->wiring;
    if (w->form->own_norm) {
        if (piece->norm)
            SR_TRY(backend->rmsnorm_forward(backend, x.data, piece->norm));
        SR_TRY(norm_input(layer, arrays, x, weights));
    }
    if (w->shift_count) {
        SR_TRY(multiply_shifted(layer, arrays, x, weights, piece));
        sr_rwkv7_make(layer, arrays, weights);
    } else {
        SR_TRY(multiply(layer, arrays, sr_layer_input(layer, arrays, x), weights, piece));
    }
    SR_TRY(sr_layer_scale_parts(layer, arrays));
    SR_TRY(sr_crossing_convs(layer, arrays, weights, piece));
    for (int i = 0; i < w->conv_count; i++) {
        const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, piece, i);
        SR_TRY(backend->short_conv_forward(backend, columns(arrays->convolved, w->convs[i].to),
                                           &conv));
    }
    if (!(piece->norm && !w->form->own_norm && rope_at_once(layer)))
        SR_TRY(place_qk(layer, arrays, weights, piece));
    return scale_q(layer, arrays);
}

/* ---- as the equation takes it */

/* Heads of `width` numbers each that stand side by side in the rows of a matrix. */
static srnn_tensor heads(sr_matrix m, int64_t T, int64_t width) {
    return (srnn_tensor){.data = m.data, .batch = T * m.stride, .head = width, .time = m.stride};
}

srnn_operands sr_layer_operands(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                                const sr_layer_weights *weights, int64_t T) {
    srnn_operands operands = {0};
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        if (layer->wiring.places[n].there)
            sr_operand_set_tensor(which, &operands,
                                  heads(place_of(layer, arrays, which), T,
                                        layer->wiring.places[n].width));
        if (layer->wiring.learned[n])
            sr_operand_place(which, &operands, weights->master->slot[sr_layer_operand_slot(which)]);
    }
    return operands;
}

srnn_tensor sr_layer_output(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                            int64_t T) {
    return heads(arrays->o, T, layer->problem.Dv);
}

void sr_attention_layer_place(sr_attention_layer *layer, const int32_t *positions) {
    layer->positions = positions;
}
