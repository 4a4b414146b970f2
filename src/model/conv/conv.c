/* conv.c: a gated short convolution as a block's mixer. */
#include "model/conv/conv.h"

#include "base/memory.h"

#include <stdlib.h>

enum { ALIGNMENT = 64, PROJECTIONS = 3 };

typedef struct conv_layer {
    sr_backend *backend;
    int B, T;
    int64_t C;
    int taps;
    bool plain;               /* without SiLU */
    const int32_t *positions; /* (B*T); not owned */
} conv_layer;

/* What forward leaves and backward reads, or their gradients. */
typedef struct arrays {
    sr_matrix joined; /* (rows, 4C): b, x, c, and the convolution of what is gated */
    sr_matrix gated;  /* (rows, C): b * x */
    sr_matrix o;      /* (rows, C): c times the convolution */
} arrays;

/* What the convolution looks back at, and where it reads. */
typedef struct place {
    const int32_t *positions;
    int T;
    const void *history;
} place;

static void *take(char *base, size_t *bytes, size_t size) {
    char *start = base ? base + *bytes : NULL;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* base NULL: only the bytes of all. */
static arrays lay_out(const conv_layer *l, char *base, int64_t rows, size_t *bytes) {
    const srnn_dtype number = l->backend->number;
    const size_t column = (size_t)rows * sr_element_bytes(number) * (size_t)l->C;
    arrays a;
    *bytes = 0;
    a.joined = sr_matrix_of(take(base, bytes, 4 * column), rows, 4 * l->C, number);
    a.gated = sr_matrix_of(take(base, bytes, column), rows, l->C, number);
    a.o = sr_matrix_of(take(base, bytes, column), rows, l->C, number);
    return a;
}

static arrays arrays_at(const conv_layer *l, void *base, int64_t rows) {
    size_t bytes;
    return lay_out(l, base, rows, &bytes);
}

static void layer_free(void *layer) {
    free(layer);
}

static size_t saved_bytes(const void *layer) {
    const conv_layer *l = layer;
    size_t bytes;
    lay_out(l, NULL, (int64_t)l->B * l->T, &bytes);
    return bytes;
}

static void set_positions(void *layer, const int32_t *positions) {
    conv_layer *l = layer;
    l->positions = positions;
}

/* ---- its parts */

static const sr_mlp_activation product = {.function = SR_ACTIVATION_IDENTITY, .gated = true};

static sr_matrix columns(const conv_layer *l, sr_matrix joined, int first, int count) {
    return sr_matrix_columns(joined, first * l->C, count * l->C);
}

static void projections(sr_linear linears[PROJECTIONS], const conv_layer *l,
                        const sr_layer_weights *weights) {
    for (int i = 0; i < PROJECTIONS; i++) {
        const int slot = SR_LAYER_PROJECTIONS + 2 * i;
        linears[i] = (sr_linear){weights->working->slot[slot], weights->master->slot[slot + 1],
                                 l->C, weights->narrow, true};
    }
}

static sr_linear output_of(const conv_layer *l, const sr_layer_weights *weights) {
    return (sr_linear){weights->working->slot[SR_LAYER_OUTPUT],
                       weights->master->slot[SR_LAYER_OUTPUT + 1], l->C, weights->narrow, true};
}

static sr_short_conv conv_of(const conv_layer *l, const arrays *in, const sr_layer_weights *weights,
                             const place *at) {
    return (sr_short_conv){.x = in->gated,
                           .weight = weights->master->slot[SR_LAYER_CONVS],
                           .bias = weights->master->slot[SR_LAYER_CONVS + 1],
                           .positions = at->positions,
                           .width = l->taps,
                           .plain = l->plain,
                           .T = at->T,
                           .history = at->history};
}

static place whole_rows(const conv_layer *l) {
    return (place){.positions = l->positions, .T = l->T};
}

/* ---- forward */

static srnn_status gate(const conv_layer *l, const arrays *in, sr_matrix x,
                        const sr_layer_weights *weights) {
    sr_backend *backend = l->backend;
    sr_linear linears[PROJECTIONS];
    projections(linears, l, weights);
    SR_TRY(backend->linear_forward(backend, columns(l, in->joined, 0, PROJECTIONS), (sr_matrix){0},
                                   x, linears, PROJECTIONS));
    return backend->activation_forward(backend, in->gated, columns(l, in->joined, 0, 2), &product);
}

static srnn_status convolve(const conv_layer *l, const arrays *in, const sr_short_conv *conv) {
    sr_backend *backend = l->backend;
    SR_TRY(backend->short_conv_forward(backend, columns(l, in->joined, 3, 1), conv));
    return backend->activation_forward(backend, in->o, columns(l, in->joined, 2, 2), &product);
}

static srnn_status attend(void *layer, sr_matrix x, const sr_layer_weights *weights, void *saved,
                          const sr_layer_crossing *crossing) {
    const conv_layer *l = layer;
    const arrays in = arrays_at(l, saved, x.rows);
    const place at = whole_rows(l);
    const sr_short_conv conv = conv_of(l, &in, weights, &at);
    (void)crossing;
    SR_TRY(gate(l, &in, x, weights));
    return convolve(l, &in, &conv);
}

static srnn_status finish(void *layer, sr_matrix y, sr_matrix addend, sr_matrix x,
                          const sr_layer_weights *weights, void *saved) {
    const conv_layer *l = layer;
    const arrays in = arrays_at(l, saved, x.rows);
    const sr_linear output = output_of(l, weights);
    return l->backend->linear_forward(l->backend, y, addend, in.o, &output, 1);
}

/* ---- backward */

/* From the gradient of o to that of all columns of `joined`. */
static srnn_status convolve_back(const conv_layer *l, const arrays *d, const arrays *in,
                                 const sr_layer_pointers *gradients, const sr_short_conv *conv) {
    sr_backend *backend = l->backend;
    SR_TRY(backend->activation_backward(backend, columns(l, d->joined, 2, 2), NULL, d->o,
                                        columns(l, in->joined, 2, 2), &product));
    SR_TRY(backend->short_conv_backward(backend, d->gated, gradients->slot[SR_LAYER_CONVS],
                                        gradients->slot[SR_LAYER_CONVS + 1],
                                        columns(l, d->joined, 3, 1), conv));
    return backend->activation_backward(backend, columns(l, d->joined, 0, 2), NULL, d->gated,
                                        columns(l, in->joined, 0, 2), &product);
}

/* Its parameters are forward's, and a gradient for each. */
static srnn_status backward(void *layer, sr_matrix d_x, const sr_layer_pointers *gradients,
                            sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, void *scratch, const sr_layer_crossing *crossing) {
    const conv_layer *l = layer;
    sr_backend *backend = l->backend;
    const arrays in = arrays_at(l, saved, x.rows), d = arrays_at(l, scratch, x.rows);
    const place at = whole_rows(l);
    const sr_short_conv conv = conv_of(l, &in, weights, &at);
    const sr_linear output = output_of(l, weights);
    const sr_linear_gradient d_output = {gradients->slot[SR_LAYER_OUTPUT],
                                         gradients->slot[SR_LAYER_OUTPUT + 1], l->C};
    sr_linear linears[PROJECTIONS];
    sr_linear_gradient d_linears[PROJECTIONS];
    (void)crossing;
    projections(linears, l, weights);
    for (int i = 0; i < PROJECTIONS; i++)
        d_linears[i] =
            (sr_linear_gradient){gradients->slot[SR_LAYER_PROJECTIONS + 2 * i],
                                 gradients->slot[SR_LAYER_PROJECTIONS + 2 * i + 1], l->C};
    SR_TRY(backend->linear_backward(backend,
                                    &(sr_linear_backward){d.o, d_y, in.o, &output, &d_output, 1}));
    SR_TRY(convolve_back(l, &d, &in, gradients, &conv));
    return backend->linear_backward(backend,
                                    &(sr_linear_backward){d_x, columns(l, d.joined, 0, PROJECTIONS),
                                                          x, linears, d_linears, PROJECTIONS});
}

/* ---- fed by pieces */

typedef struct conv_state {
    conv_layer *layer;
    void *history;      /* (B, taps - 1, C), device memory; NULL with one tap */
    void *next_history; /* the one being made */
} conv_state;

static size_t history_bytes(const conv_layer *l) {
    return (size_t)l->B * (size_t)(l->taps - 1) * (size_t)l->C *
           sr_element_bytes(l->backend->number);
}

static void state_free(void *state) {
    conv_state *s = state;
    if (!s)
        return;
    sr_device_release(s->layer->backend->device, s->history);
    sr_device_release(s->layer->backend->device, s->next_history);
    free(s);
}

static srnn_status fill(conv_state *s) {
    srnn_device *device = s->layer->backend->device;
    const size_t bytes = history_bytes(s->layer);
    if (bytes == 0)
        return SRNN_OK;
    SR_TRY(sr_device_allocate(device, &s->next_history, bytes));
    SR_TRY(sr_device_allocate(device, &s->history, bytes));
    return sr_device_zero(device, s->history, bytes);
}

static srnn_status state_create(void **state, void *layer) {
    void *memory;
    *state = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(conv_state)));
    conv_state *created = memory;
    created->layer = layer;
    const srnn_status status = fill(created);
    if (status != SRNN_OK)
        state_free(created);
    else
        *state = created;
    return status;
}

