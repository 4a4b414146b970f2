/* state.c: an attention layer fed by pieces, as generation does. */
#include "attention/state.h"
#include "base/memory.h"
#include "model/layer/attention_parts.h"
#include "model/layer/rwkv7.h"

#include <stdlib.h>

struct sr_layer_state {
    sr_attention_layer *layer;
    srnn_state *attention;
    void *history[SR_FORM_CONVS]; /* (B, width - 1, channels) of each convolution, device memory */
    void *shift_history;          /* (B, 1, C): of token shifts */
    void *next_history;           /* the one being made */
    int64_t position;
};

static size_t history_bytes(const sr_attention_layer *layer, int which) {
    const sr_wire_conv *conv = &layer->wiring.convs[which];
    return (size_t)layer->B * (size_t)(conv->width - 1) * (size_t)conv->to.count *
           sr_element_bytes(layer->backend->number);
}

static size_t shift_bytes(const sr_attention_layer *layer) {
    return layer->wiring.shift_count
               ? (size_t)layer->B * (size_t)layer->dims.C * sr_element_bytes(layer->backend->number)
               : 0;
}

static srnn_status fill(sr_layer_state *state) {
    sr_attention_layer *layer = state->layer;
    srnn_device *device = layer->backend->device;
    size_t most = 0;
    SR_TRY(srnn_state_create(&state->attention, &layer->problem));
    for (int i = 0; i < layer->wiring.conv_count; i++) {
        const size_t bytes = history_bytes(layer, i);
        if (bytes == 0)
            continue;
        SR_TRY(sr_device_allocate(device, &state->history[i], bytes));
        SR_TRY(sr_device_zero(device, state->history[i], bytes));
        most = bytes > most ? bytes : most;
    }
    const size_t shift = shift_bytes(layer);
    most = shift > most ? shift : most;
    if (shift) {
        SR_TRY(sr_device_allocate(device, &state->shift_history, shift));
        SR_TRY(sr_device_zero(device, state->shift_history, shift));
    }
    return most ? sr_device_allocate(device, &state->next_history, most) : SRNN_OK;
}

srnn_status sr_layer_state_create(sr_layer_state **state, sr_attention_layer *layer) {
    *state = NULL;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **state));
    sr_layer_state *created = memory;
    created->layer = layer;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_layer_state_free(created);
        return status;
    }
    *state = created;
    return SRNN_OK;
}

void sr_layer_state_free(sr_layer_state *state) {
    if (!state)
        return;
    srnn_device *device = state->layer->backend->device;
    srnn_state_free(state->attention);
    for (int i = 0; i < SR_FORM_CONVS; i++)
        sr_device_release(device, state->history[i]);
    sr_device_release(device, state->shift_history);
    sr_device_release(device, state->next_history);
    free(state);
}

srnn_status sr_layer_state_reset(sr_layer_state *state) {
    state->position = 0; /* which is also how the convolution knows that nothing came before */
    return srnn_state_reset(state->attention);
}

const srnn_state *sr_layer_state_attention(const sr_layer_state *state) {
    return state->attention;
}

size_t sr_layer_state_bytes(const sr_layer_state *state, int64_t position) {
    size_t bytes = sr_state_saved_bytes(state->attention, position) + shift_bytes(state->layer);
    for (int i = 0; i < state->layer->wiring.conv_count; i++)
        bytes += history_bytes(state->layer, i);
    return bytes;
}

/* What the attention saved, then the inputs that token shifts and convolutions look back at. */
srnn_status sr_layer_state_save(const sr_layer_state *state, void *bytes) {
    const sr_attention_layer *layer = state->layer;
    srnn_device *device = layer->backend->device;
    const size_t attention = srnn_state_saved_bytes(state->attention), shift = shift_bytes(layer);
    char *at = (char *)bytes + attention + shift;
    SR_TRY(srnn_state_save(state->attention, bytes, attention));
    if (shift)
        SR_TRY(sr_device_copy_out(device, at - shift, state->shift_history, shift));
    for (int i = 0; i < layer->wiring.conv_count; at += history_bytes(layer, i++))
        if (state->history[i])
            SR_TRY(sr_device_copy_out(device, at, state->history[i], history_bytes(layer, i)));
    return SRNN_OK;
}

