/* run.c: a training run in a folder. */
#include "train/run/run.h"

#include "base/clock.h"
#include "base/memory.h"
#include "data/tokenizer/files/copy.h"
#include "device/device.h"
#include "files/folder.h"
#include "files/origin.h"
#include "files/path.h"
#include "train/run/data.h"
#include "train/run/lesson.h"
#include "train/run/model.h"
#include "train/run/records.h"
#include "train/run/samples.h"
#include "train/run/tests.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct sr_run {
    char folder[SR_PATH_BYTES];
    int lock; /* -1: none */
    sr_run_settings settings;
    sr_backend *backend;
    sr_source *source;
    sr_model *model;
    sr_run_lesson lesson;
    sr_trainer *trainer;
    sr_run_records *records;
    sr_progress progress;
    sr_validation validation; /* the latest */
    double started;           /* seconds of the clock */
    size_t fresh;             /* newly initialised tensors */
    int64_t saved_step;       /* of the last checkpoint; 0: the initial state, which needs none */
    sr_machine machine;
    sr_ranks *ranks;
};

static bool is_first(const sr_run *run) {
    return run->ranks->rank == 0;
}

static srnn_status make_trainer(sr_run *run) {
    const sr_run_settings *s = &run->settings;
    const sr_trainer_settings settings = {.B = s->B,
                                          .T = s->T,
                                          .accumulate = s->accumulate,
                                          .recompute = (sr_recompute)s->recompute,
                                          .optimizer = (sr_optimizer)s->optimizer,
                                          .learning_rate = s->learning_rate,
                                          .beta1 = s->beta1,
                                          .beta2 = s->beta2,
                                          .epsilon = s->epsilon,
                                          .weight_decay = s->weight_decay,
                                          .momentum = s->momentum,
                                          .decay_all = s->decay_all,
                                          .clip = s->clip,
                                          .qk_clip = s->qk_clip,
                                          .schedule = {.kind = (sr_schedule_kind)s->schedule,
                                                       .steps = s->steps,
                                                       .warmup = s->warmup,
                                                       .decay = s->decay,
                                                       .floor = s->floor},
                                          .lesson = run->lesson.lesson,
                                          .attention_of = run->lesson.layers,
                                          .adapter_rank = s->adapter_rank,
                                          .context_ranks = s->context_ranks,
                                          .ranks = run->ranks,
                                          .whole = s->shard == SR_SHARD_NONE};
    return sr_trainer_create(&run->trainer, run->model, &settings);
}

static srnn_status make_model(sr_run *run, const char *checkpoint) {
    sr_model_config config;
    SR_TRY(sr_run_model_config(&config, &run->settings, checkpoint, run->source->vocab));
    srnn_status status = sr_model_create(&run->model, run->backend, &config);
    sr_model_config_free(&config);
    SR_TRY(status);
    SR_TRY(sr_run_lesson_open(&run->lesson, run->backend, &run->settings, run->model->config.L));
    status = make_trainer(run);
    if (status != SRNN_ERR_MEMORY)
        return status;
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s (weights, gradients and moments of %.2f M numbers, and activations)",
                   why, 1e-6 * (double)run->model->table.numbers);
}

static sr_checkpointed checkpointed(const sr_run *run) {
    return (sr_checkpointed){run->folder, &run->settings, run->trainer, run->model, run->ranks};
}

/* The device of this rank. Ranks of one machine that were given "cuda", without a number, get
 * different GPUs if there are enough. NULL: the CPU. */
static srnn_status rank_device(char name[SR_DEVICE_NAME], const char **device, const sr_run *run) {
    const char *requested = run->settings.device;
    const sr_ranks *ranks = run->ranks;
    const char *reason;
    sr_device_choice choice;
    int count, before = 0;
    *device = requested && *requested ? requested : NULL;
    SR_TRY(sr_device_choose(&choice, *device));
    if (!choice.kind->numbered || choice.has_index || ranks->count == 1)
        return SRNN_OK;
    for (int r = 0; r < ranks->rank; r++)
        before += strcmp(ranks->hosts[r], ranks->hosts[ranks->rank]) == 0;
    SR_TRY(choice.kind->count(&count, &reason));
    snprintf(name, SR_DEVICE_NAME, "%s:%d", choice.kind->name, count > 0 ? before % count : 0);
    *device = name;
    return SRNN_OK;
}

