/* run.c: a training run in a folder. */
#include "train/run.h"

#include "base/memory.h"
#include "data/source_open.h"
#include "model/checkpoint.h"
#include "train/batches.h"
#include "train/folder.h"
#include "train/run_records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sr_run {
    char folder[SR_PATH_BYTES];
    sr_run_settings settings;
    sr_backend *backend;
    sr_source *source;
    sr_model *model;
    sr_trainer *trainer;
    sr_run_records *records;
    sr_progress progress;
    sr_validation validation; /* the last one */
    double started;           /* seconds of the clock */
};

static double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static srnn_status open_source(sr_run *run) {
    sr_run_settings *s = &run->settings;
    if (*s->batches) {
        SR_TRY(sr_batches_open(&run->source, &s->B, s->batches));
        s->T = run->source->T;
        return SRNN_OK;
    }
    if (!*s->data)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no data: give --data or --batches");
    const sr_source_settings settings = {.seed = (uint64_t)s->seed,
                                         .T = s->T,
                                         .layout = (sr_row_layout)s->layout,
                                         .validation = *s->validation ? s->validation : NULL,
                                         .validation_share = s->validation_share};
    SR_TRY(sr_source_open(&run->source, s->data, &settings));
    s->T = run->source->T; /* a synthetic task has its own length */
    return SRNN_OK;
}

static srnn_status new_model(sr_run *run) {
    sr_run_settings *s = &run->settings;
    SR_TRY(sr_run_settings_apply_preset(s));
    s->V = s->V ? s->V : run->source->vocab;
    sr_model_config config = {.V = s->V,
                              .C = s->C,
                              .F = s->F,
                              .L = s->L,
                              .H = s->H,
                              .Hkv = s->Hkv,
                              .D = s->D,
                              .positions = s->T,
                              .mlp = (sr_mlp)s->mlp,
                              .norm_epsilon = s->norm_epsilon,
                              .rope_theta = s->rope_theta,
                              .tied = s->tied,
                              .bos = -1,
                              .eos = -1};
    srnn_status status = sr_model_config_attention(&config, s->attention);
    if (status == SRNN_OK)
        status = sr_model_create(&run->model, run->backend, &config);
    sr_model_config_free(&config);
    SR_TRY(status);
    return sr_model_initialise(run->model, s->initial_range, (uint64_t)s->seed);
}

static srnn_status make_model(sr_run *run) {
    const sr_run_settings *s = &run->settings;
    if (*s->model)
        SR_TRY(sr_model_load(&run->model, run->backend, s->model));
    else
        SR_TRY(new_model(run));
    if (run->source->vocab > run->model->config.V)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the data has %d tokens, the model only %d",
                       run->source->vocab, run->model->config.V);
    return SRNN_OK;
}

static srnn_status make_trainer(sr_run *run) {
    const sr_run_settings *s = &run->settings;
    const sr_trainer_settings settings = {.B = s->B,
                                          .T = s->T,
                                          .accumulate = s->accumulate,
                                          .recompute = s->recompute,
                                          .learning_rate = s->learning_rate,
                                          .beta1 = s->beta1,
                                          .beta2 = s->beta2,
                                          .epsilon = s->epsilon,
                                          .weight_decay = s->weight_decay,
                                          .clip = s->clip,
                                          .schedule = {.kind = (sr_schedule_kind)s->schedule,
                                                       .steps = s->steps,
                                                       .warmup = s->warmup,
                                                       .decay = s->decay,
                                                       .floor = s->floor}};
    return sr_trainer_create(&run->trainer, run->model, &settings);
}

static srnn_status make(sr_run *run, const char *folder) {
    if (snprintf(run->folder, sizeof run->folder, "%s", folder) >= (int)sizeof run->folder)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    SR_TRY(sr_backend_cpu_create(&run->backend, run->settings.threads));
    if (run->settings.precision == SR_PRECISION_BF16)
        SR_TRY(sr_backend_cpu_bf16(run->backend));
    SR_TRY(open_source(run));
    SR_TRY(make_model(run));
    SR_TRY(make_trainer(run));
    SR_TRY(sr_validation_create(&run->validation, run->settings.validate_batches));
    run->started = clock_seconds();
    return SRNN_OK;
}

static srnn_status join(char path[SR_PATH_BYTES], const char *folder, const char *name) {
    if (snprintf(path, SR_PATH_BYTES, "%s/%s", folder, name) >= SR_PATH_BYTES)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    return SRNN_OK;
}

