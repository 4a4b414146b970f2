/* equation.h (private): a variant's equation as MathML. */
#ifndef SR_REPORT_DRAW_EQUATION_H
#define SR_REPORT_DRAW_EQUATION_H

#include "softrnn.h"

#include <stdio.h>

/* A block of lines: the weights w_ij, and the output o_i made of them. */
void sr_equation_write(FILE *out, const srnn_attention *attention);

/* What the equation does not show, as sentences; nothing if it shows everything. */
void sr_equation_write_remarks(FILE *out, const srnn_attention *attention);

#endif
