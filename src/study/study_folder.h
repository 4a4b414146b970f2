/* study_folder.h: a study's folder: who may write there, and whether its runs are those of a plan. */
#ifndef SR_STUDY_STUDY_FOLDER_H
#define SR_STUDY_STUDY_FOLDER_H

#include "study/study.h"

/* Nothing in the folder may be written without its lock, which fails after a few seconds if another
 * process has it. Workers inherit it, so that none of a study that was killed is still writing. */
srnn_status sr_study_lock(int *lock, const char *folder);
void sr_study_unlock(int lock); /* -1: none */

/* SRNN_OK if every run in the folder is one of the plan, with the same settings. Changes nothing. */
srnn_status sr_study_check(const sr_study *study, const char *folder);

/* The folder of a run. */
srnn_status sr_study_run_path(char *path, size_t size, const char *folder, const char *id);

#endif
