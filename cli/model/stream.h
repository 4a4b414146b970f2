/* stream.h: one prompt and the text that continues it, up to a stop. */
#ifndef SR_CLI_MODEL_STREAM_H
#define SR_CLI_MODEL_STREAM_H

#include "data/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>

enum { STRAND_STOPS = 16 };

typedef struct stream {
    const char *const *stops; /* (STRAND_STOPS), the rest NULL: texts to end before */
    sr_decoder *decoder;      /* owned */
    sr_tokens prompt;
    sr_bytes text;      /* of prompt and continuation so far */
    size_t prompt_text; /* bytes of it that are the prompt's */
    size_t shown;       /* bytes of it that were printed */
    uint64_t number;    /* of the prompt, for the choice of tokens */
    int produced;       /* tokens behind the prompt */
    bool done;
} stream;

srnn_status stream_open(stream *s, const sr_tokenizer *tokenizer, const char *const *stops);
void stream_close(stream *s);

/* Forgets the last prompt and its continuation. */
void stream_begin(stream *s, uint64_t number);

/* Adds a token of the prompt; unless `silent`, its text too. */
srnn_status stream_prompt(stream *s, uint32_t token, bool silent);

/* Adds a token behind the prompt. Ends the stream where a stop text begins. */
srnn_status stream_add(stream *s, uint32_t token);

/* No token will follow. */
srnn_status stream_end(stream *s);

/* Writes what is new. An ending that could grow into a stop text is held back. */
void stream_show(stream *s, FILE *out);

#endif
