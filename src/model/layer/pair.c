/* pair.c: two mixers of one input, side by side in a block. */
#include "model/layer/pair.h"

#include "base/memory.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

typedef struct pair {
    sr_backend *backend;
    sr_pair_setup setup;
} pair;

/* What forward leaves for backward. */
typedef struct arrays {
    void *parts[2];      /* what each saves; the first comes first, where observers look */
    sr_matrix scaled[2]; /* (rows, C): e x, where e is not 1 */
    float *made;         /* (rows, C): what one of them made; not read by backward */
} arrays;

typedef struct scratch_arrays {
    sr_matrix d_out; /* (rows, C): f d_y */
    sr_matrix d_x;   /* (rows, C): of the second */
    void *part;      /* of one at a time */
} scratch_arrays;

static void *take(char *base, size_t *bytes, size_t size) {
    char *start = base ? base + *bytes : NULL;
    *bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* base NULL: only the bytes of all. `rows` of those that there is room for. */
static arrays lay_out(const pair *p, char *base, int64_t rows, size_t *bytes) {
    const int64_t C = p->setup.C;
    const srnn_dtype number = p->backend->number;
    const size_t numbers = (size_t)(p->setup.rows * C);
    arrays a = {0};
    *bytes = 0;
    for (int n = 0; n < 2; n++)
        a.parts[n] = take(base, bytes, sr_mixer_saved_bytes(&p->setup.parts[n]));
    for (int n = 0; n < 2; n++)
        if (p->setup.in[n] != 1.0f)
            a.scaled[n] = sr_matrix_of(take(base, bytes, numbers * sr_element_bytes(number)), rows,
                                       C, number);
    a.made = take(base, bytes, numbers * sizeof *a.made);
    return a;
}

static arrays arrays_at(const pair *p, void *base, int64_t rows) {
    size_t bytes;
    return lay_out(p, base, rows, &bytes);
}

static scratch_arrays lay_out_scratch(const pair *p, char *base, int64_t rows, size_t *bytes) {
    const int64_t C = p->setup.C;
    const srnn_dtype number = p->backend->number;
    const size_t numbers = (size_t)(p->setup.rows * C) * sr_element_bytes(number);
    const size_t first = sr_mixer_scratch_bytes(&p->setup.parts[0]);
    const size_t second = sr_mixer_scratch_bytes(&p->setup.parts[1]);
    scratch_arrays s;
    *bytes = 0;
    s.d_out = sr_matrix_of(take(base, bytes, numbers), rows, C, number);
    s.d_x = sr_matrix_of(take(base, bytes, numbers), rows, C, number);
    s.part = take(base, bytes, first > second ? first : second);
    return s;
}

static void pair_free(void *layer) {
    pair *p = layer;
    if (!p)
        return;
    for (int n = 0; n < 2; n++)
        sr_mixer_free(&p->setup.parts[n]);
    free(p);
}

static size_t saved_bytes(const void *layer) {
    size_t bytes;
    lay_out(layer, NULL, 0, &bytes);
    return bytes;
}

static size_t scratch_bytes(const void *layer) {
    size_t bytes;
    lay_out_scratch(layer, NULL, 0, &bytes);
    return bytes;
}

static size_t own_bytes(const void *layer) {
    const pair *p = layer;
    return sr_mixer_own_bytes(&p->setup.parts[0]) + sr_mixer_own_bytes(&p->setup.parts[1]);
}

static srnn_status documents(void *layer, const sr_documents *documents) {
    const pair *p = layer;
    for (int n = 0; n < 2; n++)
        SR_TRY(sr_mixer_documents(&p->setup.parts[n], documents));
    return SRNN_OK;
}

static void place(void *layer, const int32_t *positions) {
    const pair *p = layer;
    for (int n = 0; n < 2; n++)
        sr_mixer_place(&p->setup.parts[n], positions);
}

/* ---- forward */

static sr_layer_weights weights_of(const sr_layer_weights *weights, int n) {
    return (sr_layer_weights){weights->master + n, weights->working + n, weights->narrow};
}

static sr_matrix input_of(const pair *p, const arrays *in, sr_matrix x, int n) {
    return p->setup.in[n] == 1.0f ? x : in->scaled[n];
}

/* to = factor x, both (rows, C) without gaps. */
static srnn_status copy_scaled(const pair *p, sr_matrix to, sr_matrix x, float factor) {
    sr_backend *backend = p->backend;
    SR_TRY(sr_device_copy(backend->device, to.data, x.data,
                          (size_t)(x.rows * x.columns) * sr_element_bytes(x.dtype)));
    return backend->scale(backend, to, factor);
}

static srnn_status scale_inputs(const pair *p, const arrays *in, sr_matrix x) {
    for (int n = 0; n < 2; n++)
        if (p->setup.in[n] != 1.0f)
            SR_TRY(copy_scaled(p, in->scaled[n], x, p->setup.in[n]));
    return SRNN_OK;
}

static srnn_status attend(void *layer, sr_matrix x, const sr_layer_weights *weights, void *saved,
                          const sr_layer_crossing *crossing) {
    const pair *p = layer;
    const arrays in = arrays_at(p, saved, x.rows);
    SR_TRY(scale_inputs(p, &in, x));
    for (int n = 0; n < 2; n++) {
        const sr_layer_weights own = weights_of(weights, n);
        SR_TRY(sr_mixer_attend(&p->setup.parts[n], input_of(p, &in, x, n), &own, in.parts[n],
                               crossing));
    }
    return SRNN_OK;
}

/* y = addend + factor made; the addend's data may be NULL. */
static srnn_status add_made(const pair *p, sr_matrix y, sr_matrix addend, sr_matrix made,
                            float factor) {
    if (addend.data)
        return p->backend->add_scaled(p->backend, y, addend, made, factor);
    return copy_scaled(p, y, made, factor);
}

static srnn_status finish(void *layer, sr_matrix y, sr_matrix addend, sr_matrix x,
                          const sr_layer_weights *weights, void *saved) {
    const pair *p = layer;
    const arrays in = arrays_at(p, saved, x.rows);
    const sr_matrix made = sr_matrix_of(in.made, y.rows, y.columns, SRNN_F32);
    for (int n = 0; n < 2; n++) {
        const sr_layer_weights own = weights_of(weights, n);
        SR_TRY(sr_mixer_finish(&p->setup.parts[n], made, (sr_matrix){0}, input_of(p, &in, x, n),
                               &own, in.parts[n]));
        SR_TRY(add_made(p, y, n ? y : addend, made, p->setup.out[n]));
    }
    return SRNN_OK;
}

/* ---- backward */

/* Its parameters are forward's, and a gradient for each. */
static srnn_status backward(void *layer, sr_matrix d_x, const sr_layer_pointers *gradients,
                            sr_matrix d_y, sr_matrix x, const sr_layer_weights *weights,
                            void *saved, void *scratch, const sr_layer_crossing *crossing) {
    const pair *p = layer;
    const arrays in = arrays_at(p, saved, x.rows);
    size_t bytes;
    const scratch_arrays s = lay_out_scratch(p, scratch, x.rows, &bytes);
    for (int n = 0; n < 2; n++) {
        const sr_layer_weights own = weights_of(weights, n);
        const sr_matrix d_in = n ? s.d_x : d_x;
        if (p->setup.out[n] != 1.0f)
            SR_TRY(copy_scaled(p, s.d_out, d_y, p->setup.out[n]));
        SR_TRY(sr_mixer_backward(&p->setup.parts[n], d_in, gradients + n,
                                 p->setup.out[n] == 1.0f ? d_y : s.d_out, input_of(p, &in, x, n),
                                 &own, in.parts[n], s.part, crossing));
        if (p->setup.in[n] != 1.0f)
            SR_TRY(p->backend->scale(p->backend, d_in, p->setup.in[n]));
    }
    return p->backend->add_rows(p->backend, d_x, s.d_x);
}

/* ---- fed by pieces */

typedef struct pair_state {
    const pair *layer;
    sr_mixer_state parts[2];
} pair_state;

static void state_free(void *state) {
    pair_state *s = state;
    if (!s)
        return;
    for (int n = 0; n < 2; n++)
        sr_mixer_state_free(&s->parts[n]);
    free(s);
}

static srnn_status state_create(void **state, void *layer) {
    void *memory;
    *state = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(pair_state)));
    pair_state *created = memory;
    created->layer = layer;
    srnn_status status = SRNN_OK;
    for (int n = 0; n < 2 && status == SRNN_OK; n++)
        status = sr_mixer_state_create(&created->parts[n], &created->layer->setup.parts[n]);
    if (status != SRNN_OK)
        state_free(created);
    else
        *state = created;
    return status;
}

