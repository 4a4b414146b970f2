/* curve_plot.h: loss curves as a text plot. */
#ifndef SR_CLI_LINE_CURVE_PLOT_H
#define SR_CLI_LINE_CURVE_PLOT_H

#include <stddef.h>

/* Finite numbers, steps increasing. */
typedef struct curve {
    double *steps, *losses; /* (count) */
    size_t count;
} curve;

/* The letter a curve is drawn with. */
char curve_letter(int index);

/* To stdout. The scale is logarithmic if losses differ by more than a factor of ten. */
void curve_plot(const curve *curves, int count);

#endif
