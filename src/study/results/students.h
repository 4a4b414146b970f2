/* students.h (private): what the students of a study recover of what replacing attention loses. */
#ifndef SR_STUDY_RESULTS_STUDENTS_H
#define SR_STUDY_RESULTS_STUDENTS_H

#include "study/plan/study.h"
#include "study/results/record.h"

#include <jansson.h>

/* *list = the "students" of summary.json, as docs/RECORDS.md has them; NULL for a study without a
 * teacher. `records` and `measured` (study->run_count): records of the runs and, of students and
 * those from scratch, their student.json; NULL: there is none. Pure; free with json_decref. */
srnn_status sr_students_summarise(json_t **list, const sr_study *study, const sr_record *records,
                                  json_t *const *measured);

#endif
