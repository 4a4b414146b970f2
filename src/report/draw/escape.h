/* escape.h (private): escapes text from files for HTML, JSON, LaTeX and CSV. */
#ifndef SR_REPORT_DRAW_ESCAPE_H
#define SR_REPORT_DRAW_ESCAPE_H

#include <stdio.h>

/* Each writes `text` so that it appears literally. Bytes that are not UTF-8, and characters that
 * the language cannot represent, become U+FFFD. */

/* Between tags or inside a quoted attribute, of HTML and of SVG. */
void sr_escape_html(FILE *out, const char *text);

/* A JSON string with its quotes, safe inside an HTML script element too. */
void sr_escape_script(FILE *out, const char *text);

/* Running text of a LaTeX document. */
void sr_escape_latex(FILE *out, const char *text);

/* One field of a CSV file (RFC 4180), quoted if necessary. A text that a spreadsheet would take for
 * a formula gets an apostrophe in front. */
void sr_escape_csv(FILE *out, const char *text);

#endif
