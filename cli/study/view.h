/* view.h: the state of a study's runs, on stderr: a live table on a terminal, plain lines
 * otherwise. */
#ifndef SR_CLI_STUDY_VIEW_H
#define SR_CLI_STUDY_VIEW_H

#include "study/execute/runner.h"

typedef struct study_view {
    const sr_study *study; /* being shown */
    bool on_terminal;
    int lines; /* lines of the table on the screen */
    double start_seconds, last_seconds;
    double flops_before; /* done in earlier sessions */
    bool *reported;      /* (runs): its end was reported */
} study_view;

srnn_status study_view_begin(study_view *view, const sr_study *study);
void study_view_end(study_view *view);

/* An sr_study_watch. */
bool study_view_look(void *context, const sr_study *study, const sr_run_view *views);

/* A running run in one line of a terminal with `columns` columns (30 or more): less important
 * fields are dropped if they do not fit. */
void study_view_line(char *line, size_t size, int columns, const sr_study_run *run,
                     const sr_run_view *view);

#endif
