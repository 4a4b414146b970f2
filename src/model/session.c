/* session.c: decoding: a model fed by pieces. */
#include "model/session.h"

#include "base/memory.h"
#include "model/avey/feed.h"
#include "model/ends.h"
#include "model/layer/block/block.h"
#include "model/layer/kinds.h"
#include "model/mixers.h"

#include <stdlib.h>

struct sr_session {
    sr_model *model;
    sr_backend *backend;
    sr_session_setup setup;
    sr_layer_kinds kinds;
    sr_mixer_state *states;  /* (L); NULL in a model of Avey, */
    sr_avey_feed *avey;      /* which has this */
    void *saved;             /* of one layer, shared by all */
    int32_t *ids;            /* (B*T), device memory */
    int32_t *positions;      /* (B*T), device memory */
    int32_t *host_positions; /* (B*T) */
    float *x;                /* (B*T, C), device memory */
    float *first_values;     /* (B*T, columns of v): of RWKV-7's first layer; or NULL */
    void *normed;            /* (B*T, C), number type, device memory */
    float *rstd;             /* (B*T), device memory */
    void *logits;            /* (logit_rows, V), number type, device memory */
    int64_t logit_rows;      /* B, or more where losses are wanted */
    float *losses;           /* (logit_rows), device memory; NULL: losses are not wanted */
    int32_t *targets, *hits; /* the same */
    int32_t *chosen;         /* (B): the most probable tokens, device memory */
    int64_t position;
    int T;        /* tokens of the piece that is being fed */
    sr_graph one; /* pieces of one token */

    /* Of sr_session_feed_relayed, host memory. */
    char **sent; /* (L): the states of layers that were handed on; or NULL */
    char *received;
};

static srnn_status take(sr_session *session, void **out, size_t count, size_t size) {
    return sr_device_allocate(session->backend->device, out, count * size);
}

static sr_block block_of(const sr_session *session, int layer, int64_t rows) {
    return (sr_block){.backend = session->backend,
                      .config = &session->model->config,
                      .mixer = session->kinds.of_layer[layer],
                      .master = &session->model->master.block[layer],
                      .worker = &session->model->worker.block[layer],
                      .narrow = session->model->narrow,
                      .rows = rows,
                      .layer = layer};
}

/* Layers with a state. */
static int state_count(const sr_session *session) {
    return session->states ? session->model->config.L : 0;
}

/* Losses are computed for one tile of rows at a time. */
static srnn_status take_losses(sr_session *session, int64_t rows) {
    enum { LOSS_ROWS = 128 };
    void *memory;
    session->logit_rows = session->setup.B;
    if (!session->setup.losses)
        return SRNN_OK;
    const int64_t tile = rows < LOSS_ROWS ? rows : LOSS_ROWS;
    session->logit_rows = tile > session->setup.B ? tile : session->setup.B;
    SR_TRY(take(session, &memory, (size_t)session->logit_rows, sizeof *session->losses));
    session->losses = memory;
    SR_TRY(take(session, &memory, (size_t)session->logit_rows, sizeof *session->targets));
    session->targets = memory;
    SR_TRY(take(session, &memory, (size_t)session->logit_rows, sizeof *session->hits));
    session->hits = memory;
    return SRNN_OK;
}

static srnn_status take_all(sr_session *session) {
    const sr_model_config *c = &session->model->config;
    const size_t B = (size_t)session->setup.B, rows = B * (size_t)session->setup.T;
    const size_t C = (size_t)c->C, number = sr_element_bytes(session->backend->number);
    size_t saved = 0;
    void *memory;
    for (int layer = 0; layer < state_count(session); layer++) {
        const sr_block block = block_of(session, layer, (int64_t)rows);
        const size_t bytes = sr_block_saved_bytes(&block);
        saved = bytes > saved ? bytes : saved;
    }
    SR_TRY(take(session, &session->saved, saved, 1));
    SR_TRY(take(session, &memory, rows, sizeof *session->ids));
    session->ids = memory;
    SR_TRY(take(session, &memory, rows, sizeof *session->positions));
    session->positions = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof *session->host_positions));
    session->host_positions = memory;
    SR_TRY(take(session, &memory, rows * C, sizeof *session->x));
    session->x = memory;
    SR_TRY(take(session, &memory, rows, sizeof *session->rstd));
    session->rstd = memory;
    SR_TRY(take(session, &memory, B, sizeof *session->chosen));
    session->chosen = memory;
    SR_TRY(take(session, &session->normed, rows * C, number));
    SR_TRY(take_losses(session, (int64_t)rows));
    return take(session, &session->logits, (size_t)session->logit_rows * (size_t)c->V, number);
}

