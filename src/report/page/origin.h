/* origin.h (private): provenance of a record: command, program and machine. */
#ifndef SR_REPORT_PAGE_ORIGIN_H
#define SR_REPORT_PAGE_ORIGIN_H

#include "report/page/page.h"

#include <jansson.h>

/* Begins the section with the command that reproduces the record, from `origin`
 * (files/origin.h). */
void sr_origin_section(sr_page *page, const json_t *origin);

/* A row of a table of two columns; omitted if the text is missing. */
void sr_origin_text(sr_table *table, const char *what, const char *text);

/* The rows of program and machine. */
void sr_origin_machine(sr_table *table, const json_t *origin);

#endif
