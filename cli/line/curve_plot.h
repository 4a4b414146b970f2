/* curve_plot.h: curves of losses as a plot of letters. */
#ifndef SR_CLI_LINE_CURVE_PLOT_H
#define SR_CLI_LINE_CURVE_PLOT_H

#include <stddef.h>

/* Finite numbers, steps growing. */
typedef struct curve {
    double *steps, *losses; /* (count) */
    size_t count;
} curve;

/* The letter a curve is drawn with. */
char curve_letter(int index);

/* To stdout. The scale is logarithmic where losses differ by more than tenfold. */
void curve_plot(const curve *curves, int count);

#endif
