/* stream.h: one prompt and its continuation, up to a stop. */
#ifndef SR_CLI_MODEL_STREAM_H
#define SR_CLI_MODEL_STREAM_H

#include "data/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>

enum { STREAM_STOPS = 16 };

typedef struct stream {
    const char *const *stops; /* (STREAM_STOPS), the rest NULL: texts to end before */
    sr_decoder *decoder;      /* owned */
    sr_tokens prompt;
    sr_bytes text;      /* of prompt and continuation so far */
    size_t prompt_text; /* bytes of it that belong to the prompt */
    size_t shown;       /* bytes of it that were printed */
    uint64_t number;    /* of the prompt, for sampling */
    int produced;       /* tokens after the prompt */
    bool done;
} stream;

srnn_status stream_open(stream *s, const sr_tokenizer *tokenizer, const char *const *stops);
void stream_close(stream *s);

/* Drops the last prompt and its continuation. */
void stream_begin(stream *s, uint64_t number);

/* Adds a token of the prompt; unless `silent`, its text too. */
srnn_status stream_prompt(stream *s, uint32_t token, bool silent);

/* Adds a generated token. Ends the stream at the start of a stop text. */
srnn_status stream_add(stream *s, uint32_t token);

/* No token will follow. */
srnn_status stream_end(stream *s);

/* Writes the new text. An ending that could begin a stop text is held back. */
void stream_show(stream *s, FILE *out);

#endif
