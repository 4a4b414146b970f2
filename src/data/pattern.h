/* pattern.h: finds a literal text or a regular expression in text. */
#ifndef SR_DATA_PATTERN_H
#define SR_DATA_PATTERN_H

#include "data/buffer.h"

#include <stdbool.h>

typedef struct sr_pattern sr_pattern;

/* Memory for matching, one per thread; serves any pattern. */
typedef struct sr_matcher sr_matcher;

/* The literal text, or the regular expression with Unicode classes as Hugging Face's tokenizers
 * understand it: \s is White_Space, \w is a letter, mark, digit or connector. What a pattern uses
 * and is not supported fails with SRNN_ERR_UNSUPPORTED. */
srnn_status sr_pattern_create_literal(sr_pattern **pattern, const char *text, size_t bytes);
srnn_status sr_pattern_create_regex(sr_pattern **pattern, const char *expression, size_t bytes);
void sr_pattern_free(sr_pattern *pattern);

/* True if the text must be well-formed UTF-8: a regular expression. */
bool sr_pattern_needs_utf8(const sr_pattern *pattern);

srnn_status sr_matcher_create(sr_matcher **matcher);
void sr_matcher_free(sr_matcher *matcher);

/* The first match at or after `from`: bytes *start .. *end - 1 of text; *start = *end = bytes + 1
 * where there is none. An empty match is never reported. */
srnn_status sr_pattern_find(const sr_pattern *pattern, sr_matcher *matcher, const char *text,
                            size_t bytes, size_t from, size_t *start, size_t *end);

#endif
