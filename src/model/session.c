/* session.c: a model fed by pieces. */
#include "model/session.h"

#include "base/memory.h"
#include "model/block.h"
#include "model/layer_kinds.h"

#include <stdlib.h>

struct sr_session {
    sr_model *model;
    sr_backend *backend;
    sr_session_setup setup;
    sr_layer_kinds kinds;
    sr_layer_state **states; /* (L) */
    void *saved;             /* of one layer, shared by all */
    int32_t *ids;            /* (B*T), backend */
    float *x, *normed;       /* (B*T, C) each, backend */
    float *rstd;             /* (B*T), backend */
    float *last;             /* (B, C): the rows whose logits are wanted, backend */
    float *logits;           /* (B, V), backend */
    int64_t position;
};

static srnn_status take(sr_session *session, float **out, size_t count) {
    void *memory;
    SR_TRY(sr_device_allocate(session->backend->device, &memory, count * sizeof(float)));
    *out = memory;
    return SRNN_OK;
}

static sr_block block_of(const sr_session *session, int layer, int64_t rows) {
    return (sr_block){.backend = session->backend,
                      .config = &session->model->config,
                      .attention = session->kinds.of_layer[layer],
                      .weight = &session->model->weight.block[layer],
                      .rows = rows};
}

static srnn_status take_all(sr_session *session) {
    const sr_model_config *c = &session->model->config;
    const size_t B = (size_t)session->setup.B, rows = B * (size_t)session->setup.T;
    size_t saved = 0;
    void *memory;
    for (int layer = 0; layer < c->L; layer++) {
        const sr_block block = block_of(session, layer, (int64_t)rows);
        const size_t bytes = sr_block_saved_bytes(&block);
        saved = bytes > saved ? bytes : saved;
    }
    SR_TRY(sr_device_allocate(session->backend->device, &session->saved, saved));
    SR_TRY(sr_device_allocate(session->backend->device, &memory, rows * sizeof(int32_t)));
    session->ids = memory;
    SR_TRY(take(session, &session->x, rows * (size_t)c->C));
    SR_TRY(take(session, &session->normed, rows * (size_t)c->C));
    SR_TRY(take(session, &session->rstd, rows));
    SR_TRY(take(session, &session->last, B * (size_t)c->C));
    return take(session, &session->logits, B * (size_t)c->V);
}

static srnn_status fill(sr_session *session) {
    const sr_model_config *c = &session->model->config;
    const sr_layer_setup layer_setup = {.dims = sr_model_config_dims(c),
                                        .B = session->setup.B,
                                        .T = session->setup.T,
                                        .rope_table = session->model->rope_table,
                                        .rope_positions = c->positions,
                                        .form = session->setup.form,
                                        .state_limit = session->setup.state_limit};
    void *memory;
    SR_TRY(sr_layer_kinds_create(&session->kinds, session->backend, c, &layer_setup));
    SR_TRY(sr_alloc_zero(&memory, (size_t)c->L, sizeof *session->states));
    session->states = memory;
    for (int layer = 0; layer < c->L; layer++)
        SR_TRY(sr_layer_state_create(&session->states[layer], session->kinds.of_layer[layer]));
    return take_all(session);
}

srnn_status sr_session_create(sr_session **session, sr_model *model,
                              const sr_session_setup *setup) {
    void *memory;
    *session = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **session));
    sr_session *created = memory;
    created->model = model;
    created->backend = model->backend;
    created->setup = *setup;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_session_free(created);
        return status;
    }
    *session = created;
    return SRNN_OK;
}

void sr_session_free(sr_session *session) {
    if (!session)
        return;
    void *const memory[] = {session->saved, session->ids,  session->x,     session->normed,
                            session->rstd,  session->last, session->logits};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        sr_device_release(session->backend->device, memory[i]);
    for (int layer = 0; session->states && layer < session->model->config.L; layer++)
        sr_layer_state_free(session->states[layer]);
    free(session->states);
    sr_layer_kinds_free(&session->kinds);
    free(session);
}

