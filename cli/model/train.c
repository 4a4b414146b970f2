/* train.c: `softrnn train`. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/options.h"
#include "cli/line/progress.h"
#include "train/run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_MAX = 96, OWN_OPTIONS = 3 };

/* The options that come from the table of settings. */
typedef struct settings_options {
    command_option options[SETTINGS_MAX + OWN_OPTIONS];
    const char *texts[SETTINGS_MAX];
    char names[SETTINGS_MAX][40];
    size_t count;
} settings_options;

static command_option option_of(sr_run_settings *settings, const sr_setting *s, const char *name,
                                const char **text) {
    void *at = (char *)settings + s->offset;
    command_option option = {.name = name,
                             .argument = s->argument,
                             .help = s->help,
                             .integer_least = (int64_t)s->least,
                             .integer_most = (int64_t)s->most,
                             .number_least = s->least,
                             .number_most = s->most,
                             .choices = s->choices};
    switch (s->kind) {
    case SR_SETTING_FLAG:
        option.kind = OPTION_KIND_FLAG;
        option.to.flag = at;
        break;
    case SR_SETTING_TEXT:
        option.kind = OPTION_KIND_TEXT;
        *text = **(char **)at ? *(char **)at : NULL;
        option.to.text = text;
        break;
    case SR_SETTING_INTEGER:
        option.kind = OPTION_KIND_INTEGER;
        option.to.integer = at;
        break;
    case SR_SETTING_INTEGER64:
        option.kind = OPTION_KIND_INTEGER64;
        option.to.integer64 = at;
        break;
    case SR_SETTING_NUMBER:
        option.kind = OPTION_KIND_NUMBER;
        option.to.number = at;
        break;
    case SR_SETTING_CHOICE:
        option.kind = OPTION_KIND_CHOICE;
        option.to.choice = at;
        break;
    }
    return option;
}

static void add_settings(settings_options *all, sr_run_settings *settings) {
    const sr_setting *s;
    for (size_t i = 0; (s = sr_setting_at(i)) && i < SETTINGS_MAX; i++) {
        snprintf(all->names[i], sizeof all->names[i], "--%s", s->name);
        all->options[all->count++] = option_of(settings, s, all->names[i], &all->texts[i]);
    }
}

/* Texts were parsed as pointers into argv; settings need owned copies. */
static srnn_status keep_texts(sr_run_settings *settings, const settings_options *all) {
    const sr_setting *s;
    for (size_t i = 0; (s = sr_setting_at(i)) && i < SETTINGS_MAX; i++) {
        char **own = (char **)(void *)((char *)settings + s->offset);
        if (s->kind == SR_SETTING_TEXT && all->texts[i] && all->texts[i] != *own)
            if (sr_run_settings_text(own, all->texts[i]) != SRNN_OK)
                return SRNN_ERR_MEMORY;
    }
    return SRNN_OK;
}

/* The first given option that a resumed run does not accept, or NULL. */
static const char *not_an_end(int argc, char *const *argv) {
    static const char *const ends[] = {"--resume",       "--stop-step",     "--stop-tokens",
                                       "--stop-seconds", "--threads",       "--device",
                                       "--shard",        "--rank-patience", "--recompute"};
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool end = strncmp(argv[i], "--", 2) != 0; /* a value, or -h */
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
            end = end || options_given(1, argv + i, ends[k]);
        if (!end)
            return argv[i];
    }
    return NULL;
}

/* The command line besides the settings. */
typedef struct train_request {
    const char *out, *resume;
    const char *wrong;          /* an option that is not allowed with --resume, or NULL */
    bool step, tokens, seconds; /* which ends were given, even as 0 */
    bool shard, patience, length, recompute; /* given */
    sr_ranks ranks;
    bool all_batches;
} train_request;