/* Allocates all memory before weights are computed or read, so that a lack of it fails early. */
static srnn_status make(sr_run *run, const char *folder, const char *checkpoint) {
    SR_TRY(sr_path_print(run->folder, "%s", folder));
    char name[SR_DEVICE_NAME];
    const char *device;
    SR_TRY(rank_device(name, &device, run));
    const sr_backend_settings numbers = {.device = device,
                                         .threads =
                                             sr_ranks_threads(run->ranks, run->settings.threads),
                                         .bf16 = run->settings.precision == SR_PRECISION_BF16,
                                         .fp8 = run->settings.precision == SR_PRECISION_FP8,
                                         .fp8_head = run->settings.fp8_head};
    SR_TRY(sr_backend_create(&run->backend, &numbers));
    SR_TRY(sr_run_data_open(&run->source, &run->settings));
    SR_TRY(make_model(run, checkpoint));
    SR_TRY(sr_validation_create(&run->validation, run->settings.validate_batches,
                                run->settings.objective == SR_OBJECTIVE_LAYERS
                                    ? run->model->config.L
                                    : 0));
    run->started = sr_clock_seconds();
    const sr_checkpointed state = checkpointed(run);
    if (!*checkpoint || run->settings.adapter_rank)
        SR_TRY(sr_run_model_begin(run->model, &run->fresh, &run->settings));
    SR_TRY(sr_trainer_begin_adapters(run->trainer, run->settings.initial_range,
                                     (uint64_t)run->settings.seed));
    if (*checkpoint)
        SR_TRY(sr_checkpoint_read(checkpoint, &state, &run->progress));
    return sr_trainer_scatter_weights(run->trainer);
}

