/* student.h (private): a student of a study in the folder of its run, stage by stage. */
#ifndef SR_STUDY_EXECUTE_STUDENT_H
#define SR_STUDY_EXECUTE_STUDENT_H

#include "study/execute/worker.h"

/* True if the variant of the run goes through stages. */
bool sr_is_student(const sr_study_run *run);

/* As sr_worker_has_run and sr_worker_check. */
bool sr_student_has_run(const char *folder);
srnn_status sr_student_check(const sr_study_run *run, const char *folder);

/* Runs or resumes the stages. After the last one, *ended is true, and the folder has metrics.jsonl
 * and timings.jsonl of all of them and student.json (distil/measurement.h). *bytes: of the memory
 * of the last stage. */
srnn_status sr_student_work(const sr_study_run *run, const char *folder, int threads,
                            sr_worker_board *board, bool *ended, double *bytes);

#endif