/* Positions say that nothing came before. */
static srnn_status state_reset(void *state) {
    (void)state;
    return SRNN_OK;
}

static size_t state_bytes(const void *state, int64_t position) {
    const conv_state *s = state;
    (void)position;
    return history_bytes(s->layer);
}

static srnn_status state_save(const void *state, void *bytes) {
    const conv_state *s = state;
    return s->history ? sr_device_copy_out(s->layer->backend->device, bytes, s->history,
                                           history_bytes(s->layer))
                      : SRNN_OK;
}

static srnn_status state_load(void *state, const void *bytes, int64_t position) {
    const conv_state *s = state;
    (void)position;
    return s->history ? sr_device_copy_in(s->layer->backend->device, s->history, bytes,
                                          history_bytes(s->layer))
                      : SRNN_OK;
}

static srnn_status state_grow(void *state, int64_t tokens, bool *moved) {
    (void)state;
    (void)tokens;
    *moved = false;
    return SRNN_OK;
}

static srnn_status state_reserve(void *state, int T, bool *moved) {
    const conv_state *s = state;
    *moved = false;
    if (T >= 1 && T <= s->layer->T)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT, "a piece of %d tokens; the layer takes 1 to %d", T,
                   s->layer->T);
}

/* The last inputs end up where they were read from, so that the same call can be replayed. */
static srnn_status remember(const conv_state *s, const sr_short_conv *conv) {
    sr_backend *backend = s->layer->backend;
    if (!s->history)
        return SRNN_OK;
    SR_TRY(backend->short_conv_history(backend, s->next_history, conv));
    return sr_device_copy(backend->device, s->history, s->next_history, history_bytes(s->layer));
}