void sr_session_reset(sr_session *session) {
    session->position = 0;
    for (int layer = 0; layer < session->model->config.L; layer++)
        sr_layer_state_reset(session->states[layer]);
}

/* ids in, session->normed (B*T, C) out. */
static srnn_status forward(sr_session *session, const int32_t *ids, int T) {
    sr_backend *backend = session->backend;
    const sr_model *model = session->model;
    const int64_t rows = (int64_t)session->setup.B * T;
    if (T < 1 || T > session->setup.T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a piece of %d tokens; the session takes 1 to %d", T,
                       session->setup.T);
    for (int64_t row = 0; row < rows; row++)
        if (ids[row] >= model->config.V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d: the model has only %d", ids[row],
                           model->config.V);
    SR_TRY(sr_device_copy_in(backend->device, session->ids, ids, (size_t)rows * sizeof *ids));
    SR_TRY(backend->embed_forward(backend, sr_matrix_of(session->x, rows, model->config.C),
                                  model->weight.embedding, session->ids));
    for (int layer = 0; layer < model->config.L; layer++) {
        const sr_block block = block_of(session, layer, rows);
        const sr_block_saved saved = sr_block_saved_at(&block, session->saved);
        SR_TRY(sr_block_feed(&block, session->x, session->states[layer], &saved, T));
    }
    session->position += T;
    const sr_rmsnorm norm = {session->x,    model->weight.norm,
                             session->rstd, (float)model->config.norm_epsilon,
                             rows,          model->config.C};
    return backend->rmsnorm_forward(backend, session->normed, &norm);
}

/* The logits (B, V) that follow token t of each sequence; sequence b's go to out + b * stride. */
static srnn_status logits_after(sr_session *session, float *out, size_t stride, int t, int T) {
    sr_backend *backend = session->backend;
    const sr_model *model = session->model;
    const size_t C = (size_t)model->config.C, V = (size_t)model->config.V;
    for (size_t b = 0; b < (size_t)session->setup.B; b++)
        SR_TRY(sr_device_copy(backend->device, session->last + b * C,
                              session->normed + (b * (size_t)T + (size_t)t) * C,
                              C * sizeof(float)));
    SR_TRY(backend->linear_forward(backend,
                                   sr_matrix_of(session->logits, session->setup.B, model->config.V),
                                   sr_matrix_of(session->last, session->setup.B, model->config.C),
                                   model->weight.head, NULL, false));
    for (size_t b = 0; b < (size_t)session->setup.B; b++)
        SR_TRY(sr_device_copy_out(backend->device, out + b * stride, session->logits + b * V,
                                  V * sizeof(float)));
    return SRNN_OK;
}

srnn_status sr_session_feed(sr_session *session, float *logits, const int32_t *ids, int T) {
    SR_TRY(forward(session, ids, T));
    return logits_after(session, logits, (size_t)session->model->config.V, T - 1, T);
}

srnn_status sr_session_feed_all(sr_session *session, float *logits, const int32_t *ids, int T) {
    const size_t V = (size_t)session->model->config.V;
    SR_TRY(forward(session, ids, T));
    for (int t = 0; t < T; t++)
        SR_TRY(logits_after(session, logits + (size_t)t * V, (size_t)T * V, t, T));
    return SRNN_OK;
}

int64_t sr_session_position(const sr_session *session) {
    return session->position;
}

size_t sr_session_state_bytes(const sr_session *session) {
    size_t bytes = 0;
    for (int layer = 0; layer < session->model->config.L; layer++)
        bytes += srnn_state_saved_bytes(sr_layer_state_attention(session->states[layer]));
    return bytes;
}

bool sr_session_is_fixed(const sr_session *session) {
    for (int layer = 0; layer < session->model->config.L; layer++)
        if (!srnn_state_is_fixed(sr_layer_state_attention(session->states[layer])))
            return false;
    return true;
}
