/* students.h (private): a study of students: what its teacher, budgets and controls become. */
#ifndef SR_STUDY_PLAN_STUDENTS_H
#define SR_STUDY_PLAN_STUDENTS_H

#include "study/plan/study.h"

/* With a teacher, every variant becomes one student for each budget, and one from scratch with the
 * same shape; the baseline is the teacher, trained on the same tokens. */
srnn_status sr_study_add_students(sr_study *study);

/* True for the names of sr_distil_request_set. */
bool sr_study_is_stage_setting(const char *name);

/* Sets what follows from the role of the run's variant; `teacher`: the folder of its teacher. */
srnn_status sr_study_plan_role(sr_study_run *run, const sr_study *study, const char *teacher);

/* The shape of a student, or of one from scratch. Free with sr_model_config_free. */
srnn_status sr_study_student_config(sr_model_config *config, const sr_model_config *teacher,
                                    const sr_study *study, const sr_study_run *run);

#endif
