/* pattern.h (private): finds a literal text or a regular expression in text. */
#ifndef SR_DATA_TEXT_PATTERN_H
#define SR_DATA_TEXT_PATTERN_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_pattern sr_pattern;

/* Memory for matching, one per thread; serves any pattern. */
typedef struct sr_matcher sr_matcher;

/* The literal text, or the regular expression as Hugging Face's tokenizers (Oniguruma) understand
 * it: \s is White_Space, \w is a letter, mark, digit or connector, properties are those of Unicode
 * 16. Unsupported constructs fail with SRNN_ERR_UNSUPPORTED. */
srnn_status sr_pattern_create_literal(sr_pattern **pattern, const char *text, size_t bytes);
srnn_status sr_pattern_create_regex(sr_pattern **pattern, const char *expression, size_t bytes);
void sr_pattern_free(sr_pattern *pattern);

/* True if the text must be well-formed UTF-8: a regular expression. */
bool sr_pattern_needs_utf8(const sr_pattern *pattern);

/* True if it can match the empty string, such as an assertion. */
bool sr_pattern_can_be_empty(const sr_pattern *pattern);

srnn_status sr_matcher_create(sr_matcher **matcher);
void sr_matcher_free(sr_matcher *matcher);

/* The matches of a pattern in a text, one after the other. An empty match counts too, unless it is
 * at the end of the previous match. */
typedef struct sr_search {
    const sr_pattern *pattern;
    sr_matcher *matcher;
    const char *text;
    size_t bytes, from;
    uint32_t limit;
    bool newer, any;
    size_t start, end; /* of the match that was found */
} sr_search;

void sr_search_start(sr_search *search, const sr_pattern *pattern, sr_matcher *matcher,
                     const char *text, size_t bytes);
srnn_status sr_search_next(sr_search *search, bool *found);

#endif
