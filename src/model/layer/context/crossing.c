/* crossing.c: what crosses the ends of a part of a row in one layer. */
#include "model/layer/context/crossing.h"

#include "attention/earlier.h"
#include "attention/states.h"
#include "equation/facts.h"
#include "model/layer/context/heads.h"
#include "model/layer/context/ring.h"
#include "model/layer/rwkv7.h"

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t size) {
    const size_t start = *bytes;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static srnn_status check_width(const sr_row_part *part, int width) {
    const int shortest = part->T / part->count;
    return shortest >= width - 1
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_UNSUPPORTED,
                         "%d context ranks have parts of %d tokens of a row of %d, and a "
                         "convolution reads the %d tokens before: use fewer ranks or longer rows",
                         part->count, shortest, part->T, width - 1);
}

srnn_status sr_crossing_state_bytes(size_t *bytes, const srnn_problem *problem) {
    int64_t sizes[4];
    *bytes = 0;
    SR_TRY(sr_states_sizes(sizes, problem));
    *bytes = (size_t)(sizes[0] * sizes[1] * sizes[2] * sizes[3]) * sizeof(float);
    return SRNN_OK;
}

/* Whether a ring is faster than handing on states of this size: operations of a rank, and what it
 * sends, in the operations of the time that a byte takes between processes. */
static bool ring_pays(const srnn_problem *p, size_t state_bytes, sr_crossing_rows rows) {
    enum { OPERATIONS_PER_BYTE = 32, PASSES = 3 }; /* backward is about two forward passes */
    const int64_t half = (rows.T + 1) / 2, window = p->attention.window;
    const double tokens = (double)p->B * rows.T / rows.parts;
    const double numbers = (double)srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    const double heads = p->H + (sr_shares_queries(&p->attention) ? p->H : p->Hkv);
    const double keys = (double)(window && window < half ? window : half);
    const sr_ring_numbers ring = sr_ring_numbers_of(p, rows.T, rows.parts);
    const double sent = (ring.forward + ring.backward) * p->B / rows.parts * sizeof(float);
    const double by_pairs = 2.0 * p->H * (p->D + p->Dv) * keys * tokens * PASSES;
    const double by_states = 2.0 * numbers * heads * tokens * PASSES;
    return by_pairs + OPERATIONS_PER_BYTE * sent <
           by_states + OPERATIONS_PER_BYTE * 2.0 * (double)state_bytes;
}

/* Whether a kernel of the device takes states of earlier parts; others than those of the CPU count
 * a row's own tokens alone. */
static bool hands_states_on(const srnn_problem *problem) {
    int64_t sizes[4];
    const bool host = !problem->device || sr_device_is_host(problem->device);
    return (host ? sr_states_sizes(sizes, problem) : srnn_states_sizes(sizes, problem)) ==
               SRNN_OK &&
           sr_states_kernel(problem);
}

static bool has_ring(const srnn_problem *problem) {
    const bool host = !problem->device || sr_device_is_host(problem->device);
    return host && problem->dtype == SRNN_F32 && !sr_attention_earlier_refusal(&problem->attention);
}

/* A form that was requested decides between state and keys. */
static sr_context_way way_of(const srnn_problem *problem, size_t state_bytes,
                             sr_crossing_rows rows) {
    const bool states = problem->form != SRNN_FORM_PARALLEL && hands_states_on(problem);
    if (has_ring(problem) &&
        (!states || (problem->form == SRNN_FORM_AUTO && ring_pays(problem, state_bytes, rows))))
        return SR_CONTEXT_RING;
    return states ? SR_CONTEXT_STATE : SR_CONTEXT_HEADS;
}

void sr_crossing_measure(sr_crossing_bytes *bytes, const srnn_problem *problem,
                         const sr_layer_wiring *w, int C, sr_crossing_rows rows) {
    const size_t row = (size_t)problem->B * sr_element_bytes(problem->dtype);
    *bytes = (sr_crossing_bytes){.shift = w->shift_count ? row * (size_t)C : 0};
    for (int i = 0; i < w->conv_count; i++)
        bytes->convs[i] = row * (size_t)(w->convs[i].width - 1) * (size_t)w->convs[i].to.count;
    size_t state = 0;
    sr_crossing_state_bytes(&state, problem); /* 0 where there is none */
    bytes->way = way_of(problem, state, rows);
    bytes->state = bytes->way == SR_CONTEXT_STATE ? state : 0;
}

