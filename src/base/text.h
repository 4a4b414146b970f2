/* text.h: text in messages: suggestions for typing errors, and escaping. */
#ifndef SR_BASE_TEXT_H
#define SR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The element of `words` that was probably meant by `word`: the one with the fewest typing errors
 * (letters missing, added, exchanged or swapped; case costs nothing), of equals one that it begins;
 * else one it abbreviates. NULL if none is near. */
const char *sr_nearest_word(const char *word, const char *const *words, size_t count);

/* Whether a text is UTF-8 as JSON requires it: well-formed, no overlong sequences, no
 * surrogates. */
bool sr_text_is_utf8(const char *text, size_t bytes);

/* to (size > 0) = the text made safe for a terminal, truncated if it does not fit: control
 * characters, those that reorder text or break lines, and bytes that are not UTF-8 become \xNN. */
void sr_text_escape(char *to, size_t size, const char *text);

#endif
