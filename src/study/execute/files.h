/* files.h (private): the files of a study's folder: study.json, summary.json, the text. */
#ifndef SR_STUDY_EXECUTE_FILES_H
#define SR_STUDY_EXECUTE_FILES_H

#include "study/results/summary.h"

#include <jansson.h>

/* Settings as an object of texts; NULL: no memory. */
json_t *sr_study_settings_json(const sr_pairs *settings);

/* Writes study.yaml and study.json; `command` reproduces the study. */
srnn_status sr_study_write(const sr_study *study, const char *folder, const char *command);

/* Reads the records of all runs of the plan, computes the summary and writes summary.json. Free
 * `summary` in any case. */
srnn_status sr_study_summarise(sr_summary *summary, const sr_study *study, const char *folder,
                               const bool *requested);

/* Writes the text of the study to `path`: these files concatenated, or the King James Bible if
 * there are none. An existing file must have the same content. */
srnn_status sr_study_text(const char *path, const sr_word_list *files);

#endif
