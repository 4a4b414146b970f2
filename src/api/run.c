/* run.c: training runs, for the C API. */
#include "train/run/run.h"

#include "base/memory.h"
#include "softrnn_lab.h"

#include <stdlib.h>

struct srnl_settings {
    sr_run_settings settings;
};

struct srnl_run {
    sr_run *run;
};

srnn_status srnl_settings_create(srnl_settings **settings) {
    void *memory;
    *settings = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **settings));
    srnl_settings *made = memory;
    const srnn_status status = sr_run_settings_create(&made->settings);
    if (status != SRNN_OK) {
        srnl_settings_free(made);
        return status;
    }
    *settings = made;
    return SRNN_OK;
}

void srnl_settings_free(srnl_settings *settings) {
    if (!settings)
        return;
    sr_run_settings_free(&settings->settings);
    free(settings);
}

const char *srnl_setting_name(size_t index) {
    const sr_setting *setting = sr_setting_at(index);
    return setting ? setting->name : NULL;
}

srnn_status srnl_settings_set(srnl_settings *settings, const char *name, const char *value) {
    return sr_run_settings_set(&settings->settings, name, value);
}

/* Takes ownership of the run, also on failure. */
static srnn_status wrap(srnl_run **out, sr_run *run) {
    void *memory;
    const srnn_status status = sr_alloc_zero(&memory, 1, sizeof **out);
    if (status != SRNN_OK) {
        sr_run_free(run);
        return status;
    }
    *out = memory;
    (*out)->run = run;
    return SRNN_OK;
}

srnn_status srnl_run_start(srnl_run **run, const char *folder, const srnl_settings *settings) {
    sr_run *started;
    *run = NULL;
    SR_TRY(sr_run_start(&started, folder, &settings->settings));
    return wrap(run, started);
}

srnn_status srnl_run_resume(srnl_run **run, const char *folder) {
    sr_run *resumed;
    *run = NULL;
    SR_TRY(sr_run_resume(&resumed, folder, &(sr_run_ends){0}));
    return wrap(run, resumed);
}

void srnl_run_free(srnl_run *run) {
    if (!run)
        return;
    sr_run_free(run->run);
    free(run);
}

srnn_status srnl_run_step(srnl_run *run, srnl_step *step) {
    sr_run_report report;
    if (sr_run_done(run->run))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the run has done its last step");
    SR_TRY(sr_run_step(run->run, &report));
    const sr_progress *progress = sr_run_progress(run->run);
    *step = (srnl_step){.step = progress->step,
                        .tokens = progress->tokens,
                        .loss = report.step.loss,
                        .gradient_norm = report.step.gradient_norm,
                        .learning_rate = report.step.learning_rate,
                        .validation = report.validation,
                        .accuracy = report.accuracy,
                        .seconds = report.seconds,
                        .applied = report.step.applied,
                        .saved = report.saved};
    return SRNN_OK;
}

bool srnl_run_done(const srnl_run *run) {
    return sr_run_done(run->run);
}

srnn_status srnl_run_save(srnl_run *run) {
    return sr_run_save(run->run);
}
