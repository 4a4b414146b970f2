/* state.h: a feed in parts, for callers that record it and replay it.
 *
 * srnn_state_feed is reserve, run and advance in one. A recording holds what run starts; the host's
 * part stays outside of it. */
#ifndef SR_ATTENTION_STATE_H
#define SR_ATTENTION_STATE_H

#include "attention/kernel.h"

/* Reserves memory for `tokens` tokens in all. *moved (or NULL): the state was reallocated, and what
 * was recorded with its old memory must be recorded again. */
srnn_status sr_state_reserve(srnn_state *state, int64_t tokens, bool *moved);

/* Whether a feed of T tokens can apply RoPE to q and k itself. */
bool sr_state_applies_rope(const srnn_state *state, int T);

/* Starts the kernels for T tokens, for which there is room. `rope`: empty unless
 * sr_state_applies_rope. */
srnn_status sr_state_run(srnn_state *state, srnn_tensor o, const srnn_operands *in, int T,
                         sr_rope_angles rope);

/* Advances the host's count of tokens. */
void sr_state_advance(srnn_state *state, int T);

/* What srnn_state_saved_bytes will be at a position. */
size_t sr_state_saved_bytes(const srnn_state *state, int64_t position);

#endif
