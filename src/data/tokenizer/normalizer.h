/* normalizer.h (private): the steps that change a text before it is cut into pieces. */
#ifndef SR_DATA_TOKENIZER_NORMALIZER_H
#define SR_DATA_TOKENIZER_NORMALIZER_H

#include "data/text/pattern.h"
#include "data/text/unicode.h"
#include "data/tokenizer/added.h"

typedef enum sr_normal_kind {
    SR_NORMAL_PREPEND = 0,     /* content in front of a text that is not empty */
    SR_NORMAL_REPLACE,         /* every match of pattern becomes content */
    SR_NORMAL_FORM,            /* NFC, NFD, NFKC or NFKD */
    SR_NORMAL_COLLAPSE_SPACES, /* no space at either end, no two consecutive spaces except in
                                * symbols */
} sr_normal_kind;

typedef struct sr_normal_step {
    sr_normal_kind kind;
    sr_pattern *pattern; /* owned */
    sr_bytes content;    /* owned */
    sr_unicode_form form;
    const sr_added *symbols; /* COLLAPSE_SPACES: texts that are not split; not owned */
} sr_normal_step;

enum { SR_NORMAL_STEPS = 16 };

typedef struct sr_normalizer {
    sr_normal_step steps[SR_NORMAL_STEPS];
    size_t count;
} sr_normalizer;

/* Adds an empty step, to be filled by the caller. */
srnn_status sr_normalizer_add(sr_normalizer *normalizer, sr_normal_step **step);
void sr_normalizer_free(sr_normalizer *normalizer);

/* *text (*bytes) becomes the normalised text: unchanged if there is nothing to do, else inside one
 * of the two buffers and valid until they change. `continues`: nothing is put in front, because it
 * is the rest of a text. */
srnn_status sr_normalizer_run(const sr_normalizer *normalizer, sr_matcher *matcher,
                              sr_bytes buffers[2], const char **text, size_t *bytes,
                              bool continues);

#endif