srnn_status sr_crossing_lay_out(sr_attention_layer *layer) {
    sr_crossing_layout *c = &layer->crossing;
    const sr_layer_wiring *w = &layer->wiring;
    if (layer->part.count < 2)
        return SRNN_OK;
    const sr_crossing_rows rows = {layer->part.T, layer->part.count};
    sr_crossing_measure(&c->each, &layer->problem, w, layer->dims.C, rows);
    if (c->each.way == SR_CONTEXT_RING)
        layer->problem.form = SRNN_FORM_PARALLEL;
    if (c->each.way == SR_CONTEXT_STATE) {
        layer->problem.form = SRNN_FORM_CHUNKED;
        layer->problem.kernel = sr_states_kernel(&layer->problem);
    }
    for (int i = 0; i < w->conv_count; i++)
        SR_TRY(check_width(&layer->part, w->convs[i].width));
    for (int side = 0; side < 2; side++) {
        c->state[side] = take(&c->bytes, c->each.state);
        c->shift[side] = take(&c->bytes, c->each.shift);
        for (int i = 0; i < w->conv_count; i++)
            c->convs[side][i] = take(&c->bytes, c->each.convs[i]);
    }
    return SRNN_OK;
}

srnn_status sr_crossing_open(sr_attention_layer *layer) {
    const bool divided = layer->part.count > 1;
    if (divided && layer->crossing.each.way == SR_CONTEXT_HEADS)
        return sr_heads_create(&layer->heads, layer);
    SR_TRY(srnn_plan_create(&layer->plan, &layer->problem));
    if (!divided)
        return SRNN_OK;
    sr_plan_continue(layer->plan, NULL, layer->part.first);
    return layer->crossing.each.way == SR_CONTEXT_RING ? sr_ring_create(&layer->ring, layer)
                                                       : SRNN_OK;
}

static void *at(const sr_layer_piece *piece, size_t start) {
    return (char *)piece->crossing->memory + start;
}

sr_layer_piece sr_crossing_piece(const sr_attention_layer *layer, const sr_layer_crossing *crossing,
                                 int64_t rows, const void *history[SR_FORM_CONVS]) {
    const sr_crossing_layout *c = &layer->crossing;
    sr_layer_piece piece = {.rows = rows, .T = layer->T, .positions = layer->positions};
    if (layer->part.count < 2)
        return piece;
    piece.crossing = crossing;
    for (int i = 0; i < layer->wiring.conv_count; i++)
        history[i] = at(&piece, c->convs[SR_NEIGHBOUR_BEFORE][i]);
    piece.history = history;
    if (c->each.shift)
        piece.shift_history = at(&piece, c->shift[SR_NEIGHBOUR_BEFORE]);
    return piece;
}

/* ---- messages; a part at an end of the row has one neighbour */

static srnn_status send(const sr_attention_layer *layer, sr_neighbour to, const void *data,
                        size_t bytes) {
    const sr_row_part *part = &layer->part;
    return sr_row_part_has(part, to) && bytes
               ? part->send(part->context, sr_row_part_next(part, to), data, bytes)
               : SRNN_OK;
}

static srnn_status receive(const sr_attention_layer *layer, sr_neighbour from, void *data,
                           size_t bytes) {
    const sr_row_part *part = &layer->part;
    return sr_row_part_has(part, from) && bytes
               ? part->receive(part->context, sr_row_part_next(part, from), data, bytes)
               : SRNN_OK;
}

/* What crosses is there from an earlier forward pass, or nothing crosses. */
static bool is_settled(const sr_layer_piece *piece) {
    return !piece->crossing || piece->crossing->known;
}

/* ---- the last inputs of convolutions */

static srnn_status send_history(const sr_attention_layer *layer, void *after, size_t bytes,
                                const sr_short_conv *conv) {
    if (bytes && sr_row_part_has(&layer->part, SR_NEIGHBOUR_AFTER))
        SR_TRY(layer->backend->short_conv_history(layer->backend, after, conv));
    return send(layer, SR_NEIGHBOUR_AFTER, after, bytes);
}

