/* mixer.c: what mixes the tokens in a decoder block, whatever its kind. */
#include "model/layer/mixer.h"

void sr_mixer_free(sr_mixer *m) {
    if (m->calls)
        m->calls->free(m->layer);
    *m = (sr_mixer){0};
}

srnn_status sr_mixer_documents(const sr_mixer *m, const sr_documents *documents) {
    return m->calls->documents ? m->calls->documents(m->layer, documents) : SRNN_OK;
}

void sr_mixer_place(const sr_mixer *m, const int32_t *positions) {
    if (m->calls->place)
        m->calls->place(m->layer, positions);
}

size_t sr_mixer_saved_bytes(const sr_mixer *m) {
    return m->calls->saved_bytes(m->layer);
}

size_t sr_mixer_scratch_bytes(const sr_mixer *m) {
    return m->calls->scratch_bytes(m->layer);
}

size_t sr_mixer_own_bytes(const sr_mixer *m) {
    return m->calls->own_bytes ? m->calls->own_bytes(m->layer) : 0;
}

size_t sr_mixer_crossing_bytes(const sr_mixer *m) {
    return m->calls->crossing_bytes ? m->calls->crossing_bytes(m->layer) : 0;
}

bool sr_mixer_takes_codes(const sr_mixer *m, const sr_layer_weights *weights, int64_t rows) {
    return m->calls->takes_codes && m->calls->takes_codes(m->layer, weights, rows);
}

bool sr_mixer_takes_gradient_codes(const sr_mixer *m, const sr_layer_weights *weights,
                                   int64_t rows) {
    return m->calls->takes_gradient_codes &&
           m->calls->takes_gradient_codes(m->layer, weights, rows);
}

srnn_status sr_mixer_attend(const sr_mixer *m, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, const sr_layer_crossing *crossing) {
    return m->calls->attend(m->layer, x, weights, saved, crossing);
}

srnn_status sr_mixer_finish(const sr_mixer *m, sr_matrix y, sr_matrix addend, sr_matrix x,
                            const sr_layer_weights *weights, void *saved) {
    return m->calls->finish(m->layer, y, addend, x, weights, saved);
}

/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_mixer_backward(const sr_mixer *m, sr_matrix d_x, const sr_layer_pointers *gradients,
                              sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                              void *saved, void *scratch, const sr_layer_crossing *crossing) {
    return m->calls->backward(m->layer, d_x, gradients, d_y, x, weights, saved, scratch, crossing);
}

/* ---- fed by pieces */

srnn_status sr_mixer_state_create(sr_mixer_state *s, const sr_mixer *mixer) {
    *s = (sr_mixer_state){.calls = mixer->calls};
    return mixer->calls->state_create(&s->state, mixer->layer);
}

void sr_mixer_state_free(sr_mixer_state *s) {
    if (s->calls)
        s->calls->state_free(s->state);
    *s = (sr_mixer_state){0};
}

srnn_status sr_mixer_state_reset(sr_mixer_state *s) {
    s->position = 0;
    return s->calls->state_reset(s->state);
}

size_t sr_mixer_state_bytes(const sr_mixer_state *s, int64_t position) {
    return s->calls->state_bytes(s->state, position);
}

srnn_status sr_mixer_state_save(const sr_mixer_state *s, void *bytes) {
    return s->calls->state_save(s->state, bytes);
}

srnn_status sr_mixer_state_load(sr_mixer_state *s, const void *bytes, int64_t position) {
    s->position = position;
    return s->calls->state_load(s->state, bytes, position);
}

srnn_status sr_mixer_state_grow(sr_mixer_state *s, int64_t tokens, bool *moved) {
    return s->calls->state_grow(s->state, tokens, moved);
}

srnn_status sr_mixer_state_reserve(sr_mixer_state *s, int T, bool *moved) {
    return s->calls->state_reserve(s->state, T, moved);
}

srnn_status sr_mixer_state_run(sr_mixer_state *s, sr_matrix y, sr_matrix x,
                               const sr_layer_weights *weights, const sr_layer_piece_place *place) {
    return s->calls->state_run(s->state, y, x, weights, place);
}

void sr_mixer_state_advance(sr_mixer_state *s, int T) {
    s->position += T;
    s->calls->state_advance(s->state, T);
}

bool sr_mixer_state_is_recurrent(const sr_mixer_state *s) {
    return s->calls->state_is_recurrent(s->state);
}
