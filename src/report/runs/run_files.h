/* run_files.h (private): reads the files of one run. */
#ifndef SR_REPORT_RUNS_RUN_FILES_H
#define SR_REPORT_RUNS_RUN_FILES_H

#include "report/records/curve.h"

typedef struct sr_run_files {
    const char *folder;
    char *name;     /* the last part of the folder's name, owned */
    char *settings; /* run.yaml, owned */
    sr_curve curve;
    double seconds; /* of all training steps; NAN: unknown */
} sr_run_files;

enum { SR_SETTING_TEXT_BYTES = 512 };

/* Free with sr_run_files_free in any case. */
srnn_status sr_run_files_read(sr_run_files *run, const char *folder);
void sr_run_files_free(sr_run_files *run);

/* value = the text after "name: " in run.yaml, without quotes; "" if there is no such line. */
void sr_run_setting(char value[SR_SETTING_TEXT_BYTES], const sr_run_files *run, const char *name);
double sr_run_number(const sr_run_files *run, const char *name); /* NAN: none */

/* The name of line `index` of run.yaml; false past the end, "" for a line without one. */
bool sr_run_setting_name(char name[SR_SETTING_TEXT_BYTES], const sr_run_files *run, size_t index);

#endif
