/* page.h (private): the page while it is being written, with its figures and tables as files beside
 * it. */
#ifndef SR_REPORT_PAGE_PAGE_H
#define SR_REPORT_PAGE_PAGE_H

#include "base/status.h"
#include "report/draw/chart.h"
#include "report/draw/table.h"

#include <stdio.h>

typedef struct sr_page {
    const char *folder; /* where report.html, figures/ and tables/ go */
    const char *kicker; /* above the title: what was run; "softrnn study" unless one sets it */
    FILE *body;         /* HTML of the sections */
    FILE *links;        /* HTML of the links to them */
    FILE *data;         /* JSON of the charts */
    char *body_text, *links_text, *data_text;
    size_t body_bytes, links_bytes, data_bytes;
    size_t charts;
    bool failed; /* memory was short for a part of it */
} sr_page;

/* Makes the folder `name` in `folder`; fine if it is there. */
srnn_status sr_page_make_folder(const char *folder, const char *name);

/* `folder` exists and outlives the page. */
srnn_status sr_page_open(sr_page *page, const char *folder);

/* A heading of the first rank below the title, with a link to it at the top of the page. The
 * section goes on until the next one; `id` and the words are ours or escaped here. */
void sr_page_section(sr_page *page, const char *id, const char *heading);

/* "<p>...</p>" of a text that is escaped here. */
void sr_page_paragraph(sr_page *page, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The figure into the page and into figures/; the table into the page and into tables/. Both take
 * what they are given and free it, also when they fail. A chart without points is left out. */
srnn_status sr_page_chart(sr_page *page, sr_chart *chart);
srnn_status sr_page_table(sr_page *page, sr_table *table);

/* Writes report.html; `bytes` is its size. */
srnn_status sr_page_write(sr_page *page, const char *title, size_t *bytes);

void sr_page_free(sr_page *page);

#endif
