/* splitter.h (private): the steps that cut a normalised text into the pieces that are merged
 * separately. */
#ifndef SR_DATA_TOKENIZER_SPLITTER_H
#define SR_DATA_TOKENIZER_SPLITTER_H

#include "data/text/pattern.h"

typedef enum sr_split_kind {
    SR_SPLIT_PATTERN = 0,  /* cut around the matches of a pattern */
    SR_SPLIT_PREFIX_SPACE, /* prepend a space, if there is none */
    SR_SPLIT_MARK_SPACES,  /* spaces become the mark; prepend a mark according to `prepend` */
} sr_split_kind;

typedef enum sr_split_behaviour {
    SR_SPLIT_ISOLATED = 0, /* matches and the text between them are pieces */
    SR_SPLIT_REMOVED,      /* matches are dropped */
    SR_SPLIT_MERGED_WITH_PREVIOUS,
    SR_SPLIT_MERGED_WITH_NEXT,
    SR_SPLIT_CONTIGUOUS, /* neighbouring matches are one piece */
} sr_split_behaviour;

typedef enum sr_split_prepend {
    SR_PREPEND_ALWAYS = 0,
    SR_PREPEND_FIRST, /* only at the very start of the text */
    SR_PREPEND_NEVER,
} sr_split_prepend;

typedef struct sr_split_step {
    sr_split_kind kind;
    sr_pattern *pattern; /* owned */
    sr_split_behaviour behaviour;
    bool invert;   /* swap matches and the rest */
    sr_bytes mark; /* owned */
    sr_split_prepend prepend;
} sr_split_step;

enum { SR_SPLIT_STEPS = 16 };

typedef struct sr_splitter {
    sr_split_step steps[SR_SPLIT_STEPS];
    size_t count;
} sr_splitter;

/* Adds an empty step, to be filled by the caller. */
srnn_status sr_splitter_add(sr_splitter *splitter, sr_split_step **step);
void sr_splitter_free(sr_splitter *splitter);

/* GPT-2's splitting (the pattern of ByteLevel). */
srnn_status sr_splitter_add_gpt2(sr_splitter *splitter);

/* State of a run: a buffer for each step, and the consumer of the pieces. */
typedef struct sr_split_run {
    const sr_splitter *splitter;
    sr_matcher *matcher;
    bool valid;                     /* the text is known to be UTF-8 */
    sr_bytes texts[SR_SPLIT_STEPS]; /* the changed text of each step */
    srnn_status (*take)(void *context, const char *piece, size_t bytes);
    void *context;
} sr_split_run;

/* Passes every non-empty piece to run->take, in order. `first`: this is the start of the whole
 * text. Bytes that are not UTF-8 become separate pieces if a step needs UTF-8. */
srnn_status sr_splitter_run(sr_split_run *run, const char *text, size_t bytes, bool first);

#endif
