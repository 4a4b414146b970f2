/* files.h (private): the files of a study's folder: study.json, summary.json, the text. */
#ifndef SR_STUDY_EXECUTE_FILES_H
#define SR_STUDY_EXECUTE_FILES_H

#include "study/results/summary.h"

#include <jansson.h>

/* Writes study.yaml and study.json; `command` says how to repeat the study. */
srnn_status sr_study_write(const sr_study *study, const char *folder, const char *command);

/* Reads the records of all runs of the plan, makes the summary and writes summary.json. Free
 * `summary` in any case. */
srnn_status sr_study_summarise(sr_summary *summary, const sr_study *study, const char *folder,
                               const bool *asked);

/* Makes `path` the text of the study: these files one after the other, or the King James Bible if
 * there are none. A file that is there already must hold the same. */
srnn_status sr_study_text(const char *path, const sr_word_list *files);

#endif
