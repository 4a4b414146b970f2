/* heat.h (private): a heat map, as SVG. */
#ifndef SR_REPORT_DRAW_HEAT_H
#define SR_REPORT_DRAW_HEAT_H

#include <stdio.h>

typedef struct sr_heat {
    const char *title;
    const char *row_title, *column_title;
    const double *values; /* (rows, columns); not finite: left empty */
    int rows, columns;
} sr_heat;

/* An svg element: light for the smallest value, dark for the largest, the number in each square. */
void sr_heat_write_svg(FILE *out, const sr_heat *heat);

#endif
