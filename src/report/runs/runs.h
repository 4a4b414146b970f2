/* runs.h: a self-contained page about training runs outside of studies. */
#ifndef SR_REPORT_RUNS_RUNS_H
#define SR_REPORT_RUNS_RUNS_H

#include "base/status.h"

/* Reads run.yaml, metrics.jsonl and timings.jsonl of `count` folders and writes report.html into
 * `folder`, which must exist, with figures and tables as separate files. *bytes and *leaks as in
 * sr_report_write. */
srnn_status sr_report_write_runs(char *const *runs, size_t count, const char *folder, size_t *bytes,
                                 bool *leaks);

#endif
