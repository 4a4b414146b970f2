/* session.h: a model fed by pieces: generation with the variant's own state. */
#ifndef SR_MODEL_SESSION_H
#define SR_MODEL_SESSION_H

#include "model/model.h"

typedef struct sr_session_setup {
    int B;              /* sequences side by side */
    int T;              /* the longest piece */
    srnn_form form;     /* of attention, as in srnn_problem for states */
    size_t state_limit; /* as in srnn_problem */
} sr_session_setup;

typedef struct sr_session sr_session;

/* The model must outlive the session. */
srnn_status sr_session_create(sr_session **session, sr_model *model, const sr_session_setup *setup);
void sr_session_free(sr_session *session);

/* Forgets everything: the next token is the first. */
srnn_status sr_session_reset(sr_session *session);

/* Reserves memory for this many tokens at once where states grow with the text; otherwise they are
 * reallocated while it grows. */
srnn_status sr_session_grow(sr_session *session, int64_t tokens);

/* Where a device repeats what was recorded, has a step of one token recorded before the text
 * begins: what comes first would else be slower than the rest. For texts of two tokens or more.
 * Nothing else changes, and nothing happens behind the first token, nor again while states stay
 * where they are. */
srnn_status sr_session_prepare(sr_session *session);

/* Feeds ids (B, T) and gives the logits (B, V), host memory, of what follows the last of them. */
srnn_status sr_session_feed(sr_session *session, float *logits, const int32_t *ids, int T);

/* Feeds them and gives the most probable next tokens (B), host memory, as sr_sampler_choose would:
 * without the logits, which need not leave the device. */
srnn_status sr_session_feed_greedy(sr_session *session, int32_t *next, const int32_t *ids, int T);

/* Feeds to each sequence the most probable token after the last feed, and gives those tokens, next
 * (B), host memory. Where sr_session_runs_ahead, the device is still busy with them then, and has
 * the next to do before the host asks for what comes of it: sr_session_chosen, or this again. */
srnn_status sr_session_feed_chosen(sr_session *session, int32_t *next);
bool sr_session_runs_ahead(const sr_session *session);

/* The most probable tokens after the last feed, next (B), host memory. */
srnn_status sr_session_chosen(sr_session *session, int32_t *next);

/* The first with the logits (B, T, V) of what follows each of them. */
srnn_status sr_session_feed_all(sr_session *session, float *logits, const int32_t *ids, int T);

/* Tokens fed since the start; bytes of all states now; whether none of them grows. */
int64_t sr_session_position(const sr_session *session);
size_t sr_session_state_bytes(const sr_session *session);
bool sr_session_is_recurrent(const sr_session *session);

#endif
