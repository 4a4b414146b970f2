/* report.h: a study's records as one self-contained page. */
#ifndef SR_REPORT_STUDY_REPORT_H
#define SR_REPORT_STUDY_REPORT_H

#include "base/status.h"

/* Reads the records under `study` (docs/RECORDS.md) and writes report.html into `folder`, which
 * must exist; its figures as SVG into folder/figures, its tables as CSV and LaTeX into
 * folder/tables. *bytes is the size of the page; *leaks: one of its systems is not causal, which
 * the page says. */
srnn_status sr_report_write(const char *study, const char *folder, size_t *bytes, bool *leaks);

#endif
