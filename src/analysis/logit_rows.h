/* logit_rows.h (private): the logits of every query of an attention layer, in double, row by
 * row. */
#ifndef SR_ANALYSIS_LOGIT_ROWS_H
#define SR_ANALYSIS_LOGIT_ROWS_H

#include "analysis/truncated/row_equation.h"

typedef struct sr_logit_rows_setup {
    int B, T, H, Hkv, D;
    int threads;    /* 0: all cores */
    size_t scratch; /* doubles of scratch memory for the visitor */
} sr_logit_rows_setup;

/* One query with its keys and values. */
typedef struct sr_logit_row {
    int b, head, t;
    sr_row_facts facts;
    const double *s; /* (facts.count) */
    const double *v; /* (facts.count, D), as summed by the equation: gated, divided by a power */
    double *scratch; /* (setup.scratch) */
} sr_logit_row;

typedef struct sr_logit_rows sr_logit_rows;

srnn_status sr_logit_rows_create(sr_logit_rows **rows, const sr_logit_rows_setup *setup);
void sr_logit_rows_free(sr_logit_rows *rows);

/* Visits every query of every batch row and head of a layer's float operands in host memory. The
 * rows of one head come in order, from one thread at a time; different heads come from different
 * threads. */
typedef void sr_logit_visit(void *context, const sr_logit_row *row);
void sr_logit_rows_visit(sr_logit_rows *rows, const srnn_attention *attention,
                         const srnn_operands *in, sr_logit_visit *visit, void *context);

#endif
