/* format.h (private): numbers as text for the report. */
#ifndef SR_REPORT_DRAW_FORMAT_H
#define SR_REPORT_DRAW_FORMAT_H

#include <stddef.h>

/* A buffer for any of them. */
typedef struct sr_formatted {
    char text[96];
} sr_formatted;

/* Values that are not finite become a dash. Use: sr_format_fixed(x, 4).text */
sr_formatted sr_format_fixed(double value, int decimals);
sr_formatted sr_format_signed(double value, int decimals); /* with its sign */
sr_formatted sr_format_count(double value);                /* "1 843 200" in groups of three */
sr_formatted sr_format_bytes(double bytes);                /* "322 KB" */

/* The number of decimals, at least `least`, that shows two digits of the bound nearer to zero, so
 * that an interval that excludes zero is seen to; of the farther bound if zero lies between
 * them. */
int sr_format_decimals(double low, double high, int least);

/* "+0.003 [−0.027, +0.033]", for running text; without bounds "+0.003 (no interval)". */
sr_formatted sr_format_interval(double value, double low, double high);

/* "0.38": the size of an effect, in two digits. */
sr_formatted sr_format_size(double value);

/* One bound of an interval, with the same digits as in sr_format_interval. */
sr_formatted sr_format_bound(double value, double low, double high);

/* Letters, digits and dashes, for names of files: "2-king-james". */
void sr_format_stem(char *stem, size_t size, size_t number, const char *name);

#endif
