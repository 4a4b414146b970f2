/* layer.c: the mixer of an Avey block: rows made wider, some of their channels mixed between the
 * rows of a context, and made narrow again. */
#include "base/memory.h"
#include "model/avey/avey.h"
#include "model/layer/mixer.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

typedef struct avey_layer {
    sr_backend *backend;
    sr_avey avey;
    int64_t C, rows;
    int64_t wide, joined; /* channels: fE, and of what the mix leaves of them */
} avey_layer;

/* What forward leaves and backward reads, or their gradients and scratch. */
typedef struct arrays {
    sr_matrix wide;   /* (rows, fE), before the activation */
    sr_matrix joined; /* (rows, joined) */
    void *mix;        /* context_mix_bytes */
} arrays;

/* The mix of what the enricher made, without its pointers. */
static sr_context_mix mix_of(const avey_layer *l, sr_matrix wide) {
    return (sr_context_mix){.x = wide,
                            .context = sr_avey_rows(&l->avey),
                            .mixed = sr_avey_mixed(&l->avey, (int)l->C)};
}

static void *take(char *base, size_t *bytes, size_t size) {
    char *start = base ? base + *bytes : NULL;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* base NULL: only the bytes of all. */
static arrays lay_out(const avey_layer *l, char *base, size_t *bytes) {
    const srnn_dtype number = l->backend->number;
    const size_t column = (size_t)l->rows * sr_element_bytes(number);
    arrays a;
    *bytes = 0;
    a.wide = sr_matrix_of(take(base, bytes, column * (size_t)l->wide), l->rows, l->wide, number);
    a.joined =
        sr_matrix_of(take(base, bytes, column * (size_t)l->joined), l->rows, l->joined, number);
    const sr_context_mix mix = mix_of(l, a.wide);
    a.mix = take(base, bytes, l->backend->context_mix_bytes(l->backend, &mix));
    return a;
}

static arrays arrays_at(const avey_layer *l, void *base) {
    size_t bytes;
    return lay_out(l, base, &bytes);
}

static void layer_free(void *layer) {
    free(layer);
}

static size_t saved_bytes(const void *layer) {
    size_t bytes;
    lay_out(layer, NULL, &bytes);
    return bytes;
}

static sr_linear enricher_of(const avey_layer *l, const sr_layer_weights *weights) {
    return (sr_linear){weights->working->slot[SR_LAYER_PROJECTIONS],
                       weights->master->slot[SR_LAYER_PROJECTIONS + 1], l->wide, weights->narrow,
                       true};
}

static sr_linear fuser_of(const avey_layer *l, const sr_layer_weights *weights) {
    return (sr_linear){weights->working->slot[SR_LAYER_OUTPUT],
                       weights->master->slot[SR_LAYER_OUTPUT + 1], l->C, weights->narrow, true};
}

static sr_context_mix saved_mix(const avey_layer *l, const arrays *in,
                                const sr_layer_weights *weights) {
    sr_context_mix mix = mix_of(l, in->wide);
    mix.weight = weights->master->slot[SR_LAYER_SPATIAL];
    mix.saved = in->mix;
    return mix;
}

static srnn_status attend(void *layer, sr_matrix x, const sr_layer_weights *weights, void *saved,
                          const sr_layer_crossing *crossing) {
    const avey_layer *l = layer;
    (void)crossing;
    const sr_linear enricher = enricher_of(l, weights);
    const arrays in = arrays_at(l, saved);
    const sr_context_mix mix = saved_mix(l, &in, weights);
    SR_TRY(l->backend->linear_forward(l->backend, in.wide, (sr_matrix){0}, x, &enricher, 1));
    return l->backend->context_mix_forward(l->backend, in.joined, &mix);
}

static srnn_status finish(void *layer, sr_matrix y, sr_matrix addend, sr_matrix x,
                          const sr_layer_weights *weights, void *saved) {
    const avey_layer *l = layer;
    (void)x;
    const arrays in = arrays_at(l, saved);
    const sr_linear fuser = fuser_of(l, weights);
    return l->backend->linear_forward(l->backend, y, addend, in.joined, &fuser, 1);
}

/* Its parameters are forward's, and a gradient for each. */
static srnn_status backward(void *layer, sr_matrix d_x, const sr_layer_pointers *gradients,
                            sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, void *scratch, const sr_layer_crossing *crossing) {
    const avey_layer *l = layer;
    (void)crossing;
    sr_backend *backend = l->backend;
    const sr_linear fuser = fuser_of(l, weights), enricher = enricher_of(l, weights);
    const sr_linear_gradient d_fuser = {gradients->slot[SR_LAYER_OUTPUT],
                                        gradients->slot[SR_LAYER_OUTPUT + 1], l->C};
    const sr_linear_gradient d_enricher = {gradients->slot[SR_LAYER_PROJECTIONS],
                                           gradients->slot[SR_LAYER_PROJECTIONS + 1], l->wide};
    const arrays in = arrays_at(l, saved), d = arrays_at(l, scratch);
    const sr_context_mix mix = saved_mix(l, &in, weights);
    const sr_linear_backward fused = {d.joined, d_y, in.joined, &fuser, &d_fuser, 1};
    const sr_linear_backward enriched = {d_x, d.wide, x, &enricher, &d_enricher, 1};
    SR_TRY(backend->linear_backward(backend, &fused));
    SR_TRY(backend->context_mix_backward(backend, d.wide, gradients->slot[SR_LAYER_SPATIAL],
                                         d.joined, &mix, d.mix));
    return backend->linear_backward(backend, &enriched);
}

/* Documents are checked where contexts are made (sr_contexts_check_documents). */
static const sr_mixer_calls calls = {.free = layer_free,
                                     .saved_bytes = saved_bytes,
                                     .scratch_bytes = saved_bytes,
                                     .attend = attend,
                                     .finish = finish,
                                     .backward = backward};

srnn_status sr_mixer_of_avey(sr_mixer *mixer, sr_backend *backend, const sr_avey *avey, int C,
                             int64_t rows) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(avey_layer)));
    *(avey_layer *)memory = (avey_layer){.backend = backend,
                                         .avey = *avey,
                                         .C = C,
                                         .rows = rows,
                                         .wide = (int64_t)avey->expansion * C,
                                         .joined = sr_avey_joined(avey, C)};
    *mixer = (sr_mixer){&calls, memory, NULL};
    return SRNN_OK;
}
