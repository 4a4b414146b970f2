/* teachers.h (private): trains the teachers of a study before their students. */
#ifndef SR_STUDY_EXECUTE_TEACHERS_H
#define SR_STUDY_EXECUTE_TEACHERS_H

#include "study/execute/runner.h"

/* Trains what is missing in the study's folder, with all cores; nothing for a study without a
 * teacher, or with one that exists. `text`: the file of @text. Fails with SRNN_ERR_INTERRUPTED if
 * the watch stopped it. */
srnn_status sr_study_teach(const sr_study *study, const char *folder, const char *text,
                           const sr_study_options *options);

#endif
