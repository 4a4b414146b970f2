/* cautions.h: warnings about a request, on stderr. */
#ifndef SR_CLI_LINE_CAUTIONS_H
#define SR_CLI_LINE_CAUTIONS_H

#include "softrnn.h"

/* Warns of a delta rule that may diverge. */
void caution_attention(const srnn_attention *attention);

/* The same, and warns of a requested form that only the generic kernel computes while another form
 * has a fast one. */
void caution_problem(const srnn_problem *problem);

#endif