/* All tokens are kept for the ranker, so memory grows with the text like a KV cache. */
static srnn_status check_avey_form(srnn_form form) {
    if (form == SRNN_FORM_AUTO || form == SRNN_FORM_PARALLEL)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "an Avey model has no fixed-size state: its ranker reads all tokens before");
}

static srnn_status fill(sr_session *session) {
    const sr_model_config *c = &session->model->config;
    const int64_t values = sr_layer_kinds_first_values(c);
    const size_t rows = (size_t)session->setup.B * (size_t)session->setup.T;
    if (values) {
        void *first;
        SR_TRY(take(session, &first, rows * (size_t)values, sizeof *session->first_values));
        session->first_values = first;
    }
    const sr_layer_setup layer_setup = {.B = session->setup.B,
                                        .T = session->setup.T,
                                        .first_values = session->first_values,
                                        .first_columns = values,
                                        .form = session->setup.form,
                                        .state_limit = session->setup.state_limit};
    void *memory;
    if (sr_mixer_row_of(c)->contexts) {
        SR_TRY(check_avey_form(session->setup.form));
        SR_TRY(sr_avey_feed_create(&session->avey, session->model, session->setup.B));
        return take_all(session);
    }
    SR_TRY(sr_layer_kinds_create(&session->kinds, session->model, &layer_setup));
    SR_TRY(sr_alloc_zero(&memory, (size_t)c->L, sizeof *session->states));
    session->states = memory;
    for (int layer = 0; layer < c->L; layer++)
        SR_TRY(sr_mixer_state_create(&session->states[layer], session->kinds.of_layer[layer]));
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
    srnn_device *device = session->backend->device;
    void *const memory[] = {session->saved,  session->ids,     session->positions,
                            session->x,      session->normed,  session->rstd,
                            session->logits, session->chosen,  session->first_values,
                            session->losses, session->targets, session->hits};
    sr_device_forget(device, &session->one);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        sr_device_release(device, memory[i]);
    for (int layer = 0; layer < state_count(session); layer++)
        sr_mixer_state_free(&session->states[layer]);
    for (int layer = 0; session->sent && layer < state_count(session); layer++)
        free(session->sent[layer]);
    free(session->sent);
    free(session->received);
    free(session->host_positions);
    free(session->states);
    sr_avey_feed_free(session->avey);
    sr_layer_kinds_free(&session->kinds);
    free(session);
}

srnn_status sr_session_reset(sr_session *session) {
    session->position = 0;
    if (session->avey)
        SR_TRY(sr_avey_feed_reset(session->avey));
    for (int layer = 0; layer < state_count(session); layer++)
        SR_TRY(sr_mixer_state_reset(&session->states[layer]));
    return SRNN_OK;
}

srnn_status sr_session_grow(sr_session *session, int64_t tokens) {
    for (int layer = 0; layer < state_count(session); layer++) {
        bool moved;
        SR_TRY(sr_mixer_state_grow(&session->states[layer], tokens, &moved));
        if (moved)
            sr_device_forget(session->backend->device, &session->one);
    }
    return SRNN_OK;
}

/* Grows the KV caches for T more tokens. */
static srnn_status reserve(sr_session *session, int T) {
    for (int layer = 0; layer < state_count(session); layer++) {
        bool moved;
        SR_TRY(sr_mixer_state_reserve(&session->states[layer], T, &moved));
        if (moved)
            sr_device_forget(session->backend->device, &session->one);
    }
    session->T = T;
    return SRNN_OK;
}

/* Checks a piece, grows the states for it, and copies it to the device. */
static srnn_status load(sr_session *session, const int32_t *ids, int T) {
    srnn_device *device = session->backend->device;
    const sr_model *model = session->model;
    const int64_t rows = (int64_t)session->setup.B * T;
    if (T < 1 || T > session->setup.T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a piece of %d tokens; the session takes 1 to %d", T,
                       session->setup.T);
    for (int64_t row = 0; row < rows; row++) {
        if (ids[row] >= model->config.V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d: the model has only %d", ids[row],
                           model->config.V);
        session->host_positions[row] = (int32_t)(session->position + row % T);
    }
    SR_TRY(reserve(session, T));
    SR_TRY(sr_device_copy_in(device, session->ids, ids, (size_t)rows * sizeof *ids));
    return sr_device_copy_in(device, session->positions, session->host_positions,
                             (size_t)rows * sizeof *session->host_positions);
}

