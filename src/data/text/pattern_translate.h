/* pattern_translate.h (private): a regular expression as Oniguruma reads it, written for PCRE2. */
#ifndef SR_DATA_TEXT_PATTERN_TRANSLATE_H
#define SR_DATA_TEXT_PATTERN_TRANSLATE_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_translating {
    bool old;   /* in: the library's Unicode is older than SR_NEWER_UNICODE */
    bool newer; /* in: properties also have the characters of sr_newer_write */
    bool grown; /* out: a property is used that has such characters */
} sr_translating;

/* Appends the expression to `out`. What the two libraries read differently is rewritten; where that
 * is not possible it fails with SRNN_ERR_UNSUPPORTED and names the construct. */
srnn_status sr_pattern_translate(sr_bytes *out, sr_translating *how, const char *expression,
                                 size_t bytes);

#endif
