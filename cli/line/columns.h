/* columns.h: texts in columns of a terminal, measured by the display width of characters. */
#ifndef SR_CLI_LINE_COLUMNS_H
#define SR_CLI_LINE_COLUMNS_H

#include <stddef.h>

/* `text` in exactly `columns` columns: padded with spaces or cut. Control characters and bytes that
 * are not UTF-8 become "?". `out` has `size` bytes; the rest is cut off. Returns `out`. */
const char *column_text(char *out, size_t size, const char *text, int columns);

/* The columns that `text` takes, drawn like that. */
int column_width(const char *text);

#endif