/* FLOP/s of a matrix product on this machine now: what "share of peak" refers to. */
static double product_rate(sr_backend *backend) {
    enum { SIZE = 512 };
    void *memory;
    double best = 0;
    if (sr_device_allocate(backend->device, &memory, 3 * SIZE * SIZE * sizeof(float)) != SRNN_OK)
        return 0;
    float *numbers = memory;
    (void)sr_device_zero(backend->device, memory, 3 * SIZE * SIZE * sizeof(float));
    const sr_matrix y = sr_matrix_of(numbers, SIZE, SIZE, backend->number);
    const sr_matrix x = sr_matrix_of(numbers + SIZE * SIZE, SIZE, SIZE, backend->number);
    const sr_linear layer = {numbers + 2 * SIZE * SIZE, NULL, SIZE};
    for (int i = 0; i < 4; i++) {
        const double begin = sr_clock_seconds();
        if (backend->linear_forward(backend, y, (sr_matrix){0}, x, &layer, 1) != SRNN_OK ||
            srnn_device_wait(backend->device) != SRNN_OK)
            break;
        const double rate = 2.0 * SIZE * SIZE * SIZE / (sr_clock_seconds() - begin);
        best = rate > best ? rate : best;
    }
    sr_device_release(backend->device, memory);
    return best;
}

/* Useful FLOPs of forward and backward per token. */
static double flops_per_token(const sr_model *model, int T) {
    const sr_model_config *c = &model->config;
    return 6.0 * (double)sr_model_multiplying(model) + 6.0 * c->L * c->H * c->D * T;
}

static void describe(const sr_run *run, const char *folder, const sr_ranks *ranks) {
    const sr_model *model = sr_run_model(run);
    const sr_run_settings *s = sr_run_settings_of(run);
    fprintf(stderr,
            "softrnn: %s: %.2f M parameters, %d layers, %d x %d tokens a batch, memory %.1f MB, "
            "step %lld of %lld\n",
            folder, (double)sr_tensor_table_learned(&model->table) / 1e6, model->config.L, s->B,
            s->T, (double)sr_run_bytes(run) / 1e6, (long long)sr_run_progress(run)->step,
            (long long)s->steps);
    if (ranks->count > 1)
        fprintf(stderr, "softrnn: %d ranks by %s; the memory is of each\n", ranks->count,
                ranks->link->library);
    model_warn(&model->config, s->model);
    if (*s->model && sr_run_fresh(run))
        command_message("%zu of %zu tensors are new, the others those of %s", sr_run_fresh(run),
                        model->table.count, s->model);
    if (s->validate_every > 0 && !*s->batches && !sr_run_can_validate(run))
        fprintf(
            stderr,
            "softrnn: the data has no validation split that fills a row: there will be no "
            "validation (--validation names one: another file or folder of the kind that --data "
            "names)\n");
    if (sr_run_other_instructions(run))
        command_message(
            "the run began with the instructions of %s, this machine has others: the last "
            "bits will differ from here on",
            sr_run_other_instructions(run));
    if (sr_run_done(run) && sr_run_progress(run)->step < s->steps)
        fprintf(stderr,
                "softrnn: the run has reached a stop: resume with --stop-step, --stop-tokens "
                "or --stop-seconds 0 to remove it\n");
}

/* Reports validation, skipped steps and failed checkpoints. */
static void tell(progress_bar *bar, const sr_run *run, const sr_run_report *report) {
    const long long step = (long long)sr_run_progress(run)->step;
    if (!isnan(report->validation)) {
        progress_end(bar);
        printf("step %lld  loss %.4f  validation loss %.4f\n", step, report->step.loss,
               report->validation);
        fflush(stdout);
    }
    if (!report->step.applied) {
        progress_end(bar);
        fprintf(stderr, "softrnn: step %lld was skipped: its loss or gradient is not finite\n",
                step);
    }
    if (*report->save_failure) {
        progress_end(bar);
        fprintf(stderr, "softrnn: %s at step %lld, continuing: %s\n",
                report->saved ? "trouble" : "no checkpoint", step, report->save_failure);
    }
}

/* Reports when records can no longer be written, and when they can again; *waiting is the state in
 * between. */
static void tell_records(progress_bar *bar, bool *waiting, const sr_run_report *report) {
    const bool failed = *report->record_failure;
    if (failed != *waiting) {
        progress_end(bar);
        fprintf(stderr, "softrnn: %s%s\n",
                failed ? "continuing with records in memory: "
                       : "records are being written to disk again",
                report->record_failure);
    }
    *waiting = failed;
}

/* The last losses of a run; NAN: there was none. */
typedef struct losses {
    double training, validation;
} losses;

/* The line of progress after a step. */
typedef struct pace {
    double loss, rate; /* smoothed; NAN at first */
    double flops, peak;
    double first, end; /* steps */
} pace;