/* Files in the folder of a new run could be mistaken for the run's, or be overwritten. */
static srnn_status check_empty(const sr_run *run, const char *checkpoints) {
    char metrics[SR_PATH_BYTES];
    struct stat facts;
    sr_names names;
    SR_TRY(sr_checkpoint_tidy(run->folder));
    SR_TRY(sr_folder_list(&names, checkpoints));
    const size_t count = names.count;
    sr_names_free(&names);
    SR_TRY(sr_path_join(metrics, run->folder, "metrics.jsonl"));
    if (count > 0 || (lstat(metrics, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: holds checkpoints or records of another run, but no run.yaml; choose "
                       "another folder, or remove them",
                       run->folder);
    return SRNN_OK;
}

/* A random identity, different for every run. */
static srnn_status make_identity(sr_run_settings *settings) {
    unsigned char bytes[(sizeof settings->identity - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return SR_FAIL(SRNN_ERR_IO, "the system gives no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(settings->identity + 2 * i, 3, "%02x", bytes[i]);
    return SRNN_OK;
}

/* run.yaml is written last, so that a folder with one is a run that can be resumed. */
static srnn_status make_folder(sr_run *run, const char *yaml) {
    char checkpoints[SR_PATH_BYTES];
    SR_TRY(sr_path_join(checkpoints, run->folder, "checkpoints"));
    SR_TRY(sr_folders_make(checkpoints));
    SR_TRY(sr_folder_lock(&run->lock, run->folder, 0));
    if (access(yaml, F_OK) == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: another run has just begun in this folder",
                       run->folder);
    SR_TRY(check_empty(run, checkpoints));
    SR_TRY(make_identity(&run->settings));
    snprintf(run->settings.instructions, sizeof run->settings.instructions, "%s",
             run->machine.instructions);
    if (*run->settings.tokenizer)
        SR_TRY(sr_tokenizer_copy_into(run->folder, run->settings.tokenizer));
    SR_TRY(sr_run_records_open(&run->records, run->folder, &run->progress));
    SR_TRY(sr_run_settings_write(&run->settings, yaml));
    return sr_run_records_settings(run->records, yaml);
}

/* All ranks must read the same rows. */
static srnn_status check_same_data(sr_run *run) {
    int64_t first;
    SR_TRY(sr_run_data_sum(&run->progress.data_sum, run->source));
    run->progress.data_stamp = run->source->stamp;
    first = run->progress.data_sum;
    SR_TRY(sr_ranks_share(run->ranks, &first, sizeof first));
    return sr_ranks_agree(run->ranks,
                          first == run->progress.data_sum
                              ? SRNN_OK
                              : SR_FAIL(SRNN_ERR_ARGUMENT, "the data here is not what rank 0 has"));
}

/* `accumulate` is per group of context ranks when a run starts; run.yaml stores the total, which
 * stays the same with another number of ranks. */
static srnn_status take_ranks(sr_run *run, sr_ranks *ranks) {
    sr_run_settings *s = &run->settings;
    run->ranks = ranks ? ranks : sr_ranks_alone();
    if (run->ranks->count > 1)
        run->ranks->patience = s->rank_patience;
    if (s->accumulate > INT_MAX / run->ranks->count)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d ranks with %d batches each are too many batches",
                       run->ranks->count, s->accumulate);
    return SRNN_OK;
}

static srnn_status start(sr_run *run, const char *folder, const sr_run_settings *settings) {
    char yaml[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(sr_run_settings_copy(&run->settings, settings));
    SR_TRY(take_ranks(run, settings->ranks));
    run->settings.accumulate *= run->ranks->count / run->settings.context_ranks;
    SR_TRY(sr_path_join(yaml, folder, "run.yaml"));
    if (is_first(run) && access(yaml, F_OK) == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: there is a run in this folder; continue it with --resume", folder);
    if (is_first(run) && sr_path_has(folder, "study.json"))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: there is a study in this folder; use another --out",
                       folder);
    SR_TRY(sr_run_data_tokenizer(&run->settings));
    SR_TRY(sr_run_settings_absolute(&run->settings));
    SR_TRY(make(run, folder, ""));
    SR_TRY(check_same_data(run));
    SR_TRY(sr_ranks_agree(run->ranks, is_first(run) ? make_folder(run, yaml) : SRNN_OK));
    SR_TRY(sr_ranks_share(run->ranks, run->settings.identity, sizeof run->settings.identity));
    return sr_ranks_share(run->ranks, run->settings.instructions,
                          sizeof run->settings.instructions);
}

static srnn_status take_ends(sr_run_settings *s, const sr_run_ends *ends) {
    if (ends->stop_step)
        s->stop_step = ends->stop_step > 0 ? ends->stop_step : 0;
    if (ends->stop_tokens)
        s->stop_tokens = ends->stop_tokens > 0 ? ends->stop_tokens : 0;
    if (ends->stop_seconds > 0 || ends->stop_seconds < 0)
        s->stop_seconds = ends->stop_seconds > 0 ? ends->stop_seconds : 0;
    if (ends->threads)
        s->threads = ends->threads;
    if (ends->context_ranks)
        s->context_ranks = *ends->context_ranks;
    if (ends->shard)
        s->shard = *ends->shard;
    if (ends->recompute)
        s->recompute = *ends->recompute;
    if (ends->rank_patience)
        s->rank_patience = *ends->rank_patience;
    return ends->device ? sr_run_settings_text(&s->device, ends->device) : SRNN_OK;
}

/* Files with an unchanged stamp are taken to be unchanged; others are read completely. */
static srnn_status check_data(sr_run *run) {
    int64_t sum;
    if (run->progress.step == 0)
        return SRNN_OK; /* the run starts over, with the current rows */
    if (run->source->verify && run->progress.data_stamp != run->source->stamp)
        SR_TRY(run->source->verify(run->source));
    SR_TRY(sr_run_data_sum(&sum, run->source));
    if (sum != run->progress.data_sum)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s holds other rows than those this run was trained on; to train on them "
                       "start a new run with --model %s",
                       *run->settings.batches ? run->settings.batches : run->settings.data,
                       run->folder);
    return SRNN_OK;
}

/* Only one rank locks the folder. Checkpoints may have been left behind on another machine. */
static srnn_status take_folder(sr_run *run, const char *folder) {
    char checkpoints[SR_PATH_BYTES];
    SR_TRY(sr_folder_lock(&run->lock, folder, 0));
    SR_TRY(sr_path_join(checkpoints, folder, "checkpoints"));
    SR_TRY(sr_folder_make(checkpoints));
    return sr_checkpoint_tidy(folder);
}

/* Without a checkpoint the records start over. */
static srnn_status reopen_records(sr_run *run, const char *folder, const char *yaml) {
    SR_TRY(sr_run_records_open(&run->records, folder, &run->progress));
    return run->progress.step == 0 ? sr_run_records_settings(run->records, yaml) : SRNN_OK;
}

static srnn_status resume(sr_run *run, const char *folder, const sr_run_ends *ends) {
    char yaml[SR_PATH_BYTES], checkpoint[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(sr_path_join(yaml, folder, "run.yaml"));
    SR_TRY(sr_run_settings_read(&run->settings, yaml));
    SR_TRY(take_ends(&run->settings, ends));
    SR_TRY(take_ranks(run, ends->ranks));
    SR_TRY(sr_ranks_agree(run->ranks, is_first(run) ? take_folder(run, folder) : SRNN_OK));
    SR_TRY(sr_checkpoint_find(checkpoint, &run->progress, folder, &run->settings, run->ranks));
    run->saved_step = run->progress.step;
    SR_TRY(make(run, folder, checkpoint));
    SR_TRY(check_data(run));
    SR_TRY(check_same_data(run));
    return sr_ranks_agree(run->ranks, is_first(run) ? reopen_records(run, folder, yaml) : SRNN_OK);
}

static srnn_status allocate(sr_run **run) {
    void *memory;
    *run = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **run));
    *run = memory;
    (*run)->lock = -1;
    (*run)->ranks = sr_ranks_alone();
    sr_machine_look(&(*run)->machine);
    return SRNN_OK;
}

static srnn_status keep_if_made(sr_run **run, srnn_status status) {
    if (status != SRNN_OK) {
        sr_ranks_break((*run)->ranks);
        sr_run_free(*run);
        *run = NULL;
    }
    return status;
}

srnn_status sr_run_start(sr_run **run, const char *folder, const sr_run_settings *settings) {
    SR_TRY(allocate(run));
    return keep_if_made(run, start(*run, folder, settings));
}

srnn_status sr_run_resume(sr_run **run, const char *folder, const sr_run_ends *ends) {
    SR_TRY(allocate(run));
    return keep_if_made(run, resume(*run, folder, ends));
}

void sr_run_free(sr_run *run) {
    if (!run)
        return;
    sr_run_records_free(run->records);
    sr_validation_free(&run->validation);
    sr_trainer_free(run->trainer);
    sr_run_lesson_free(&run->lesson);
    sr_model_free(run->model);
    sr_source_free(run->source);
    sr_backend_free(run->backend);
    sr_run_settings_free(&run->settings);
    sr_folder_unlock(run->lock);
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

bool sr_run_can_validate(const sr_run *run) {
    return run->source->rows[SR_SPLIT_VALIDATION] > 0;
}

const char *sr_run_other_instructions(const sr_run *run) {
    const char *begun = run->settings.instructions;
    return *begun && strcmp(begun, run->machine.instructions) != 0 ? begun : NULL;
}

size_t sr_run_fresh(const sr_run *run) {
    return run->fresh;
}

size_t sr_run_bytes(const sr_run *run) {
    return sr_trainer_bytes(run->trainer);
}

bool sr_run_done(const sr_run *run) {
    const sr_run_settings *s = &run->settings;
    const sr_progress *p = &run->progress;
    return p->step >= s->steps || (s->stop_step && p->step >= s->stop_step) ||
           (s->stop_tokens && p->tokens >= s->stop_tokens) ||
           (s->stop_seconds > 0 && sr_clock_seconds() - run->started >= s->stop_seconds);
}

srnn_status sr_run_agree(sr_run *run, sr_run_verdict *verdict, int signal) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)run->ranks->count, sizeof *verdict));
    sr_run_verdict *all = memory;
    all[run->ranks->rank] = (sr_run_verdict){sr_run_done(run), signal};
    const srnn_status status = sr_ranks_gather(run->ranks, all, sizeof *all);
    *verdict = (sr_run_verdict){0};
    for (int r = 0; r < run->ranks->count; r++) {
        verdict->done = verdict->done || all[r].done;
        verdict->signal = all[r].signal > verdict->signal ? all[r].signal : verdict->signal;
    }
    free(memory);
    return status;
}

