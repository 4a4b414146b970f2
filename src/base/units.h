/* units.h: bytes and seconds as text. */
#ifndef SR_BASE_UNITS_H
#define SR_BASE_UNITS_H

enum { SR_BYTES_WORDS = 32 };

/* "202 MB": three digits (1000 to 1023: four), units of 1024 from B to YB; "-" if it is not finite.
 * Returns `words`. */
const char *sr_bytes_words(char words[SR_BYTES_WORDS], double bytes);

enum { SR_TIME_WORDS = 32 };

/* A time: "3:12", "1:02:03", from a day on "2 d 4 h"; "?" if it is not known or beyond a thousand
 * years. Returns `words`. */
const char *sr_clock_words(char words[SR_TIME_WORDS], double seconds);

/* A duration, rounded up: "40 s", "8 min", "3 h 20 min", "2 d 4 h". Returns `words`. */
const char *sr_duration_words(char words[SR_TIME_WORDS], double seconds);

#endif