static void show_pace(progress_bar *bar, pace *p, const sr_run *run, const sr_run_report *report) {
    const sr_run_settings *s = sr_run_settings_of(run);
    const double step = (double)sr_run_progress(run)->step;
    const double now = (double)s->B * s->T * s->accumulate / report->seconds;
    char text[160];
    p->loss = isnan(p->loss) ? report->step.loss : 0.95 * p->loss + 0.05 * report->step.loss;
    p->rate = isnan(p->rate) ? now : 0.9 * p->rate + 0.1 * now;
    snprintf(text, sizeof text, "step %.0f  loss %.4f  %.0f tokens/s  %.0f %% of peak", step,
             p->loss, p->rate, p->peak > 0 ? 100 * p->rate * p->flops / p->peak : 0.0);
    progress_show(bar, (step - p->first) / (p->end - p->first), text);
}

/* Only rank 0 reports. */
static void tell_step(progress_bar *bar, bool *waiting, pace *p, const sr_run *run,
                      const sr_run_report *report) {
    tell(bar, run, report);
    tell_records(bar, waiting, report);
    show_pace(bar, p, run, report);
}

static srnn_status steps(sr_run *run, losses *last, sr_run_verdict *verdict, bool speaks) {
    const sr_run_settings *s = sr_run_settings_of(run);
    const int64_t end = s->stop_step && s->stop_step < s->steps ? s->stop_step : s->steps;
    pace p = {.loss = NAN,
              .rate = NAN,
              .flops = flops_per_token(sr_run_model(run), s->T),
              .peak = speaks ? product_rate(sr_run_model(run)->backend) : 0,
              .first = (double)sr_run_progress(run)->step,
              .end = (double)end};
    bool waiting = false;
    progress_bar bar;
    progress_begin(&bar);
    srnn_status status = sr_run_agree(run, verdict, progress_interrupted());
    while (status == SRNN_OK && !verdict->done && !verdict->signal) {
        sr_run_report report;
        status = sr_run_step(run, &report);
        if (status != SRNN_OK)
            break;
        last->training = report.step.loss;
        if (!isnan(report.validation))
            last->validation = report.validation;
        if (speaks)
            tell_step(&bar, &waiting, &p, run, &report);
        status = sr_run_agree(run, verdict, progress_interrupted());
    }
    progress_end(&bar);
    return status;
}

/* "finished: loss 2.1034, validation loss 2.2001, at step 600 (...); checkpoint in runs/a" */
static void tell_end(const sr_run *run, const losses *last, int signal, const char *folder) {
    const sr_progress *p = sr_run_progress(run);
    const bool whole = p->step >= sr_run_settings_of(run)->steps;
    fprintf(stderr, "softrnn: %s", signal ? "interrupted" : whole ? "finished" : "stopped");
    if (isfinite(last->training))
        fprintf(stderr, ": loss %.4f,", last->training);
    if (isfinite(last->validation))
        fprintf(stderr, " validation loss %.4f,", last->validation);
    fprintf(stderr, " at step %lld (%lld tokens, %lld steps skipped); checkpoint in %s\n",
            (long long)p->step, (long long)p->tokens, (long long)p->skipped, folder);
}

static int run_all(sr_run *run, const char *folder, const sr_ranks *ranks) {
    const bool speaks = ranks->rank == 0;
    losses last = {NAN, NAN};
    sr_run_verdict verdict;
    if (speaks)
        describe(run, folder, ranks);
    progress_catch_interrupt();
    srnn_status status = steps(run, &last, &verdict, speaks);
    if (status == SRNN_OK)
        status = sr_run_save(run);
    if (status != SRNN_OK)
        return command_report_rank(status, ranks);
    const int signal = verdict.done ? 0 : (int)verdict.signal;
    if (speaks)
        tell_end(run, &last, signal, folder);
    return signal ? EXIT_SIGNAL + signal : EXIT_OK;
}

/* An end that was given; there 0 means none. */
static double end_of(double value, bool given) {
    return given && value == 0 ? -1 : value;
}

static srnn_status start_or_resume(sr_run **run, sr_run_settings *s, train_request *r) {
    const sr_run_ends ends = {.stop_step = (int64_t)end_of((double)s->stop_step, r->step),
                              .stop_tokens = (int64_t)end_of((double)s->stop_tokens, r->tokens),
                              .stop_seconds = end_of(s->stop_seconds, r->seconds),
                              .threads = s->threads,
                              .device = s->device && *s->device ? s->device : NULL,
                              .ranks = &r->ranks,
                              .shard = r->shard ? &s->shard : NULL,
                              .recompute = r->recompute ? &s->recompute : NULL,
                              .rank_patience = r->patience ? &s->rank_patience : NULL};
    s->ranks = &r->ranks;
    return r->resume ? sr_run_resume(run, r->resume, &ends) : sr_run_start(run, r->out, s);
}

