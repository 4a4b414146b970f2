/* json_repair.h (private): repairs JSON that common programs write and the parser rejects. */
#ifndef SR_DATA_TEXT_JSON_REPAIR_H
#define SR_DATA_TEXT_JSON_REPAIR_H

#include "data/text/buffer.h"

#include <stdbool.h>

/* Sets `out` to the line with every number, NaN and Infinity as 0: they may be too large for the
 * parser, and are not used. With `replace`, half a surrogate pair, which is not a character,
 * becomes U+FFFD. */
srnn_status sr_json_repair(sr_bytes *out, const char *line, size_t bytes, bool replace);

#endif
