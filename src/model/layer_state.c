/* layer_state.c: an attention layer fed by pieces, as generation does. */
#include "base/memory.h"
#include "model/attention_layer_parts.h"

#include <stdlib.h>
#include <string.h>

struct sr_layer_state {
    sr_attention_layer *layer;
    srnn_state *attention;
    int32_t *host_positions; /* (B*T) */
    int32_t *positions;      /* (B*T), backend */
    float *history;          /* (B, width - 1, channels), backend */
    float *next_history;     /* the one being made */
    int64_t position;
};

static size_t history_row(const sr_layer_state *state) {
    return (size_t)state->layer->channels * sizeof(float);
}

static int kept(const sr_layer_state *state) {
    return state->layer->attention.short_conv - 1;
}

static srnn_status fill(sr_layer_state *state) {
    sr_attention_layer *layer = state->layer;
    sr_backend *backend = layer->backend;
    const size_t tokens = (size_t)layer->B * (size_t)layer->T;
    void *memory;
    SR_TRY(srnn_state_create(&state->attention, &layer->problem));
    SR_TRY(sr_alloc(&memory, tokens, sizeof(int32_t)));
    state->host_positions = memory;
    SR_TRY(sr_device_allocate(backend->device, &memory, tokens * sizeof(int32_t)));
    state->positions = memory;
    if (layer->attention.short_conv < 2)
        return SRNN_OK;
    const size_t bytes = (size_t)layer->B * (size_t)kept(state) * history_row(state);
    SR_TRY(sr_device_allocate(backend->device, &memory, bytes));
    state->history = memory;
    SR_TRY(sr_device_allocate(backend->device, &memory, bytes));
    state->next_history = memory;
    SR_TRY(sr_device_zero(backend->device, state->history, bytes));
    return sr_device_zero(backend->device, state->next_history, bytes);
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
    sr_backend *backend = state->layer->backend;
    srnn_state_free(state->attention);
    sr_device_release(backend->device, state->positions);
    sr_device_release(backend->device, state->history);
    sr_device_release(backend->device, state->next_history);
    free(state->host_positions);
    free(state);
}

void sr_layer_state_reset(sr_layer_state *state) {
    srnn_state_reset(state->attention);
    state->position = 0; /* which is also how the convolution knows that nothing came before */
}

const srnn_state *sr_layer_state_attention(const sr_layer_state *state) {
    return state->attention;
}

/* Keeps the last width-1 inputs of the convolution, those of this piece after the older ones. */
static srnn_status remember(sr_layer_state *state, const float *projected, int T) {
    sr_backend *backend = state->layer->backend;
    const size_t row = (size_t)state->layer->channels;
    const int keep = kept(state), fresh = T < keep ? T : keep, old = keep - fresh;
    for (size_t b = 0; b < (size_t)state->layer->B; b++) {
        float *to = state->next_history + b * (size_t)keep * row;
        const float *from = state->history + b * (size_t)keep * row + (size_t)fresh * row;
        const float *new = projected + ((b + 1) * (size_t)T - (size_t)fresh) * row;
        SR_TRY(sr_device_copy(backend->device, to, from, (size_t)old * history_row(state)));
        SR_TRY(sr_device_copy(backend->device, to + (size_t)old * row, new,
                              (size_t)fresh * history_row(state)));
    }
    float *swap = state->history;
    state->history = state->next_history;
    state->next_history = swap;
    return SRNN_OK;
}

static srnn_status place(sr_layer_state *state, int T) {
    const sr_attention_layer *layer = state->layer;
    if (T < 1 || T > layer->T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a piece of %d tokens; the layer takes 1 to %d", T,
                       layer->T);
    if (layer->attention.position == SRNN_POSITION_ROPE &&
        state->position + T > layer->rope_positions)
        return SR_FAIL(SRNN_ERR_LIMIT, "the model has only %lld positions",
                       (long long)layer->rope_positions);
    for (int b = 0; b < layer->B; b++)
        for (int t = 0; t < T; t++)
            state->host_positions[b * T + t] = (int32_t)(state->position + t);
    return sr_device_copy_in(layer->backend->device, state->positions, state->host_positions,
                             (size_t)layer->B * (size_t)T * sizeof(int32_t));
}

srnn_status sr_attention_layer_feed(sr_attention_layer *layer, sr_layer_state *state, sr_matrix y,
                                    sr_matrix x, const sr_layer_pointers *weights, void *saved,
                                    int T) {
    sr_backend *backend = layer->backend;
    SR_TRY(place(state, T));
    const sr_layer_piece piece = {
        .rows = x.rows, .T = T, .positions = state->positions, .history = state->history};
    const sr_layer_arrays arrays = sr_layer_arrays_at(&layer->saved, saved);
    SR_TRY(sr_layer_project(layer, &arrays, x, weights, &piece));
    if (state->history)
        SR_TRY(remember(state, arrays.projected, T));
    const srnn_operands in = sr_layer_operands(layer, &arrays, weights, T);
    SR_TRY(srnn_state_feed(state->attention, sr_layer_output(layer, &arrays, T), &in, T));
    state->position += T;
    return backend->linear_forward(backend, y, sr_matrix_of(arrays.o, x.rows, layer->queries),
                                   weights->slot[SR_LAYER_O_WEIGHT], weights->slot[SR_LAYER_O_BIAS],
                                   true);
}