/* One token at a time: the context depends on the token. */
static srnn_status avey_forward(sr_session *session) {
    const int64_t C = session->model->config.C, T = session->T;
    for (int64_t t = 0; t < T; t++)
        SR_TRY(sr_avey_feed_token(session->avey, session->x + t * C, T * C, session->ids + t, T));
    return SRNN_OK;
}

static srnn_status feed_block(sr_session *session, int layer, int64_t rows,
                              const sr_layer_piece_place *place) {
    const sr_block block = block_of(session, layer, rows);
    const sr_block_saved saved = sr_block_saved_at(&block, session->saved);
    return sr_block_feed(&block, session->x, &session->states[layer], &saved, place);
}

static srnn_status blocks_forward(sr_session *session, int64_t rows) {
    const sr_model *model = session->model;
    const sr_layer_piece_place place = {.T = session->T, .positions = session->positions};
    SR_TRY(sr_ends_embed(model, sr_matrix_of(session->x, rows, model->config.C, SRNN_F32),
                         session->ids));
    for (int layer = 0; layer < model->config.L; layer++)
        SR_TRY(feed_block(session, layer, rows, &place));
    return SRNN_OK;
}

/* From the loaded piece to the last layer's output, session->x (B*T, C). */
static srnn_status layers_forward(sr_session *session) {
    const int64_t rows = (int64_t)session->setup.B * session->T;
    return session->avey ? avey_forward(session) : blocks_forward(session, rows);
}

static sr_rmsnorm last_norm(const sr_session *session) {
    return sr_ends_rmsnorm(session->model, session->x, session->rstd,
                           (int64_t)session->setup.B * session->T);
}

static sr_linear head_of(const sr_session *session) {
    return sr_model_head(session->model);
}

static sr_matrix logits_of(const sr_session *session) {
    return sr_matrix_of(session->logits, session->setup.B, session->model->config.V,
                        session->backend->number);
}

/* The norm of all tokens, in session->normed. */
static srnn_status norm_all(sr_session *session) {
    const sr_rmsnorm norm = last_norm(session);
    return sr_ends_norm(session->model, session->normed, &norm);
}

/* The logits (B, V) that follow token t of each sequence, in session->logits. */
static srnn_status logits_after(sr_session *session, int t) {
    sr_backend *backend = session->backend;
    const int64_t B = session->setup.B, C = session->model->config.C;
    const sr_linear head = head_of(session);
    /* Every T-th row, from the t-th on. */
    const sr_matrix rows = {sr_number_at(session->normed, t * C, backend->number),
                            B,
                            C,
                            session->T * C,
                            backend->number,
                            SR_HANDED_NUMBERS,
                            NULL};
    SR_TRY(backend->linear_forward(backend, logits_of(session), (sr_matrix){0}, rows, &head, 1));
    return sr_ends_logits(session->model, logits_of(session));
}

/* The same where every sequence has one token: norm and head at once. */
static srnn_status logits_of_one(sr_session *session) {
    const sr_linear head = head_of(session);
    const sr_norm_linear of = {.norm = last_norm(session),
                               .normed = session->normed,
                               .layers = &head,
                               .count = 1};
    return session->backend->norm_linear_forward(session->backend, logits_of(session), &of);
}

/* Sequence b's logits go to out + b * stride. */
static srnn_status fetch_logits(sr_session *session, float *out, size_t stride) {
    const sr_matrix logits = logits_of(session);
    for (int b = 0; b < session->setup.B; b++)
        SR_TRY(sr_matrix_fetch(out + (size_t)b * stride, session->backend->device,
                               sr_matrix_rows(logits, b, 1)));
    return SRNN_OK;
}

/* One feed; the body of the captured graph for pieces of one token. */
static srnn_status feed(void *context) {
    sr_session *session = context;
    SR_TRY(layers_forward(session));
    if (session->T == 1 && sr_ends_are_plain(&session->model->config)) {
        SR_TRY(logits_of_one(session));
    } else {
        SR_TRY(norm_all(session));
        SR_TRY(logits_after(session, session->T - 1));
    }
    return session->backend->argmax(session->backend, session->chosen, logits_of(session));
}

static void advance(sr_session *session) {
    session->position += session->T;
    for (int layer = 0; layer < state_count(session); layer++)
        sr_mixer_state_advance(&session->states[layer], session->T);
}

/* Starts the loaded piece. The kernels of an Avey model depend on the length of the text, so its
 * steps cannot be captured. */
static srnn_status start_loaded(sr_session *session) {
    SR_TRY(session->T == 1 && !session->avey
               ? sr_device_repeat(session->backend->device, &session->one, feed, session)
               : feed(session));
    advance(session);
    return SRNN_OK;
}

static srnn_status start(sr_session *session, const int32_t *ids, int T) {
    SR_TRY(load(session, ids, T));
    return start_loaded(session);
}

