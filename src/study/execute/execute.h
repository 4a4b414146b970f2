/* execute.h: a study from its file to its summary, in a folder. */
#ifndef SR_STUDY_EXECUTE_EXECUTE_H
#define SR_STUDY_EXECUTE_EXECUTE_H

#include "study/execute/runner.h"
#include "study/results/summary.h"

/* The request of `softrnn study`, as text. */
typedef struct sr_study_request {
    const char *file;        /* the study in YAML; NULL: the default study, see status_only */
    const char *out;         /* its folder */
    const char *text;        /* the files of @text, "a,b"; NULL: the King James Bible */
    const char *only, *skip; /* "a,b"; NULL: all, none */
    const char *cluster;     /* additional options of sbatch: "partition=short,gpus=1" */
    bool plan_only;          /* nothing is written */
    /* the same; the folder must exist, and without a file its own study is used */
    bool status_only;
} sr_study_request;

/* Reads the study, creates its folder (unless the request says otherwise) and its plan, and fills
 * only and skip of `options`, which the caller sets to { 0 }. Free study and options in any
 * case. */
srnn_status sr_study_prepare(sr_study *study, sr_study_options *options,
                             const sr_study_request *request);
void sr_study_options_free(sr_study_options *options);

/* Runs one run of a prepared study in this process: the command that launchers start. */
srnn_status sr_study_member(const sr_study *study, const sr_study_request *request, const char *id);

/* views (study->run_count) = the state of the runs that the options select, from their records. */
srnn_status sr_study_status(const sr_study *study, const char *folder,
                            const sr_study_options *options, sr_run_view *views);

/* Runs a prepared study and summarises all existing records, also after an interruption (reported
 * by the status). Runs that were not needed are added to options->skip. `command` reproduces the
 * study, for its records; `views` (study->run_count) receives the state of the runs. Free `summary`
 * in any case. */
srnn_status sr_study_execute_file(sr_study *study, sr_study_options *options,
                                  const sr_study_request *request, const char *command,
                                  sr_run_view *views, sr_summary *summary);

#endif
