/* teachers.c: trains the teachers of a study before their students. */
#include "study/execute/teachers.h"

#include "files/folder.h"
#include "study/execute/folder.h"

#include <stdlib.h>

static srnn_status check_ended(const sr_study *teachers, const sr_run_view *views) {
    for (size_t i = 0; i < teachers->run_count; i++)
        if (views[i].ending != SR_ENDING_FINISHED)
            return SR_FAIL(SRNN_ERR_IO, "teacher %s %s: %s", teachers->runs[i].id,
                           sr_ending_name(views[i].ending), views[i].message);
    return SRNN_OK;
}

/* One after the other. */
static srnn_status execute(const sr_study *teachers, const char *folder,
                           const sr_study_options *options) {
    const sr_study_options own = {.jobs = 1,
                                  .deadline = options->deadline,
                                  .watch = options->watch,
                                  .context = options->context};
    sr_run_view *views = calloc(teachers->run_count, sizeof *views);
    if (!views)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the teachers");
    srnn_status status = sr_study_execute(teachers, folder, &own, views);
    if (status == SRNN_OK)
        status = check_ended(teachers, views);
    free(views);
    return status;
}

srnn_status sr_study_teach(const sr_study *study, const char *folder, const char *text,
                           const sr_study_options *options) {
    char own[SR_PATH_BYTES];
    sr_study teachers = {0};
    if (!study->teacher.wanted || study->teacher.model)
        return SRNN_OK;
    SR_TRY(sr_path_join(own, folder, SR_STUDY_TEACHERS));
    srnn_status status = sr_study_teachers(&teachers, study, text);
    if (status == SRNN_OK)
        status = sr_folders_make(own);
    if (status == SRNN_OK)
        status = sr_path_has(own, "runs") ? sr_study_check(&teachers, own) : SRNN_OK;
    if (status == SRNN_OK)
        status = execute(&teachers, own, options);
    sr_study_free(&teachers);
    return status;
}
