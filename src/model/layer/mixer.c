/* mixer.c: what mixes the tokens in a decoder block. */
#include "model/layer/mixer.h"

void sr_mixer_free(sr_mixer *m) {
    sr_attention_layer_free(m->attention);
    sr_avey_layer_free(m->avey);
    *m = (sr_mixer){0};
}

srnn_status sr_mixer_documents(const sr_mixer *m, const sr_documents *documents) {
    if (m->attention)
        return sr_attention_layer_documents(m->attention, documents);
    return SRNN_OK; /* checked where contexts are made (sr_contexts_check_documents) */
}

void sr_mixer_place(const sr_mixer *m, const int32_t *positions) {
    if (m->attention)
        sr_attention_layer_place(m->attention, positions);
}

size_t sr_mixer_saved_bytes(const sr_mixer *m) {
    return m->attention ? sr_attention_layer_saved_bytes(m->attention)
                        : sr_avey_layer_saved_bytes(m->avey);
}

size_t sr_mixer_scratch_bytes(const sr_mixer *m) {
    return m->attention ? sr_attention_layer_scratch_bytes(m->attention)
                        : sr_avey_layer_scratch_bytes(m->avey);
}

size_t sr_mixer_own_bytes(const sr_mixer *m) {
    return m->attention ? sr_attention_layer_own_bytes(m->attention) : 0;
}

size_t sr_mixer_crossing_bytes(const sr_mixer *m) {
    return m->attention ? sr_attention_layer_crossing_bytes(m->attention) : 0;
}

bool sr_mixer_takes_codes(const sr_mixer *m, const sr_layer_weights *weights, int64_t rows) {
    return m->attention && sr_attention_layer_takes_codes(m->attention, weights, rows);
}

bool sr_mixer_takes_gradient_codes(const sr_mixer *m, const sr_layer_weights *weights,
                                   int64_t rows) {
    return m->attention && sr_attention_layer_takes_gradient_codes(m->attention, weights, rows);
}

srnn_status sr_mixer_attend(const sr_mixer *m, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, const sr_layer_crossing *crossing) {
    return m->attention ? sr_attention_layer_attend(m->attention, x, weights, saved, crossing)
                        : sr_avey_layer_attend(m->avey, x, weights, saved);
}

srnn_status sr_mixer_finish(const sr_mixer *m, sr_matrix y, sr_matrix addend, sr_matrix x,
                            const sr_layer_weights *weights, void *saved) {
    return m->attention ? sr_attention_layer_finish(m->attention, y, addend, x, weights, saved)
                        : sr_avey_layer_finish(m->avey, y, addend, weights, saved);
}

/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_mixer_backward(const sr_mixer *m, sr_matrix d_x, const sr_layer_pointers *gradients,
                              sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                              void *saved, void *scratch, const sr_layer_crossing *crossing) {
    return m->attention
               ? sr_attention_layer_backward(m->attention, d_x, gradients, d_y, x, weights, saved,
                                             scratch, crossing)
               : sr_avey_layer_backward(m->avey, d_x, gradients, d_y, x, weights, saved, scratch);
}