srnn_status sr_session_feed(sr_session *session, float *logits, const int32_t *ids, int T) {
    SR_TRY(start(session, ids, T));
    return fetch_logits(session, logits, (size_t)session->model->config.V);
}

srnn_status sr_session_feed_greedy(sr_session *session, int32_t *next, const int32_t *ids, int T) {
    SR_TRY(start(session, ids, T));
    return sr_session_chosen(session, next);
}

/* There is no most probable token before the first feed. */
static srnn_status check_fed(const sr_session *session) {
    if (session->position == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "nothing was fed to the session yet, so that no token "
                                          "is the most probable next one: feed one first");
    return SRNN_OK;
}

srnn_status sr_session_chosen(sr_session *session, int32_t *next) {
    SR_TRY(check_fed(session));
    return sr_device_copy_out(session->backend->device, next, session->chosen,
                              (size_t)session->setup.B * sizeof *next);
}

bool sr_session_runs_ahead(const sr_session *session) {
    return session->backend->device->flags & SR_DEVICE_READS_BACK_ASYNC;
}

srnn_status sr_session_feed_chosen(sr_session *session, int32_t *next) {
    sr_backend *backend = session->backend;
    srnn_device *device = backend->device;
    const size_t bytes = (size_t)session->setup.B * sizeof *next;
    SR_TRY(check_fed(session));
    SR_TRY(reserve(session, 1));
    SR_TRY(backend->next_inputs(backend, session->ids, session->positions, session->chosen,
                                (int32_t)session->position, session->setup.B));
    if (!sr_session_runs_ahead(session)) {
        SR_TRY(sr_device_copy_out(device, next, session->ids, bytes));
        return start_loaded(session);
    }
    SR_TRY(device->readback_begin(device, session->ids, bytes));
    SR_TRY(start_loaded(session));
    return device->readback_end(device, next, bytes);
}

/* Feeds two tokens as generation will, the second of which captures the graph, and resets. */
static srnn_status rehearse(sr_session *session, int32_t *ids) {
    SR_TRY(sr_session_feed_greedy(session, ids, ids, 1));
    SR_TRY(sr_session_feed_chosen(session, ids));
    return sr_session_reset(session);
}

srnn_status sr_session_prepare(sr_session *session) {
    void *ids;
    if (!sr_device_captures(session->backend->device) || session->one.captured || session->avey ||
        session->position > 0)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&ids, (size_t)session->setup.B, sizeof(int32_t)));
    const srnn_status status = rehearse(session, ids);
    free(ids);
    return status;
}

/* ---- in turn with other sessions */

static srnn_status make_room(char **memory, size_t bytes) {
    void *room;
    free(*memory);
    *memory = NULL;
    SR_TRY(sr_alloc(&room, bytes, 1));
    *memory = room;
    return SRNN_OK;
}

/* The state of a layer before token `first`, from the session that fed the piece before. */
static srnn_status take_state(sr_session *session, int layer, const sr_session_relay *relay) {
    const sr_row_part *part = relay->part;
    const int before = (part->index + part->count - 1) % part->count;
    const size_t bytes = sr_mixer_state_bytes(&session->states[layer], relay->first);
    bool moved;
    SR_TRY(make_room(&session->received, bytes));
    SR_TRY(part->receive(part->context, before, session->received, bytes));
    SR_TRY(sr_mixer_state_load(&session->states[layer], session->received, relay->first));
    return sr_mixer_state_reserve(&session->states[layer], session->T, &moved);
}

/* The state of a layer after the piece, to the session that feeds the next. */
static srnn_status hand_on_state(sr_session *session, int layer, const sr_session_relay *relay) {
    const sr_row_part *part = relay->part;
    const int next = (part->index + 1) % part->count;
    const sr_mixer_state *state = &session->states[layer];
    const size_t bytes = sr_mixer_state_bytes(state, state->position);
    char **sent = &session->sent[layer];
    SR_TRY(*sent ? part->settle(part->context, *sent) : SRNN_OK);
    SR_TRY(make_room(sent, bytes));
    SR_TRY(sr_mixer_state_save(state, *sent));
    return part->send(part->context, next, *sent, bytes);
}

