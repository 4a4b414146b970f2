/* units.h: numbers of bytes in words. */
#ifndef SR_BASE_UNITS_H
#define SR_BASE_UNITS_H

enum { SR_BYTES_WORDS = 32 };

/* "202 MB": three digits (1000 to 1023: four), units of 1024 from B to YB; "-" if it is not finite.
 * Returns `words`. */
const char *sr_bytes_words(char words[SR_BYTES_WORDS], double bytes);

#endif
