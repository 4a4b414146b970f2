/* study_folder.c: a study's folder: who may write there, and whether its runs are those of a plan. */
#include "study/study_folder.h"

#include "files/file.h"
#include "files/folder.h"
#include "study/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LOOK_MICROSECONDS = 50000, LOCK_TRIES = 100 };

srnn_status sr_study_lock(int *lock, const char *folder) {
    char path[PATH_BYTES];
    *lock = -1;
    if (snprintf(path, sizeof path, "%s/lock", folder) >= (int)sizeof path)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    int descriptor;
    SR_TRY(sr_descriptor_open_own(&descriptor, path, O_RDWR | O_CREAT));
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
            *lock = descriptor;
            return SRNN_OK;
        }
        usleep(LOOK_MICROSECONDS);
    }
    close(descriptor);
    return SR_FAIL(SRNN_ERR_IO, "%s: another study is running in this folder", folder);
}

void sr_study_unlock(int lock) {
    if (lock >= 0)
        close(lock);
}

srnn_status sr_study_run_path(char *path, size_t size, const char *folder, const char *id) {
    if (snprintf(path, size, "%s/runs/%s", folder, id) >= (int)size)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    return SRNN_OK;
}

static bool plans(const sr_study *study, const char *id) {
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0)
            return true;
    return false;
}

/* The plan would forget it, and with it what it cost. */
static srnn_status check_foreign(const sr_study *study, const char *folder, const char *id) {
    char path[PATH_BYTES];
    SR_TRY(sr_study_run_path(path, sizeof path, folder, id));
    if (plans(study, id) || !sr_worker_has_run(path))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "%s: this run is not one of the study; use another --out, remove it, or leave "
                   "runs out with --only and --skip",
                   path);
}

srnn_status sr_study_check(const sr_study *study, const char *folder) {
    char path[PATH_BYTES];
    sr_names names = {0};
    for (size_t i = 0; i < study->run_count; i++) {
        SR_TRY(sr_study_run_path(path, sizeof path, folder, study->runs[i].id));
        SR_TRY(sr_worker_check(&study->runs[i], path));
    }
    SR_TRY(sr_study_run_path(path, sizeof path, folder, ""));
    srnn_status status = sr_folder_list(&names, path);
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++)
        status = check_foreign(study, folder, names.names[i]);
    sr_names_free(&names);
    return status;
}
