/* folder.h (private): checks that the runs in a study's folder belong to its plan. */
#ifndef SR_STUDY_EXECUTE_FOLDER_H
#define SR_STUDY_EXECUTE_FOLDER_H

#include "files/path.h"
#include "study/plan/study.h"

/* SRNN_OK if every run in the folder is in the plan, with the same settings. Read-only. */
srnn_status sr_study_check(const sr_study *study, const char *folder);

/* The folder of a run. */
srnn_status sr_study_run_path(char path[SR_PATH_BYTES], const char *folder, const char *id);

#endif