static srnn_status relayed_layers(sr_session *session, const sr_session_relay *relay) {
    const sr_model *model = session->model;
    const int64_t rows = (int64_t)session->setup.B * session->T;
    const sr_layer_piece_place place = {.T = session->T, .positions = session->positions};
    SR_TRY(sr_ends_embed(model, sr_matrix_of(session->x, rows, model->config.C, SRNN_F32),
                         session->ids));
    for (int layer = 0; layer < model->config.L; layer++) {
        if (relay->first > 0)
            SR_TRY(take_state(session, layer, relay));
        SR_TRY(feed_block(session, layer, rows, &place));
        sr_mixer_state_advance(&session->states[layer], session->T);
        if (!relay->last)
            SR_TRY(hand_on_state(session, layer, relay));
    }
    session->position += session->T;
    return SRNN_OK;
}

srnn_status sr_session_feed_relayed(sr_session *session, float *logits, const int32_t *ids, int T,
                                    const sr_session_relay *relay) {
    void *memory;
    if (session->avey)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "a model of Avey hands no states from rank to rank");
    if (!session->sent) {
        SR_TRY(sr_alloc_zero(&memory, (size_t)session->model->config.L, sizeof *session->sent));
        session->sent = memory;
    }
    sr_device_forget(session->backend->device, &session->one); /* states may move */
    session->position = relay->first;
    SR_TRY(load(session, ids, T));
    SR_TRY(relayed_layers(session, relay));
    if (!relay->last)
        return SRNN_OK;
    SR_TRY(norm_all(session));
    SR_TRY(logits_after(session, T - 1));
    SR_TRY(session->backend->argmax(session->backend, session->chosen, logits_of(session)));
    return logits ? fetch_logits(session, logits, (size_t)session->model->config.V) : SRNN_OK;
}

srnn_status sr_session_feed_all(sr_session *session, float *logits, const int32_t *ids, int T) {
    const size_t V = (size_t)session->model->config.V;
    SR_TRY(load(session, ids, T));
    SR_TRY(layers_forward(session));
    SR_TRY(norm_all(session));
    advance(session);
    for (int t = 0; t < T; t++) {
        SR_TRY(logits_after(session, t));
        SR_TRY(fetch_logits(session, logits + (size_t)t * V, (size_t)T * V));
    }
    return session->backend->argmax(session->backend, session->chosen, logits_of(session));
}

/* Losses and hits of `rows` rows from `first` on, whose norm is there. */
static srnn_status losses_of_tile(sr_session *session, float *losses, int32_t *hits,
                                  const int32_t *targets, int64_t first, int64_t rows) {
    sr_backend *backend = session->backend;
    srnn_device *device = backend->device;
    const sr_model_config *c = &session->model->config;
    const sr_linear head = head_of(session);
    const sr_matrix logits = sr_matrix_of(session->logits, rows, c->V, backend->number);
    const sr_matrix normed =
        sr_matrix_of(sr_number_at(session->normed, first * c->C, backend->number), rows, c->C,
                     backend->number);
    const size_t count = (size_t)rows;
    SR_TRY(sr_device_copy_in(device, session->targets, targets + first, count * sizeof *targets));
    SR_TRY(backend->linear_forward(backend, logits, (sr_matrix){0}, normed, &head, 1));
    SR_TRY(sr_ends_logits(session->model, logits));
    SR_TRY(backend->cross_entropy(backend, session->losses, session->hits, logits,
                                  &(sr_cross_entropy){.targets = session->targets}));
    SR_TRY(sr_device_copy_out(device, losses + first, session->losses, count * sizeof *losses));
    return sr_device_copy_out(device, hits + first, session->hits, count * sizeof *hits);
}

srnn_status sr_session_losses(sr_session *session, float *losses, int32_t *hits, const int32_t *ids,
                              const int32_t *targets, int T) {
    const int64_t rows = (int64_t)session->setup.B * T;
    if (!session->losses)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "this session was created without losses");
    SR_TRY(load(session, ids, T));
    SR_TRY(layers_forward(session));
    SR_TRY(norm_all(session));
    advance(session);
    for (int64_t first = 0; first < rows; first += session->logit_rows) {
        const int64_t left = rows - first;
        SR_TRY(losses_of_tile(session, losses, hits, targets, first,
                              left < session->logit_rows ? left : session->logit_rows));
    }
    return SRNN_OK;
}

int64_t sr_session_position(const sr_session *session) {
    return session->position;
}

size_t sr_session_state_bytes(const sr_session *session) {
    size_t bytes = session->avey ? sr_avey_feed_bytes(session->avey) : 0;
    for (int layer = 0; layer < state_count(session); layer++)
        bytes += sr_mixer_state_bytes(&session->states[layer], session->states[layer].position);
    return bytes;
}

bool sr_session_is_recurrent(const sr_session *session) {
    for (int layer = 0; layer < state_count(session); layer++)
        if (!sr_mixer_state_is_recurrent(&session->states[layer]))
            return false;
    return !session->avey;
}
