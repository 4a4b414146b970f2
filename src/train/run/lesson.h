/* lesson.h (private): the teacher of a run, and which layers it teaches. */
#ifndef SR_TRAIN_RUN_LESSON_H
#define SR_TRAIN_RUN_LESSON_H

#include "model/lesson.h"
#include "train/run/settings.h"

/* { 0 }: a run without a teacher, in which everything learns. */
typedef struct sr_run_lesson {
    sr_lesson lesson; /* its teacher and layers are owned here */
    bool *layers;     /* (L): whose attention alone learns; NULL: everything learns */
} sr_run_lesson;

/* Opens the teacher for a student of L layers. */
srnn_status sr_run_lesson_open(sr_run_lesson *lesson, sr_backend *backend,
                               const sr_run_settings *settings, int L);
void sr_run_lesson_free(sr_run_lesson *lesson);

#endif