srnn_status sr_layer_state_load(sr_layer_state *state, const void *bytes, int64_t position) {
    const sr_attention_layer *layer = state->layer;
    srnn_device *device = layer->backend->device;
    const size_t attention = sr_state_saved_bytes(state->attention, position);
    const size_t shift = shift_bytes(layer);
    const char *at = (const char *)bytes + attention + shift;
    SR_TRY(srnn_state_load(state->attention, bytes, attention));
    if (shift)
        SR_TRY(sr_device_copy_in(device, state->shift_history, at - shift, shift));
    for (int i = 0; i < layer->wiring.conv_count; at += history_bytes(layer, i++))
        if (state->history[i])
            SR_TRY(sr_device_copy_in(device, state->history[i], at, history_bytes(layer, i)));
    state->position = position;
    return SRNN_OK;
}

srnn_status sr_layer_state_reserve(sr_layer_state *state, int T, bool *moved) {
    const sr_attention_layer *layer = state->layer;
    if (T < 1 || T > layer->T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a piece of %d tokens; the layer takes 1 to %d", T,
                       layer->T);
    if (layer->attention.position == SRNN_POSITION_ROPE &&
        state->position + T > layer->rope_positions)
        return SR_FAIL(SRNN_ERR_LIMIT, "the model has only %lld positions",
                       (long long)layer->rope_positions);
    return sr_state_reserve(state->attention, state->position + T, moved);
}

srnn_status sr_layer_state_grow(sr_layer_state *state, int64_t tokens, bool *moved) {
    return sr_state_reserve(state->attention, tokens, moved);
}

/* Keeps the last inputs of the convolutions. They end up where they were read from, so that the
 * same call can be replayed. */
static srnn_status remember(const sr_layer_state *state, const sr_layer_arrays *arrays, sr_matrix x,
                            const sr_layer_weights *weights, const sr_layer_piece *piece) {
    const sr_attention_layer *layer = state->layer;
    sr_backend *backend = layer->backend;
    if (state->shift_history) {
        const sr_short_conv shift = sr_rwkv7_shift(layer, arrays, x, piece, 0);
        SR_TRY(backend->short_conv_history(backend, state->next_history, &shift));
        SR_TRY(sr_device_copy(backend->device, state->shift_history, state->next_history,
                              shift_bytes(layer)));
    }
    for (int i = 0; i < layer->wiring.conv_count; i++) {
        const sr_short_conv conv = sr_layer_conv(layer, arrays, weights, piece, i);
        if (!state->history[i])
            continue;
        SR_TRY(backend->short_conv_history(backend, state->next_history, &conv));
        SR_TRY(sr_device_copy(backend->device, state->history[i], state->next_history,
                              history_bytes(layer, i)));
    }
    return SRNN_OK;
}

/* Whether the attention kernel may apply RoPE to q and k. */
static bool leaves_rope(const sr_layer_state *state, int T) {
    return sr_layer_rope_is_plain(state->layer) && sr_state_applies_rope(state->attention, T);
}

srnn_status sr_layer_state_run(sr_layer_state *state, sr_matrix y, sr_matrix x,
                               const sr_layer_weights *weights, const sr_layer_piece_place *place) {
    sr_attention_layer *layer = state->layer;
    bool rope_applied = true;
    const sr_layer_piece piece = {.rows = x.rows,
                                  .T = place->T,
                                  .positions = place->positions,
                                  .history = (const void *const *)state->history,
                                  .shift_history = state->shift_history,
                                  .norm = place->norm,
                                  .rope_applied =
                                      leaves_rope(state, place->T) ? &rope_applied : NULL};
    const sr_layer_arrays arrays = sr_layer_arrays_at(layer, &layer->saved, place->saved, x.rows);
    SR_TRY(sr_layer_project(layer, &arrays, x, weights, &piece));
    SR_TRY(remember(state, &arrays, x, weights, &piece));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, place->T);
    const sr_rope_angles rope = {rope_applied ? NULL : layer->rope_table, place->positions};
    SR_TRY(sr_state_run(state->attention, sr_layer_output(layer, &arrays, place->T), &in, place->T,
                        rope));
    return sr_attention_layer_finish(layer, y, y, x, weights, place->saved);
}

void sr_layer_state_advance(sr_layer_state *state, int T) {
    state->position += T;
    sr_state_advance(state->attention, T);
}
