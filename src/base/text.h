/* text.h: text in messages: what was probably meant, and what is safe to show. */
#ifndef SR_BASE_TEXT_H
#define SR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The word of `words` that `word` was probably meant to be: the one with the fewest typing errors
 * (letters missing, added, exchanged or swapped; case costs nothing), else one it abbreviates. The
 * first of equals; NULL when nothing is near. The result is an element of `words`. */
const char *sr_nearest_word(const char *word, const char *const *words, size_t count);

/* Whether a text is UTF-8 as JSON wants it: no byte out of place, nothing longer than it need be,
 * no halves of pairs. */
bool sr_text_is_utf8(const char *text, size_t bytes);

/* to (size > 0) = the text as it may go to a terminal, cut where it does not fit: bytes of control
 * characters, of those that reorder or break lines, and bytes that are not UTF-8 become \xNN. */
void sr_text_escape(char *to, size_t size, const char *text);

#endif
