/* mixer.h: what mixes the tokens in a decoder block, whatever its kind. */
#ifndef SR_MODEL_LAYER_MIXER_H
#define SR_MODEL_LAYER_MIXER_H

#include "model/layer/attention.h"

/* The functions of a kind, over a layer and a state of that kind; as in layer/attention.h. */
typedef struct sr_mixer_calls {
    void (*free)(void *layer); /* accepts NULL */
    size_t (*saved_bytes)(const void *layer);
    size_t (*scratch_bytes)(const void *layer);
    srnn_status (*attend)(void *layer, sr_matrix x, const sr_layer_weights *weights, void *saved,
                          const sr_layer_crossing *crossing);
    srnn_status (*finish)(void *layer, sr_matrix y, sr_matrix addend, sr_matrix x,
                          const sr_layer_weights *weights, void *saved);
    srnn_status (*backward)(void *layer, sr_matrix d_x, const sr_layer_pointers *gradients,
                            sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, void *scratch, const sr_layer_crossing *crossing);

    /* NULL: it has nothing of the kind. */
    srnn_status (*documents)(void *layer, const sr_documents *documents);
    void (*place)(void *layer, const int32_t *positions);
    size_t (*own_bytes)(const void *layer);
    size_t (*crossing_bytes)(const void *layer);
    bool (*takes_codes)(const void *layer, const sr_layer_weights *weights, int64_t rows);
    bool (*takes_gradient_codes)(const void *layer, const sr_layer_weights *weights, int64_t rows);

    /* Fed by pieces. state_create NULL: it is not. */
    srnn_status (*state_create)(void **state, void *layer);
    void (*state_free)(void *state); /* accepts NULL */
    srnn_status (*state_reset)(void *state);
    size_t (*state_bytes)(const void *state, int64_t position);
    srnn_status (*state_save)(const void *state, void *bytes);
    srnn_status (*state_load)(void *state, const void *bytes, int64_t position);
    srnn_status (*state_grow)(void *state, int64_t tokens, bool *moved);
    srnn_status (*state_reserve)(void *state, int T, bool *moved);
    srnn_status (*state_run)(void *state, sr_matrix y, sr_matrix x, const sr_layer_weights *weights,
                             const sr_layer_piece_place *place);
    void (*state_advance)(void *state, int T);
    bool (*state_is_recurrent)(const void *state); /* of fixed size */
} sr_mixer_calls;

typedef struct sr_mixer {
    const sr_mixer_calls *calls;
    void *layer;                   /* owned */
    sr_attention_layer *attention; /* where it has an equation that may be observed; not owned */
} sr_mixer;

void sr_mixer_free(sr_mixer *mixer); /* leaves { 0 } */

srnn_status sr_mixer_documents(const sr_mixer *mixer, const sr_documents *documents);
void sr_mixer_place(const sr_mixer *mixer, const int32_t *positions);
size_t sr_mixer_saved_bytes(const sr_mixer *mixer);
size_t sr_mixer_scratch_bytes(const sr_mixer *mixer);
size_t sr_mixer_own_bytes(const sr_mixer *mixer);
size_t sr_mixer_crossing_bytes(const sr_mixer *mixer);

/* Whether the mixer's input of that many rows may be SR_HANDED_CODES. */
bool sr_mixer_takes_codes(const sr_mixer *mixer, const sr_layer_weights *weights, int64_t rows);
/* The same of the gradient of its output. */
bool sr_mixer_takes_gradient_codes(const sr_mixer *mixer, const sr_layer_weights *weights,
                                   int64_t rows);

srnn_status sr_mixer_attend(const sr_mixer *mixer, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, const sr_layer_crossing *crossing);
srnn_status sr_mixer_finish(const sr_mixer *mixer, sr_matrix y, sr_matrix addend, sr_matrix x,
                            const sr_layer_weights *weights, void *saved);
/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_mixer_backward(const sr_mixer *mixer, sr_matrix d_x,
                              const sr_layer_pointers *gradients, sr_matrix d_y, sr_matrix x,
                              const sr_layer_weights *weights, void *saved, void *scratch,
                              const sr_layer_crossing *crossing);

/* ---- fed by pieces */

/* What one layer of a model remembers of the tokens fed so far. */
typedef struct sr_mixer_state {
    const sr_mixer_calls *calls;
    void *state; /* owned */
    int64_t position;
} sr_mixer_state;

srnn_status sr_mixer_state_create(sr_mixer_state *state, const sr_mixer *mixer);
void sr_mixer_state_free(sr_mixer_state *state); /* leaves { 0 } */
srnn_status sr_mixer_state_reset(sr_mixer_state *state);
size_t sr_mixer_state_bytes(const sr_mixer_state *state, int64_t position);
srnn_status sr_mixer_state_save(const sr_mixer_state *state, void *bytes);
srnn_status sr_mixer_state_load(sr_mixer_state *state, const void *bytes, int64_t position);
srnn_status sr_mixer_state_grow(sr_mixer_state *state, int64_t tokens, bool *moved);
srnn_status sr_mixer_state_reserve(sr_mixer_state *state, int T, bool *moved);
srnn_status sr_mixer_state_run(sr_mixer_state *state, sr_matrix y, sr_matrix x,
                               const sr_layer_weights *weights, const sr_layer_piece_place *place);
void sr_mixer_state_advance(sr_mixer_state *state, int T);
bool sr_mixer_state_is_recurrent(const sr_mixer_state *state);

/* ---- the kinds */

/* *mixer = an attention layer. */
srnn_status sr_mixer_of_attention(sr_mixer *mixer, sr_backend *backend,
                                  const sr_layer_setup *setup);

#endif
