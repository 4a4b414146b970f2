/* unicode.h: UTF-8 and the character properties that tokenizers need. */
#ifndef SR_DATA_TEXT_UNICODE_H
#define SR_DATA_TEXT_UNICODE_H

#include "data/text/buffer.h"

#include <stdbool.h>

/* The number of bytes at the start of `text` that are well-formed UTF-8, whole characters only. */
size_t sr_utf8_valid_prefix(const char *text, size_t bytes);

/* Reads the first character of `text` into *character and returns its length in bytes; 0 if the
 * bytes there (at least one) are not a whole well-formed character. */
size_t sr_utf8_decode(uint32_t *character, const char *text, size_t bytes);

/* Writes a character up to 0x10FFFF and returns its length in bytes. */
size_t sr_utf8_encode(char text[4], uint32_t character);

/* The number of bytes at the end of `text` that begin a truncated character; 0 to 3. */
size_t sr_utf8_cut_suffix(const char *text, size_t bytes);

/* White_Space, and what regular expressions call a word character (\w). */
bool sr_unicode_is_space(uint32_t character);
bool sr_unicode_is_word(uint32_t character);

typedef enum sr_unicode_form {
    SR_UNICODE_NFC = 0,
    SR_UNICODE_NFD,
    SR_UNICODE_NFKC,
    SR_UNICODE_NFKD,
} sr_unicode_form;

/* Appends `text` in the given form to `out`; bytes that are not UTF-8 stay as they are. */
srnn_status sr_unicode_normalize(sr_bytes *out, const char *text, size_t bytes,
                                 sr_unicode_form form);

#endif
