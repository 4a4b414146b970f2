/* text.h: comparing words, for messages that say what was probably meant. */
#ifndef SR_BASE_TEXT_H
#define SR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The word of `words` that `word` was probably meant to be: the one with the fewest typing errors
 * (letters missing, added, exchanged or swapped; case costs nothing), else one it abbreviates. The
 * first of equals; NULL when nothing is near. The result is an element of `words`. */
const char *sr_nearest_word(const char *word, const char *const *words, size_t count);

/* Whether a text is UTF-8 as JSON wants it: no byte out of place, nothing longer than it need be, no
 * halves of pairs. */
bool sr_text_is_utf8(const char *text, size_t bytes);

#endif
