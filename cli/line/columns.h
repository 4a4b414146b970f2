/* columns.h: texts in columns of a terminal, measured in characters as wide as they are drawn. */
#ifndef SR_CLI_LINE_COLUMNS_H
#define SR_CLI_LINE_COLUMNS_H

#include <stddef.h>

/* `text` in exactly `columns` columns: filled up with spaces, or cut. What a terminal would obey
 * (control characters) and what is not UTF-8 becomes "?". `out` holds `size` bytes; what does not
 * fit is left out. Returns `out`. */
const char *column_text(char *out, size_t size, const char *text, int columns);

/* The columns that `text` takes, drawn like that. */
int column_width(const char *text);

#endif