static srnn_status state_reset(void *state) {
    pair_state *s = state;
    SR_TRY(sr_mixer_state_reset(&s->parts[0]));
    return sr_mixer_state_reset(&s->parts[1]);
}

static size_t state_bytes(const void *state, int64_t position) {
    const pair_state *s = state;
    return sr_mixer_state_bytes(&s->parts[0], position) +
           sr_mixer_state_bytes(&s->parts[1], position);
}

static srnn_status state_save(const void *state, void *bytes) {
    const pair_state *s = state;
    const size_t first = sr_mixer_state_bytes(&s->parts[0], s->parts[0].position);
    SR_TRY(sr_mixer_state_save(&s->parts[0], bytes));
    return sr_mixer_state_save(&s->parts[1], (char *)bytes + first);
}

static srnn_status state_load(void *state, const void *bytes, int64_t position) {
    pair_state *s = state;
    const size_t first = sr_mixer_state_bytes(&s->parts[0], position);
    SR_TRY(sr_mixer_state_load(&s->parts[0], bytes, position));
    return sr_mixer_state_load(&s->parts[1], (const char *)bytes + first, position);
}

static srnn_status state_grow(void *state, int64_t tokens, bool *moved) {
    pair_state *s = state;
    bool second;
    SR_TRY(sr_mixer_state_grow(&s->parts[0], tokens, moved));
    SR_TRY(sr_mixer_state_grow(&s->parts[1], tokens, &second));
    *moved = *moved || second;
    return SRNN_OK;
}

