/* attention_mixer.c: an attention layer as a block's mixer. */
#include "model/layer/mixer.h"

static void layer_free(void *layer) {
    sr_attention_layer_free(layer);
}

static size_t saved_bytes(const void *layer) {
    return sr_attention_layer_saved_bytes(layer);
}

static size_t scratch_bytes(const void *layer) {
    return sr_attention_layer_scratch_bytes(layer);
}

static srnn_status attend(void *layer, sr_matrix x, const sr_layer_weights *weights, void *saved,
                          const sr_layer_crossing *crossing) {
    return sr_attention_layer_attend(layer, x, weights, saved, crossing);
}

static srnn_status finish(void *layer, sr_matrix y, sr_matrix addend, sr_matrix x,
                          const sr_layer_weights *weights, void *saved) {
    return sr_attention_layer_finish(layer, y, addend, x, weights, saved);
}

/* Its parameters are forward's, and a gradient for each. */
static srnn_status backward(void *layer, sr_matrix d_x, const sr_layer_pointers *gradients,
                            sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, void *scratch, const sr_layer_crossing *crossing) {
    return sr_attention_layer_backward(layer, d_x, gradients, d_y, x, weights, saved, scratch,
                                       crossing);
}

static srnn_status documents(void *layer, const sr_documents *documents) {
    return sr_attention_layer_documents(layer, documents);
}

static void place(void *layer, const int32_t *positions) {
    sr_attention_layer_place(layer, positions);
}

static size_t own_bytes(const void *layer) {
    return sr_attention_layer_own_bytes(layer);
}

static size_t crossing_bytes(const void *layer) {
    return sr_attention_layer_crossing_bytes(layer);
}

static bool takes_codes(const void *layer, const sr_layer_weights *weights, int64_t rows) {
    return sr_attention_layer_takes_codes(layer, weights, rows);
}

static bool takes_gradient_codes(const void *layer, const sr_layer_weights *weights, int64_t rows) {
    return sr_attention_layer_takes_gradient_codes(layer, weights, rows);
}

static srnn_status state_create(void **state, void *layer) {
    sr_layer_state *created;
    const srnn_status status = sr_layer_state_create(&created, layer);
    *state = created;
    return status;
}

static void state_free(void *state) {
    sr_layer_state_free(state);
}

static srnn_status state_reset(void *state) {
    return sr_layer_state_reset(state);
}

static size_t state_bytes(const void *state, int64_t position) {
    return sr_layer_state_bytes(state, position);
}

static srnn_status state_save(const void *state, void *bytes) {
    return sr_layer_state_save(state, bytes);
}

static srnn_status state_load(void *state, const void *bytes, int64_t position) {
    return sr_layer_state_load(state, bytes, position);
}

static srnn_status state_grow(void *state, int64_t tokens, bool *moved) {
    return sr_layer_state_grow(state, tokens, moved);
}

static srnn_status state_reserve(void *state, int T, bool *moved) {
    return sr_layer_state_reserve(state, T, moved);
}

static srnn_status state_run(void *state, sr_matrix y, sr_matrix x, const sr_layer_weights *weights,
                             const sr_layer_piece_place *where) {
    return sr_layer_state_run(state, y, x, weights, where);
}

static void state_advance(void *state, int T) {
    sr_layer_state_advance(state, T);
}

static bool state_is_recurrent(const void *state) {
    return srnn_state_is_recurrent(sr_layer_state_attention(state));
}

static const sr_mixer_calls calls = {.free = layer_free,
                                     .saved_bytes = saved_bytes,
                                     .scratch_bytes = scratch_bytes,
                                     .attend = attend,
                                     .finish = finish,
                                     .backward = backward,
                                     .documents = documents,
                                     .place = place,
                                     .own_bytes = own_bytes,
                                     .crossing_bytes = crossing_bytes,
                                     .takes_codes = takes_codes,
                                     .takes_gradient_codes = takes_gradient_codes,
                                     .state_create = state_create,
                                     .state_free = state_free,
                                     .state_reset = state_reset,
                                     .state_bytes = state_bytes,
                                     .state_save = state_save,
                                     .state_load = state_load,
                                     .state_grow = state_grow,
                                     .state_reserve = state_reserve,
                                     .state_run = state_run,
                                     .state_advance = state_advance,
                                     .state_is_recurrent = state_is_recurrent};

srnn_status sr_mixer_of_attention(sr_mixer *mixer, sr_backend *backend,
                                  const sr_layer_setup *setup) {
    sr_attention_layer *layer;
    SR_TRY(sr_attention_layer_create(&layer, backend, setup));
    *mixer = (sr_mixer){&calls, layer, layer};
    return SRNN_OK;
}