srnn_status sr_crossing_shift(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                              sr_matrix x, const sr_layer_piece *piece) {
    const sr_crossing_layout *c = &layer->crossing;
    if (is_settled(piece))
        return SRNN_OK;
    const sr_short_conv shift = sr_rwkv7_shift(layer, arrays, x, piece, 0);
    SR_TRY(send_history(layer, at(piece, c->shift[SR_NEIGHBOUR_AFTER]), c->each.shift, &shift));
    return receive(layer, SR_NEIGHBOUR_BEFORE, at(piece, c->shift[SR_NEIGHBOUR_BEFORE]),
                   c->each.shift);
}

/* All are sent before one is waited for. */
srnn_status sr_crossing_convs(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                              const sr_layer_weights *weights, const sr_layer_piece *piece) {
    const sr_crossing_layout *c = &layer->crossing;
    const int count = is_settled(piece) ? 0 : layer->wiring.conv_count;
    for (int i = 0; i < count; i++) {
        const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, piece, i);
        SR_TRY(send_history(layer, at(piece, c->convs[SR_NEIGHBOUR_AFTER][i]), c->each.convs[i],
                            &conv));
    }
    for (int i = 0; i < count; i++)
        SR_TRY(receive(layer, SR_NEIGHBOUR_BEFORE, at(piece, c->convs[SR_NEIGHBOUR_BEFORE][i]),
                       c->each.convs[i]));
    return SRNN_OK;
}

/* The two ends of a history: what was read of the part before, and what the part after read. In
 * backward both receive gradients. */
typedef struct ends {
    void *before, *after;
    size_t bytes;
} ends;

static ends shift_ends(const sr_attention_layer *layer, const sr_layer_piece *piece) {
    const sr_crossing_layout *c = &layer->crossing;
    return (ends){at(piece, c->shift[SR_NEIGHBOUR_BEFORE]), at(piece, c->shift[SR_NEIGHBOUR_AFTER]),
                  c->each.shift};
}

/* Sends the gradient of what was read of the part before, which was added up in e.after, and adds
 * that of what the part after read to d_x, in its last rows. */
static srnn_status exchange_back(const sr_attention_layer *layer, sr_matrix d_x, int64_t kept,
                                 ends e) {
    sr_backend *backend = layer->backend;
    if (sr_row_part_has(&layer->part, SR_NEIGHBOUR_BEFORE))
        SR_TRY(sr_device_copy(backend->device, e.before, e.after, e.bytes));
    SR_TRY(send(layer, SR_NEIGHBOUR_BEFORE, e.before, e.bytes));
    if (!sr_row_part_has(&layer->part, SR_NEIGHBOUR_AFTER))
        return SRNN_OK;
    SR_TRY(receive(layer, SR_NEIGHBOUR_AFTER, e.after, e.bytes));
    const sr_matrix d_after = sr_matrix_of(e.after, layer->B * kept, d_x.columns, d_x.dtype);
    for (int64_t b = 0; b < layer->B; b++)
        SR_TRY(backend->add_rows(backend, sr_matrix_rows(d_x, (b + 1) * layer->T - kept, kept),
                                 sr_matrix_rows(d_after, b * kept, kept)));
    return SRNN_OK;
}

srnn_status sr_crossing_conv_back(const sr_attention_layer *layer, sr_matrix d_x, sr_matrix d_out,
                                  const sr_short_conv *conv, const sr_layer_piece *piece,
                                  int which) {
    const sr_crossing_layout *c = &layer->crossing;
    sr_backend *backend = layer->backend;
    if (!piece->crossing || !c->each.convs[which])
        return SRNN_OK;
    const ends e = {at(piece, c->convs[SR_NEIGHBOUR_BEFORE][which]),
                    at(piece, c->convs[SR_NEIGHBOUR_AFTER][which]), c->each.convs[which]};
    SR_TRY(sr_device_zero(backend->device, e.after, e.bytes));
    SR_TRY(backend->short_conv_history_backward(backend, e.after, d_out, conv));
    return exchange_back(layer, d_x, conv->width - 1, e);
}

srnn_status sr_crossing_shifts_begin(const sr_attention_layer *layer, const sr_layer_piece *piece) {
    if (!piece->crossing)
        return SRNN_OK;
    const ends e = shift_ends(layer, piece);
    return sr_device_zero(layer->backend->device, e.after, e.bytes);
}

