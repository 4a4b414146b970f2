/* table.h (private): a table of texts and numbers, written as HTML, CSV or LaTeX. */
#ifndef SR_REPORT_DRAW_TABLE_H
#define SR_REPORT_DRAW_TABLE_H

#include "base/status.h"

#include <stdio.h>

typedef struct sr_table sr_table;

/* `name` is the stem of its files and its id in the page; the caption describes it. */
srnn_status sr_table_create(sr_table **table, const char *name, const char *caption);
void sr_table_free(sr_table *table);

/* Add all columns first. Numbers are right-aligned. */
void sr_table_column(sr_table *table, const char *title);
void sr_table_number_column(sr_table *table, const char *title);

/* The next cell, row by row; the first of a row names it. */
void sr_table_cell(sr_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number displayed as `shown`; in CSV the number itself, empty if it is not finite. */
void sr_table_number(sr_table *table, double value, const char *shown);

/* A highlighted word, and its reason. */
void sr_table_judgement(sr_table *table, const char *word, const char *why);

const char *sr_table_name(const sr_table *table);
size_t sr_table_rows(const sr_table *table);

/* SRNN_ERR_MEMORY if anything above ran out of memory. */
srnn_status sr_table_check(const sr_table *table);

/* For a table that passed the check. */
void sr_table_write_html(FILE *out, const sr_table *table);
void sr_table_write_csv(FILE *out, const sr_table *table);
void sr_table_write_latex(FILE *out, const sr_table *table);

#endif
