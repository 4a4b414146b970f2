/* pattern_translate.h (private): translates a regular expression of Oniguruma to PCRE2. */
#ifndef SR_DATA_TEXT_PATTERN_TRANSLATE_H
#define SR_DATA_TEXT_PATTERN_TRANSLATE_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_translating {
    bool old;   /* in: the library's Unicode is older than SR_NEWER_UNICODE */
    bool newer; /* in: extend properties by the characters of sr_newer_write */
    bool grown; /* out: a property with such characters is used */
} sr_translating;

/* Appends the translated expression to `out`. Constructs with different meanings are rewritten; if
 * that is not possible it fails with SRNN_ERR_UNSUPPORTED and names the construct. */
srnn_status sr_pattern_translate(sr_bytes *out, sr_translating *how, const char *expression,
                                 size_t bytes);

#endif
