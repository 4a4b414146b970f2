/* unicode_newer.h (private): what Unicode 16 added to the properties of Unicode 14.
 *
 * Hugging Face's tokenizers use Unicode 16; a system's libraries may be older. */
#ifndef SR_DATA_TEXT_UNICODE_NEWER_H
#define SR_DATA_TEXT_UNICODE_NEWER_H

#include "data/text/buffer.h"

#include <stdbool.h>

enum { SR_NEWER_UNICODE = 16 };

/* True if a general category ("Lu", or "L" for all of its kind) or a script ("Han") has grown. */
bool sr_newer_any(const char *property);

/* Appends its new characters, as ranges of a character class. */
srnn_status sr_newer_write(sr_bytes *out, const char *property);

/* The general category of a new character; NULL for all others. */
const char *sr_newer_category(uint32_t character);

/* True if one of the new characters is in the text. */
bool sr_newer_in(const char *text, size_t bytes);

#endif
