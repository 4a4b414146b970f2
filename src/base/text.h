/* text.h: comparing words, for messages that say what was probably meant. */
#ifndef SR_BASE_TEXT_H
#define SR_BASE_TEXT_H

#include <stddef.h>

/* The word of `words` that `word` was probably meant to be: the one with the fewest typing errors
 * (letters missing, added, exchanged or swapped; case costs nothing), else one it abbreviates. The
 * first of equals; NULL when nothing is near. The result is an element of `words`. */
const char *sr_nearest_word(const char *word, const char *const *words, size_t count);

#endif
