/* folder.c: checks that the runs in a study's folder belong to its plan. */
#include "study/execute/folder.h"

#include "files/folder.h"
#include "study/execute/worker.h"

#include <string.h>

srnn_status sr_study_run_path(char path[SR_PATH_BYTES], const char *folder, const char *id) {
    return sr_path_print(path, "%s/runs/%s", folder, id);
}

static bool plans(const sr_study *study, const char *id) {
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0)
            return true;
    return false;
}

/* The summary would omit this run and its cost. */
static srnn_status check_foreign(const sr_study *study, const char *folder, const char *id) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_study_run_path(path, folder, id));
    if (plans(study, id) || !sr_worker_has_run(path))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "%s: this run is not one of the study; use another --out, remove it, or leave "
                   "runs out with --only and --skip",
                   path);
}

srnn_status sr_study_check(const sr_study *study, const char *folder) {
    char path[SR_PATH_BYTES];
    sr_names names = {0};
    if (sr_worker_has_run(folder))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: there is a training run in this folder; use another --out", folder);
    for (size_t i = 0; i < study->run_count; i++) {
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(sr_worker_check(&study->runs[i], path));
    }
    SR_TRY(sr_study_run_path(path, folder, ""));
    srnn_status status = sr_folder_list(&names, path);
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++)
        status = check_foreign(study, folder, names.names[i]);
    sr_names_free(&names);
    return status;
}