srnn_status sr_crossing_shift_back(const sr_attention_layer *layer, sr_matrix d_out,
                                   const sr_short_conv *shift, const sr_layer_piece *piece) {
    if (!piece->crossing)
        return SRNN_OK;
    const ends e = shift_ends(layer, piece);
    return layer->backend->short_conv_history_backward(layer->backend, e.after, d_out, shift);
}

srnn_status sr_crossing_shifts_end(const sr_attention_layer *layer, sr_matrix d_x,
                                   const sr_layer_piece *piece) {
    return piece->crossing ? exchange_back(layer, d_x, 1, shift_ends(layer, piece)) : SRNN_OK;
}

/* ---- states */

/* Rows whose first token begins a document have nothing before them. */
static srnn_status clear_starts(const sr_attention_layer *layer, void *states) {
    const int64_t numbers = (int64_t)(layer->crossing.each.state / sizeof(float)) / layer->B;
    return layer->backend->clear_starts(layer->backend,
                                        sr_matrix_of(states, layer->B, numbers, SRNN_F32),
                                        layer->positions, layer->T);
}

srnn_status sr_crossing_attend(const sr_attention_layer *layer, const sr_layer_arrays *arrays,
                               const srnn_operands *in, const sr_layer_piece *piece) {
    const sr_crossing_layout *c = &layer->crossing;
    const srnn_tensor o = sr_layer_output(layer, arrays, layer->T);
    if (!piece->crossing)
        return srnn_attention_forward(layer->plan, o, in, arrays->attention);
    if (layer->ring)
        return sr_ring_attend(layer, o, in, arrays->attention);
    if (layer->heads)
        return sr_heads_attend(layer, o, in, arrays->attention);
    const bool has_before = sr_row_part_has(&layer->part, SR_NEIGHBOUR_BEFORE);
    const bool has_after = sr_row_part_has(&layer->part, SR_NEIGHBOUR_AFTER);
    void *before = at(piece, c->state[SR_NEIGHBOUR_BEFORE]);
    void *after = at(piece, c->state[SR_NEIGHBOUR_AFTER]);
    const srnn_states states = {.initial = has_before ? before : NULL,
                                .final = has_after && !is_settled(piece) ? after : NULL};
    if (has_before && !is_settled(piece)) {
        SR_TRY(receive(layer, SR_NEIGHBOUR_BEFORE, before, c->each.state));
        SR_TRY(clear_starts(layer, before));
    }
    SR_TRY(srnn_attention_states_forward(layer->plan, o, in, arrays->attention, &states));
    return states.final ? send(layer, SR_NEIGHBOUR_AFTER, after, c->each.state) : SRNN_OK;
}

srnn_status sr_crossing_attend_back(const sr_attention_layer *layer, const srnn_operands *gradients,
                                    const sr_layer_arrays *d, const srnn_operands *in,
                                    const sr_layer_arrays *saved, const sr_layer_piece *piece) {
    const sr_crossing_layout *c = &layer->crossing;
    const srnn_tensor d_o = sr_layer_output(layer, d, layer->T);
    if (layer->ring)
        return sr_ring_attend_back(layer, gradients, d_o, in, saved->attention);
    if (layer->heads)
        return sr_heads_attend_back(layer, gradients, d_o, in, saved->attention);
    const bool has_before = sr_row_part_has(&layer->part, SR_NEIGHBOUR_BEFORE);
    const bool has_after = sr_row_part_has(&layer->part, SR_NEIGHBOUR_AFTER);
    void *before = at(piece, c->state[SR_NEIGHBOUR_BEFORE]);
    void *after = at(piece, c->state[SR_NEIGHBOUR_AFTER]);
    const srnn_states states = {.initial = has_before ? before : NULL,
                                .d_final = has_after ? after : NULL,
                                .d_initial = has_before ? d->state : NULL};
    SR_TRY(receive(layer, SR_NEIGHBOUR_AFTER, after, c->each.state));
    SR_TRY(
        srnn_attention_states_backward(layer->plan, gradients, d_o, in, saved->attention, &states));
    if (!has_before)
        return SRNN_OK;
    SR_TRY(sr_device_copy(layer->backend->device, before, d->state, c->each.state));
    SR_TRY(clear_starts(layer, before));
    return send(layer, SR_NEIGHBOUR_BEFORE, before, c->each.state);
}
