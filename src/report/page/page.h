/* page.h (private): writes a page, with its figures and tables as separate files. */
#ifndef SR_REPORT_PAGE_PAGE_H
#define SR_REPORT_PAGE_PAGE_H

#include "base/status.h"
#include "report/draw/chart.h"
#include "report/draw/table.h"

#include <stdio.h>

typedef struct sr_page {
    const char *folder; /* for report.html, figures/ and tables/ */
    const char *kicker; /* line above the title; default "softrnn study" */
    FILE *body;         /* HTML of the sections */
    FILE *links;        /* HTML of the links to them */
    FILE *data;         /* JSON of the charts */
    char *body_text, *links_text, *data_text;
    size_t body_bytes, links_bytes, data_bytes;
    size_t charts;
    bool failed; /* an allocation failed */
} sr_page;

/* Creates the folder `name` in `folder`; succeeds if it exists. */
srnn_status sr_page_make_folder(const char *folder, const char *name);

/* `folder` must exist and outlive the page. */
srnn_status sr_page_open(sr_page *page, const char *folder);

/* A top-level heading with a link to it at the top of the page. The section extends to the next
 * one; `id` must be safe, the heading is escaped. */
void sr_page_section(sr_page *page, const char *id, const char *heading);

/* "<p>...</p>" with escaped text. */
void sr_page_paragraph(sr_page *page, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds the figure to the page and to figures/; the table to the page and to tables/. Both take
 * ownership of their argument and free it, also on failure. A chart without points is dropped. */
srnn_status sr_page_chart(sr_page *page, sr_chart *chart);
srnn_status sr_page_table(sr_page *page, sr_table *table);

/* Writes report.html; `bytes` is its size. */
srnn_status sr_page_write(sr_page *page, const char *title, size_t *bytes);

void sr_page_free(sr_page *page);

#endif
