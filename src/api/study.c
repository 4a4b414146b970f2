/* study.c: studies, for the C API. */
#include "base/memory.h"
#include "softrnn_lab.h"
#include "study/execute/execute.h"

#include <stdlib.h>

/* Calls the user's callback with two counts instead of all views. */
static bool watch(void *context, const sr_study *study, const sr_run_view *views) {
    const srnl_study *setup = context;
    size_t ended = 0;
    for (size_t i = 0; i < study->run_count; i++)
        ended += views[i].ending != SR_ENDING_NONE && !views[i].running;
    return !setup->watch || setup->watch(setup->context, ended, study->run_count);
}

static srnn_status execute_study(sr_study *study, sr_study_options *options,
                                 const sr_study_request *request, size_t *failed) {
    void *views;
    sr_summary summary = {0};
    SR_TRY(sr_alloc_zero(&views, study->run_count, sizeof(sr_run_view)));
    const srnn_status status =
        sr_study_execute_file(study, options, request, "srnl_study_run", views, &summary);
    if (failed)
        *failed = summary.failed;
    sr_summary_free(&summary);
    free(views);
    return status;
}

srnn_status srnl_study_run(const srnl_study *setup, size_t *failed) {
    sr_study study = {0};
    sr_study_options options = {.jobs = setup->jobs, .watch = watch, .context = (void *)setup};
    const sr_study_request request = {.file = setup->file,
                                      .out = setup->out,
                                      .text = setup->text,
                                      .only = setup->only,
                                      .skip = setup->skip};
    if (failed)
        *failed = 0;
    srnn_status status = sr_study_prepare(&study, &options, &request);
    if (status == SRNN_OK)
        status = execute_study(&study, &options, &request, failed);
    sr_study_options_free(&options);
    sr_study_free(&study);
    return status;
}