static srnn_status state_run(void *state, sr_matrix y, sr_matrix x, const sr_layer_weights *weights,
                             const sr_layer_piece_place *where) {
    const conv_state *s = state;
    const conv_layer *l = s->layer;
    const arrays in = arrays_at(l, where->saved, x.rows);
    const place at = {where->positions, where->T, s->history};
    const sr_short_conv conv = conv_of(l, &in, weights, &at);
    if (where->norm)
        SR_TRY(l->backend->rmsnorm_forward(l->backend, x.data, where->norm));
    SR_TRY(gate(l, &in, x, weights));
    SR_TRY(convolve(l, &in, &conv));
    SR_TRY(remember(s, &conv));
    return finish(s->layer, y, y, x, weights, where->saved);
}

static void state_advance(void *state, int T) {
    (void)state;
    (void)T;
}

static bool state_is_recurrent(const void *state) {
    (void)state;
    return true;
}

/* ---- the kind */

static const sr_mixer_calls calls = {.free = layer_free,
                                     .saved_bytes = saved_bytes,
                                     .scratch_bytes = saved_bytes,
                                     .attend = attend,
                                     .finish = finish,
                                     .backward = backward,
                                     .place = set_positions,
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

srnn_status sr_mixer_of_conv(sr_mixer *mixer, sr_backend *backend, const sr_layer_setup *setup) {
    const srnn_wiring *w = &setup->attention.wiring;
    void *memory;
    SR_TRY(srnn_attention_check(&setup->attention));
    if (setup->part)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layer=conv is computed on whole rows, not on the "
                                             "parts of context ranks");
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(conv_layer)));
    *(conv_layer *)memory = (conv_layer){.backend = backend,
                                         .B = setup->B,
                                         .T = setup->T,
                                         .C = setup->dims.C,
                                         .taps = w->short_conv,
                                         .plain = w->conv_activation == SRNN_CONV_ACTIVATION_NONE,
                                         .positions = setup->positions};
    *mixer = (sr_mixer){&calls, memory, NULL};
    return SRNN_OK;
}
