/* folder.h (private): a study's folder: whether its runs are those of a plan. */
#ifndef SR_STUDY_EXECUTE_FOLDER_H
#define SR_STUDY_EXECUTE_FOLDER_H

#include "files/path.h"
#include "study/plan/study.h"

/* SRNN_OK if every run in the folder is one of the plan, with the same settings. Changes
 * nothing. */
srnn_status sr_study_check(const sr_study *study, const char *folder);

/* The folder of a run. */
srnn_status sr_study_run_path(char path[SR_PATH_BYTES], const char *folder, const char *id);

#endif