static srnn_status save(sr_run *run, bool *written) {
    const sr_checkpointed state = checkpointed(run);
    *written = false;
    if (run->progress.step == run->saved_step)
        return SRNN_OK;
    SR_TRY(sr_ranks_agree(run->ranks, is_first(run)
                                          ? sr_run_records_sync(run->records, &run->progress)
                                          : SRNN_OK));
    run->progress.updates = sr_trainer_moments(run->trainer)->updates;
    SR_TRY(sr_checkpoint_write(&state, &run->progress));
    run->saved_step = run->progress.step;
    *written = true;
    const srnn_status status =
        is_first(run) ? sr_checkpoint_rotate(run->folder, &run->settings) : SRNN_OK;
    if (status == SRNN_OK)
        return SRNN_OK;
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "the checkpoint is written, but an older one cannot be removed: %s",
                   why);
}

srnn_status sr_run_save(sr_run *run) {
    bool written;
    return save(run, &written);
}

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* Also after the last step, so that finished runs can be compared. */
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

/* A checkpoint that cannot be written does not stop the run; a broken connection between ranks
 * does. */
static srnn_status save_when_due(sr_run *run, sr_run_report *report) {
    if (!due(run->progress.step, run->settings.save_every))
        return SRNN_OK;
    const srnn_status status = save(run, &report->saved);
    if (status != SRNN_OK)
        snprintf(report->save_failure, sizeof report->save_failure, "%s", srnn_error_detail());
    return run->ranks->broken ? status : SRNN_OK;
}

