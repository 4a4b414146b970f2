/* session.h: decoding: a model fed by pieces, with a recurrent state or a KV cache per layer. */
#ifndef SR_MODEL_SESSION_H
#define SR_MODEL_SESSION_H

#include "model/layer/context/part.h"
#include "model/model.h"

typedef struct sr_session_setup {
    int B;              /* sequences side by side */
    int T;              /* the longest piece */
    srnn_form form;     /* of attention, as in srnn_problem for states */
    size_t state_limit; /* as in srnn_problem */
    bool losses;        /* sr_session_losses will be called */
} sr_session_setup;

typedef struct sr_session sr_session;

/* The model must outlive the session. */
srnn_status sr_session_create(sr_session **session, sr_model *model, const sr_session_setup *setup);
void sr_session_free(sr_session *session);

/* Forgets everything: the next token is the first. */
srnn_status sr_session_reset(sr_session *session);

/* Grows the KV caches for this many tokens at once; otherwise they are reallocated as the text
 * grows. Recurrent states have a fixed size. */
srnn_status sr_session_grow(sr_session *session, int64_t tokens);

/* On devices that capture graphs, captures the step of one token before the text begins, so that
 * the first tokens are as fast as the rest. For texts of two tokens or more. Nothing else changes.
 * No effect after the first token, or while the captured graph is still valid. */
srnn_status sr_session_prepare(sr_session *session);

/* Feeds ids (B, T) and gives the logits (B, V), host memory, of what follows the last of them. */
srnn_status sr_session_feed(sr_session *session, float *logits, const int32_t *ids, int T);

/* Feeds them and gives the most probable next tokens (B), host memory, as sr_sampler_choose would:
 * without the logits, which need not leave the device. */
srnn_status sr_session_feed_greedy(sr_session *session, int32_t *next, const int32_t *ids, int T);

/* Feeds to each sequence the most probable token after the last feed, and gives those tokens, next
 * (B), host memory. Where sr_session_runs_ahead, the call returns before the device has computed
 * what follows them; sr_session_chosen, or the next call, waits for it. */
srnn_status sr_session_feed_chosen(sr_session *session, int32_t *next);
bool sr_session_runs_ahead(const sr_session *session);

/* The most probable tokens after the last feed, next (B), host memory. */
srnn_status sr_session_chosen(sr_session *session, int32_t *next);

/* The first with the logits (B, T, V) of what follows each of them. */
srnn_status sr_session_feed_all(sr_session *session, float *logits, const int32_t *ids, int T);

/* Feeds ids (B, T) and gives the losses (B, T) of targets (B, T), all in host memory: minus the log
 * probability of each target, 0 where it is negative; hits (B, T) = 1 where the target is the most
 * probable token. The setup must have `losses`. Afterwards there is no sr_session_chosen. */
srnn_status sr_session_losses(sr_session *session, float *losses, int32_t *hits, const int32_t *ids,
                              const int32_t *targets, int T);

/* One piece of a text that sessions on several ranks feed in turn, piece n being that of part n + k
 * of part->count, modulo it, for some k. The state of each layer travels from the session that fed
 * the piece before to the one that feeds the next, so that they compute different layers at the
 * same time. */
typedef struct sr_session_relay {
    const sr_row_part *part; /* only its index, count and messages, which are of host memory */
    int64_t first;           /* tokens before the piece */
    bool last;               /* no piece follows */
} sr_session_relay;

/* Feeds the piece ids (B, T). After the last one, this session has seen the whole text: it
 * continues as after sr_session_feed, and logits are filled if not NULL. All sessions must have
 * settled (part->settle) before they are reset or freed. */
srnn_status sr_session_feed_relayed(sr_session *session, float *logits, const int32_t *ids, int T,
                                    const sr_session_relay *relay);

/* Tokens fed since the start; bytes of all states now; whether none of them grows. */
int64_t sr_session_position(const sr_session *session);
size_t sr_session_state_bytes(const sr_session *session);
bool sr_session_is_recurrent(const sr_session *session);

#endif
