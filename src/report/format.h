/* format.h: numbers as words for the report. */
#ifndef SR_REPORT_FORMAT_H
#define SR_REPORT_FORMAT_H

#include <stddef.h>

/* Room for any of them. */
typedef struct sr_formatted {
    char text[96];
} sr_formatted;

/* What is not finite is a dash. Use: sr_format_fixed(x, 4).text */
sr_formatted sr_format_fixed(double value, int decimals);
sr_formatted sr_format_signed(double value, int decimals); /* with its sign */
sr_formatted sr_format_count(double value);                /* "1 843 200" in groups of three */
sr_formatted sr_format_bytes(double bytes);                /* "322 KB" */

/* "+0.003 [−0.027, +0.033]", for running text. */
sr_formatted sr_format_interval(double value, double low, double high);

/* Letters, digits and dashes, for names of files: "2-king-james". */
void sr_format_stem(char *stem, size_t size, size_t number, const char *name);

#endif