/* The weights are those of the last good step: skipped steps change nothing. */
static srnn_status end_badly(sr_run *run) {
    char where[SR_PATH_BYTES + 512];
    bool written;
    if (save(run, &written) == SRNN_OK || written)
        snprintf(where, sizeof where, "the weights before them are in %s/checkpoints", run->folder);
    else
        snprintf(where, sizeof where, "%s", srnn_error_detail());
    return SR_FAIL(SRNN_ERR_LIMIT,
                   "%lld steps in a row had a loss or gradient that is not finite; %s; try a "
                   "smaller learning rate",
                   (long long)run->progress.skipped_in_row, where);
}

static srnn_status validate(sr_run *run, sr_run_report *report) {
    SR_TRY(sr_trainer_validate(run->trainer, &run->validation, run->source));
    report->validation = run->validation.loss;
    report->accuracy = run->validation.accuracy;
    return SRNN_OK;
}

srnn_status sr_run_step(sr_run *run, sr_run_report *report) {
    const sr_run_settings *s = &run->settings;
    const double begin = sr_clock_seconds();
    *report = (sr_run_report){.validation = NAN};
    SR_TRY(sr_trainer_step(run->trainer, &report->step, run->source, run->progress.step + 1));
    count_step(&run->progress, &report->step, s);
    report->seconds = sr_clock_seconds() - begin;
    const sr_validation *validation = validates(run) ? &run->validation : NULL;
    if (validation)
        SR_TRY(validate(run, report));
    if (run->progress.step == s->steps) {
        SR_TRY(sr_run_tests_write(s, run->model, run->folder, run->ranks));
        SR_TRY(sr_run_samples_write(s, run->model, run->source, run->folder, run->ranks));
    }
    const srnn_status status = is_first(run)
                                   ? sr_run_records_step(run->records, &run->progress,
                                                         &report->step, validation, report->seconds)
                                   : SRNN_OK;
    if (status == SRNN_ERR_MEMORY)
        return status; /* the record is lost, but the last checkpoint does not include this step */
    if (status != SRNN_OK)
        snprintf(report->record_failure, sizeof report->record_failure, "%s", srnn_error_detail());
    if (run->progress.skipped_in_row >= s->bad_steps)
        return end_badly(run);
    return save_when_due(run, report);
}
