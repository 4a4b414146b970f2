/* execute.h: a study from its file to its summary, in a folder. */
#ifndef SR_STUDY_EXECUTE_EXECUTE_H
#define SR_STUDY_EXECUTE_EXECUTE_H

#include "study/execute/runner.h"
#include "study/results/summary.h"

/* What `softrnn study` is asked for, in its words. */
typedef struct sr_study_request {
    const char *file;        /* the study in YAML; NULL: the default study, see status_only */
    const char *out;         /* its folder */
    const char *text;        /* the files of @text, "a,b"; NULL: the King James Bible */
    const char *only, *skip; /* "a,b"; NULL: all, none */
    const char *cluster; /* options of sbatch beside those of the study: "partition=short,gpus=1" */
    bool plan_only;      /* nothing is written */
    /* nor here; the folder must be there, and without a file its own study is meant */
    bool status_only;
} sr_study_request;

/* Reads the study, makes its folder (but see the request) and its plan, and fills only and skip of
 * the way, which is { 0 } in both. Free study and way in any case. */
srnn_status sr_study_prepare(sr_study *study, sr_study_options *options,
                             const sr_study_request *request);
void sr_study_options_free(sr_study_options *options);

/* Runs one run of a prepared study in this process, and nothing else: what launchers start. */
srnn_status sr_study_member(const sr_study *study, const sr_study_request *request, const char *id);

/* views (study->run_count) = how the runs of a prepared study that the way selects stand, by their
 * records. */
srnn_status sr_study_status(const sr_study *study, const char *folder,
                            const sr_study_options *options, sr_run_view *views);

/* Runs a prepared study (what it did not need is added to options->skip), and sums up all records that are there, also when it was interrupted (the
 * status says so). `command` repeats the study, for its records; `views` (study->run_count)
 * receives how it went. Free `summary` in any case. */
srnn_status sr_study_execute_file(sr_study *study, sr_study_options *options,
                                  const sr_study_request *request, const char *command,
                                  sr_run_view *views, sr_summary *summary);

#endif
