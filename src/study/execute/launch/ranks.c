/* ranks.c: distributes the runs of a study among ranks. */
#include "study/execute/launch/ranks.h"

#include "study/execute/folder.h"
#include "study/execute/worker.h"

#include <stdio.h>
#include <string.h>

static srnn_status look(sr_run_view *view, const char *path) {
    sr_result result;
    SR_TRY(sr_result_read(&result, path));
    view->ending = result.ending;
    view->step = result.ending == SR_ENDING_NONE ? sr_record_last_step(path) : result.step;
    snprintf(view->message, sizeof view->message, "%s", result.message);
    return SRNN_OK;
}

/* *stopped: a signal arrived, and the run can be resumed. */
static srnn_status run_one(const sr_study_run *run, const char *path, int threads, bool *stopped) {
    sr_worker_board board = {0};
    sr_result result;
    if (!sr_worker_run(run, path, threads, &board))
        return SR_FAIL(SRNN_ERR_IO, "%s: %s", run->id, board.failure);
    SR_TRY(sr_result_read(&result, path));
    *stopped = result.ending == SR_ENDING_NONE;
    return SRNN_OK;
}

static srnn_status run_own(const sr_study *study, const char *folder,
                           const sr_study_options *options, const sr_run_view *views) {
    const int threads = sr_ranks_threads(options->ranks, 0);
    char path[SR_PATH_BYTES];
    bool stopped = false;
    int number = 0;
    for (size_t i = 0; i < study->run_count && !stopped; i++) {
        if (!views[i].selected || views[i].ending != SR_ENDING_NONE)
            continue;
        if (number++ % options->ranks->count != options->ranks->rank)
            continue;
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(run_one(&study->runs[i], path, threads, &stopped));
    }
    return SRNN_OK;
}

static srnn_status look_at_all(const sr_study *study, const char *folder, sr_run_view *views) {
    char path[SR_PATH_BYTES];
    bool all = true;
    for (size_t i = 0; i < study->run_count; i++) {
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        if (views[i].selected)
            SR_TRY(look(&views[i], path));
        all = all && (!views[i].selected || views[i].ending != SR_ENDING_NONE);
    }
    return all ? SRNN_OK
               : SR_FAIL(SRNN_ERR_INTERRUPTED,
                         "the study was interrupted; the same command resumes it");
}

/* Rank 0 determines which runs have ended, before any rank starts. */
srnn_status sr_study_execute_on_ranks(const sr_study *study, const char *folder,
                                      const sr_study_options *options, sr_run_view *views) {
    sr_ranks *ranks = options->ranks;
    SR_TRY(sr_ranks_agree(ranks, ranks->rank == 0
                                     ? sr_study_take_stock(study, folder, options, views)
                                     : SRNN_OK));
    SR_TRY(sr_ranks_share(ranks, views, study->run_count * sizeof *views));
    SR_TRY(sr_ranks_agree(ranks, run_own(study, folder, options, views)));
    return look_at_all(study, folder, views);
}