/* Warns that tasks and batches fix the row length. */
static void tell_length(const sr_run *run, const sr_run_settings *asked) {
    const sr_run_settings *s = sr_run_settings_of(run);
    if (s->T != asked->T)
        command_message("--length %d has no effect: rows of %s have %d tokens%s", asked->T,
                        *s->batches ? s->batches : s->data, s->T,
                        *s->batches ? "" : " (the task's own length=N sets it)");
}

static int train_together(sr_run_settings *settings, train_request *r) {
    sr_run *run;
    const srnn_status status = start_or_resume(&run, settings, r);
    if (status != SRNN_OK)
        return command_report_rank(status, &r->ranks);
    if (r->length && r->ranks.rank == 0)
        tell_length(run, settings);
    const int exit_code = run_all(run, r->resume ? r->resume : r->out, &r->ranks);
    sr_run_free(run);
    return exit_code;
}

static int train(sr_run_settings *settings, const settings_options *all, train_request *r) {
    if (!r->out == !r->resume)
        return command_refuse("train needs either --out DIR or --resume DIR");
    if (r->resume && r->wrong)
        return command_refuse(
            "%s cannot be changed when a run is resumed; a new run may begin with "
            "its model: --out DIR --model %s",
            r->wrong, r->resume);
    if (r->all_batches)
        settings->steps = 0;
    srnn_status status = keep_texts(settings, all);
    if (status == SRNN_OK)
        status = sr_ranks_open(&r->ranks);
    if (status != SRNN_OK)
        return command_report(status);
    const int exit_code = train_together(settings, r);
    sr_ranks_close(&r->ranks);
    return exit_code;
}

int command_train(int argc, char **argv) {
    train_request r = {.wrong = not_an_end(argc, argv),
                       .step = options_given(argc, argv, "--stop-step"),
                       .tokens = options_given(argc, argv, "--stop-tokens"),
                       .seconds = options_given(argc, argv, "--stop-seconds"),
                       .shard = options_given(argc, argv, "--shard"),
                       .patience = options_given(argc, argv, "--rank-patience"),
                       .length = options_given(argc, argv, "--length"),
                       .recompute = options_given(argc, argv, "--recompute"),
                       .all_batches = options_given(argc, argv, "--batches") &&
                                      !options_given(argc, argv, "--steps")};
    sr_run_settings settings;
    settings_options all = {.count = 0};
    if (sr_run_settings_create(&settings) != SRNN_OK)
        return command_report(SRNN_ERR_MEMORY);
    all.options[all.count++] =
        (command_option)OPTION_TEXT("--out", &r.out, "DIR", "the run's folder, to be made");
    all.options[all.count++] =
        (command_option)OPTION_TEXT("--resume", &r.resume, "DIR",
                                    "continue the run in this folder; only ends may be given anew");
    add_settings(&all, &settings);
    const command_line line = {
        .usage = "softrnn train --out DIR --data WHERE [options]\n"
                 "       softrnn train --resume DIR [--stop-step N] [--stop-tokens N] "
                 "[--stop-seconds X] [--threads N] [--device NAME]\n"
                 "       mpirun -n N softrnn train ...",
        .purpose = "Trains a Llama with any attention. The folder receives run.yaml, "
                   "metrics.jsonl,\ntimings.jsonl, TensorBoard events and checkpoints in Hugging "
                   "Face layout. Ctrl-C, SIGTERM,\nSIGHUP, SIGUSR1 and SIGXCPU write a checkpoint "
                   "and leave; the resumed run has the "
                   "same bits as one never stopped.",
        .options = all.options,
        .option_count = all.count,
        .examples = "  softrnn train --out runs/norm --data shakespeare.txt --attention norm\n"
                    "  softrnn train --out runs/recall --data recall:pairs=8 --preset tiny "
                    "--attention order:2\n"
                    "  softrnn train --resume runs/norm\n"
                    "  mpirun -n 4 softrnn train --out runs/norm --data shards --threads 2\n",
    };
    int exit_code;
    if (options_parse(&line, argc, argv, &exit_code))
        exit_code = train(&settings, &all, &r);
    sr_run_settings_free(&settings);
    return exit_code;
}