/* run.yaml is written last, so that a folder with one is a run that can be resumed. */
static srnn_status start(sr_run *run, const char *folder, const sr_run_settings *settings) {
    char yaml[SR_PATH_BYTES], checkpoints[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(sr_run_settings_copy(&run->settings, settings));
    SR_TRY(join(yaml, folder, "run.yaml"));
    SR_TRY(join(checkpoints, folder, "checkpoints"));
    if (access(yaml, F_OK) == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: there is a run in this folder; continue it with --resume", folder);
    SR_TRY(make(run, folder));
    SR_TRY(sr_folder_make(folder));
    SR_TRY(sr_folder_make(checkpoints));
    SR_TRY(sr_run_records_open(&run->records, folder, &run->progress));
    return sr_run_settings_write(&run->settings, yaml);
}

static srnn_status resume(sr_run *run, const char *folder, const sr_run_ends *ends) {
    char yaml[SR_PATH_BYTES], checkpoint[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(join(yaml, folder, "run.yaml"));
    SR_TRY(sr_run_settings_read(&run->settings, yaml));
    if (ends->stop_step)
        run->settings.stop_step = ends->stop_step;
    if (ends->stop_tokens)
        run->settings.stop_tokens = ends->stop_tokens;
    if (ends->stop_seconds > 0)
        run->settings.stop_seconds = ends->stop_seconds;
    if (ends->threads)
        run->settings.threads = ends->threads;
    SR_TRY(make(run, folder));
    SR_TRY(sr_checkpoint_tidy(folder));
    SR_TRY(sr_checkpoint_latest(checkpoint, folder));
    if (*checkpoint)
        SR_TRY(sr_checkpoint_read(checkpoint, run->trainer, run->model, &run->progress));
    return sr_run_records_open(&run->records, folder, &run->progress);
}

static srnn_status allocate(sr_run **run) {
    void *memory;
    *run = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **run));
    *run = memory;
    return SRNN_OK;
}

srnn_status sr_run_start(sr_run **run, const char *folder, const sr_run_settings *settings) {
    SR_TRY(allocate(run));
    const srnn_status status = start(*run, folder, settings);
    if (status != SRNN_OK) {
        sr_run_free(*run);
        *run = NULL;
    }
    return status;
}

srnn_status sr_run_resume(sr_run **run, const char *folder, const sr_run_ends *ends) {
    SR_TRY(allocate(run));
    const srnn_status status = resume(*run, folder, ends);
    if (status != SRNN_OK) {
        sr_run_free(*run);
        *run = NULL;
    }
    return status;
}

void sr_run_free(sr_run *run) {
    if (!run)
        return;
    sr_run_records_free(run->records);
    sr_validation_free(&run->validation);
    sr_trainer_free(run->trainer);
    sr_model_free(run->model);
    sr_source_free(run->source);
    sr_backend_free(run->backend);
    sr_run_settings_free(&run->settings);
    free(run);
}

const sr_run_settings *sr_run_settings_of(const sr_run *run) {
    return &run->settings;
}

const sr_progress *sr_run_progress(const sr_run *run) {
    return &run->progress;
}

const sr_model *sr_run_model(const sr_run *run) {
    return run->model;
}

size_t sr_run_bytes(const sr_run *run) {
    return sr_trainer_bytes(run->trainer);
}

bool sr_run_done(const sr_run *run) {
    const sr_run_settings *s = &run->settings;
    const sr_progress *p = &run->progress;
    return p->step >= s->steps || (s->stop_step && p->step >= s->stop_step) ||
           (s->stop_tokens && p->tokens >= s->stop_tokens) ||
           (s->stop_seconds > 0 && clock_seconds() - run->started >= s->stop_seconds);
}

srnn_status sr_run_save(sr_run *run) {
    if (run->progress.step == 0)
        return SRNN_OK; /* the start is its own checkpoint */
    SR_TRY(sr_run_records_sync(run->records, &run->progress));
    return sr_checkpoint_write(run->folder, run->trainer, run->model, &run->progress,
                               run->settings.keep, run->settings.tokenizer);
}

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* After the last step too, so that runs can be compared by how they end. */
static bool validates(const sr_run *run) {
    const sr_run_settings *s = &run->settings;
    const int64_t step = run->progress.step;
    return s->validate_batches > 0 && run->source->rows[SR_SPLIT_VALIDATION] > 0 &&
           (due(step, s->validate_every) || (s->validate_every > 0 && step == s->steps));
}

static void count_step(sr_progress *progress, const sr_step *step, const sr_run_settings *s) {
    progress->step++;
    progress->tokens += (int64_t)s->B * s->T * s->accumulate;
    progress->skipped += !step->applied;
    progress->skipped_in_row = step->applied ? 0 : progress->skipped_in_row + 1;
}

static void save_when_due(sr_run *run, sr_run_report *report) {
    if (!due(run->progress.step, run->settings.save_every))
        return;
    report->saved = sr_run_save(run) == SRNN_OK;
    if (!report->saved)
        snprintf(report->save_failure, sizeof report->save_failure, "%s", srnn_error_detail());
}

srnn_status sr_run_step(sr_run *run, sr_run_report *report) {
    const sr_run_settings *s = &run->settings;
    const double begin = clock_seconds();
    *report = (sr_run_report){.validation = NAN};
    SR_TRY(sr_trainer_step(run->trainer, &report->step, run->source, run->progress.step + 1));
    count_step(&run->progress, &report->step, s);
    report->seconds = clock_seconds() - begin;
    const sr_validation *validation = validates(run) ? &run->validation : NULL;
    if (validation) {
        SR_TRY(sr_trainer_validate(run->trainer, &run->validation, run->source));
        report->validation = validation->loss;
        report->accuracy = validation->accuracy;
    }
    SR_TRY(sr_run_records_step(run->records, &run->progress, &report->step, validation,
                               report->seconds));
    if (run->progress.skipped_in_row >= s->bad_steps)
        return SR_FAIL(SRNN_ERR_LIMIT,
                       "%lld steps in a row had a loss or gradient that is not finite; the last "
                       "good checkpoint is in %s/checkpoints; try a smaller learning rate",
                       (long long)run->progress.skipped_in_row, run->folder);
    save_when_due(run, report);
    return SRNN_OK;
}
