/* added.h (private): finds the tokens that a tokenizer.json lists in addition to its model, such as
 * <|endoftext|>. */
#ifndef SR_DATA_TOKENIZER_ADDED_H
#define SR_DATA_TOKENIZER_ADDED_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_added_token {
    sr_bytes text; /* owned */
    uint32_t id;
    bool single_word;             /* only if no word character is adjacent */
    bool strip_left, strip_right; /* includes adjacent white space */
} sr_added_token;

typedef struct sr_added {
    sr_added_token *tokens; /* (count) sorted by text after sr_added_finish */
    size_t count, capacity;
    bool starts[256]; /* some token starts with this byte */
} sr_added;

/* Each position of a text may cost as many steps as the longest token has bytes. */
enum { SR_ADDED_BYTES_LIMIT = 1024 };

/* Adds a token; the text is copied. An empty token never matches and is ignored; one longer than
 * SR_ADDED_BYTES_LIMIT fails with SRNN_ERR_LIMIT. */
srnn_status sr_added_add(sr_added *added, const char *text, size_t bytes,
                         const sr_added_token *like);

/* Call once, after the last sr_added_add. */
void sr_added_finish(sr_added *added);
void sr_added_free(sr_added *added);

/* The bytes of the longest token that `text` starts with; 0 if it starts with none. */
size_t sr_added_prefix(const sr_added *added, const char *text, size_t bytes);

/* A match, and the state for finding the next one in the same text. */
typedef struct sr_added_match {
    size_t search;     /* where to search from; 0 at the beginning */
    size_t done;       /* the end of the last match */
    size_t start, end; /* the match, including adjacent white space */
    uint32_t id;
} sr_added_match;

/* The next match, leftmost and longest; false if there is none. */
bool sr_added_next(const sr_added *added, const char *text, size_t bytes, sr_added_match *match);

#endif