static srnn_status state_reserve(void *state, int T, bool *moved) {
    pair_state *s = state;
    bool second;
    SR_TRY(sr_mixer_state_reserve(&s->parts[0], T, moved));
    SR_TRY(sr_mixer_state_reserve(&s->parts[1], T, &second));
    *moved = *moved || second;
    return SRNN_OK;
}

/* y += what part n makes of its input. Its parameters are state_run's, and the part. */
static srnn_status run_part(pair_state *s, int n, sr_matrix y, const arrays *in, sr_matrix x,
                            const sr_layer_weights *weights, const sr_layer_piece_place *where) {
    const pair *p = s->layer;
    sr_backend *backend = p->backend;
    const sr_layer_weights own = weights_of(weights, n);
    const sr_layer_piece_place at = {where->T, where->positions, in->parts[n], NULL};
    const sr_matrix made = sr_matrix_of(in->made, y.rows, y.columns, SRNN_F32);
    const sr_matrix input = input_of(p, in, x, n);
    if (p->setup.out[n] == 1.0f)
        return sr_mixer_state_run(&s->parts[n], y, input, &own, &at);
    SR_TRY(sr_device_zero(backend->device, in->made, (size_t)(y.rows * y.columns) * sizeof(float)));
    SR_TRY(sr_mixer_state_run(&s->parts[n], made, input, &own, &at));
    return backend->add_scaled(backend, y, y, made, p->setup.out[n]);
}

static srnn_status state_run(void *state, sr_matrix y, sr_matrix x, const sr_layer_weights *weights,
                             const sr_layer_piece_place *where) {
    pair_state *s = state;
    const pair *p = s->layer;
    const arrays in = arrays_at(p, where->saved, x.rows);
    if (where->norm)
        SR_TRY(p->backend->rmsnorm_forward(p->backend, x.data, where->norm));
    SR_TRY(scale_inputs(p, &in, x));
    SR_TRY(run_part(s, 0, y, &in, x, weights, where));
    return run_part(s, 1, y, &in, x, weights, where);
}

static void state_advance(void *state, int T) {
    pair_state *s = state;
    sr_mixer_state_advance(&s->parts[0], T);
    sr_mixer_state_advance(&s->parts[1], T);
}

static bool state_is_recurrent(const void *state) {
    const pair_state *s = state;
    return sr_mixer_state_is_recurrent(&s->parts[0]) && sr_mixer_state_is_recurrent(&s->parts[1]);
}

/* ---- the kind */

static const sr_mixer_calls calls = {.free = pair_free,
                                     .saved_bytes = saved_bytes,
                                     .scratch_bytes = scratch_bytes,
                                     .attend = attend,
                                     .finish = finish,
                                     .backward = backward,
                                     .documents = documents,
                                     .place = place,
                                     .own_bytes = own_bytes,
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

srnn_status sr_mixer_of_pair(sr_mixer *mixer, sr_backend *backend, const sr_pair_setup *setup) {
    pair made = {backend, *setup};
    void *memory;
    const srnn_status status = sr_alloc(&memory, 1, sizeof made);
    if (status != SRNN_OK) {
        for (int n = 0; n < 2; n++)
            sr_mixer_free(&made.setup.parts[n]);
        return status;
    }
    *(pair *)memory = made;
    *mixer = (sr_mixer){&calls, memory, setup->parts[0].attention};
    return SRNN_OK;
}
