/* session.c: decoding sessions, for the C API. */
#include "model/session.h"

#include "api/handles.h"
#include "base/memory.h"
#include "model/sampler.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 128 }; /* tokens fed at once */

struct srnl_session {
    sr_session *session;
    int B, V, piece;
    float *logits; /* (B, V) of what follows the last tokens */
    int32_t *ids;  /* (B, piece) */
    srnl_sampling sampling;
    sr_sampler *sampler; /* for `sampling`, or NULL */
};

static srnn_status open(srnl_session *s, srnl_model *model, int B) {
    const sr_model_config *c = &model->model->config;
    void *memory;
    s->B = B;
    s->V = c->V;
    s->piece = c->positions < PIECE ? c->positions : PIECE;
    const sr_session_setup setup = {.B = B, .T = s->piece};
    SR_TRY(sr_session_create(&s->session, model->model, &setup));
    SR_TRY(sr_alloc(&memory, (size_t)B * (size_t)s->V, sizeof *s->logits));
    s->logits = memory;
    SR_TRY(sr_alloc(&memory, (size_t)B * (size_t)s->piece, sizeof *s->ids));
    s->ids = memory;
    return SRNN_OK;
}

srnn_status srnl_session_create(srnl_session **session, srnl_model *model, int B) {
    void *memory;
    *session = NULL;
    if (B < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a session of %d sequences", B);
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **session));
    const srnn_status status = open(memory, model, B);
    if (status != SRNN_OK) {
        srnl_session_free(memory);
        return status;
    }
    *session = memory;
    return SRNN_OK;
}

void srnl_session_free(srnl_session *session) {
    if (!session)
        return;
    sr_sampler_free(session->sampler);
    free(session->ids);
    free(session->logits);
    sr_session_free(session->session);
    free(session);
}

srnn_status srnl_session_reset(srnl_session *session) {
    return sr_session_reset(session->session);
}

srnn_status srnl_session_feed(srnl_session *session, const int32_t *ids, int T, float *logits) {
    SR_TRY(sr_lab_check_ids(ids, session->B, T, session->V, false));
    for (int at = 0; at < T; at += session->piece) {
        const int count = T - at < session->piece ? T - at : session->piece;
        for (int b = 0; b < session->B; b++)
            memcpy(session->ids + (ptrdiff_t)b * count, ids + (ptrdiff_t)b * T + at,
                   (size_t)count * sizeof *ids);
        SR_TRY(sr_session_feed(session->session, session->logits, session->ids, count));
    }
    if (logits)
        memcpy(logits, session->logits,
               (size_t)session->B * (size_t)session->V * sizeof *session->logits);
    return SRNN_OK;
}

static bool same(const srnl_sampling *a, const srnl_sampling *b) {
    return a->temperature == b->temperature && a->top_p == b->top_p && a->top_k == b->top_k &&
           a->seed == b->seed;
}

/* The sampler for these settings; recreated if they have changed. */
static srnn_status shape_sampler(srnl_session *session, const srnl_sampling *sampling) {
    if (session->sampler && same(&session->sampling, sampling))
        return SRNN_OK;
    sr_sampler_free(session->sampler);
    session->sampler = NULL;
    session->sampling = *sampling;
    return sr_sampler_create(&session->sampler,
                             &(sr_sampler_settings){.temperature = sampling->temperature,
                                                    .top_k = sampling->top_k,
                                                    .top_p = sampling->top_p,
                                                    .seed = sampling->seed},
                             session->V);
}

srnn_status srnl_session_next(srnl_session *session, int32_t *ids, const srnl_sampling *sampling) {
    const int64_t position = srnl_session_position(session);
    if (position == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a session has no next token before the first was fed");
    SR_TRY(shape_sampler(session, sampling));
    for (int b = 0; b < session->B; b++)
        ids[b] = sr_sampler_choose(session->sampler, session->logits + (ptrdiff_t)b * session->V,
                                   (uint64_t)b, (uint64_t)position);
    return srnl_session_feed(session, ids, 1, NULL);
}

int64_t srnl_session_position(const srnl_session *session) {
    return sr_session_position(session->session);
}

size_t srnl_session_state_bytes(const srnl_session *session) {
    return sr_session_state_bytes(session->session);
}

bool srnl_session_is_recurrent(const srnl_session *session) {
    return sr_session_is_recurrent(session->session);
}
