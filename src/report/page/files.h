/* files.h (private): the files of the page, embedded at build time. */
#ifndef SR_REPORT_PAGE_FILES_H
#define SR_REPORT_PAGE_FILES_H

#include <stddef.h>

typedef struct sr_page_file {
    const char *text; /* (bytes), not terminated */
    size_t bytes;
} sr_page_file;

sr_page_file sr_page_template(void);     /* page/page.html */
sr_page_file sr_page_style(void);        /* page/page.css */
sr_page_file sr_page_figure_style(void); /* page/figure.css, also for standalone figures */
sr_page_file sr_page_script(void);       /* page/page.js */
sr_page_file sr_page_selftest(void);     /* page/selftest.js */
sr_page_file sr_page_library(void);      /* dygraphs, as installed */

#endif
