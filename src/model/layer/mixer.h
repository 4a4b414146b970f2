/* mixer.h: what mixes the tokens in a decoder block. This is the one place that knows the kinds
 * there are. */
#ifndef SR_MODEL_LAYER_MIXER_H
#define SR_MODEL_LAYER_MIXER_H

#include "model/avey/avey.h"
#include "model/layer/attention.h"

/* One of them is not NULL. */
typedef struct sr_mixer {
    sr_attention_layer *attention;
    sr_avey_layer *avey;
} sr_mixer;

void sr_mixer_free(sr_mixer *mixer); /* leaves { 0 } */

/* As in layer/attention.h. */
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

#endif
