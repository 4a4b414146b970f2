/* tokens.h (private): a text in the teacher's tokens. */
#ifndef SR_DISTIL_TOKENS_H
#define SR_DISTIL_TOKENS_H

#include "train/run/settings.h"

/* If the data is a text and the teacher's tokenizer is not the bytes, prepares folder/tokens, and
 * sets the data to it. A text of one document, which shards do not split, is cut at the end of a
 * line: its last share validates, in folder/tokens/validation. */
srnn_status sr_distil_tokens(sr_run_settings *settings, const char *folder);

#endif
