/* run_steps.c: a training run from its current step to its end, with progress messages. */
#include "cli/model/run_steps.h"

#include "base/clock.h"
#include "cli/line/command.h"
#include "cli/line/model_open.h"
#include "cli/line/progress.h"

#include <math.h>
#include <stdio.h>

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
    const sr_linear layer = {numbers + 2 * SIZE * SIZE, NULL, .N = SIZE};
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
        fprintf(stderr,
                "softrnn: the data has no validation split that fills a row: there will be no "
                "validation (--validation names one: another file or folder of the kind that "
                "--data names)\n");
    if (sr_run_other_instructions(run))
        command_message("the run began with the instructions of %s, this machine has others: the "
                        "last bits will differ from here on",
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
static void print_records(progress_bar *bar, bool *waiting, const sr_run_report *report) {
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
static void print_step(progress_bar *bar, bool *waiting, pace *p, const sr_run *run,
                       const sr_run_report *report) {
    tell(bar, run, report);
    print_records(bar, waiting, report);
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
            print_step(&bar, &waiting, &p, run, &report);
        status = sr_run_agree(run, verdict, progress_interrupted());
    }
    progress_end(&bar);
    return status;
}

/* "finished: loss 2.1034, validation loss 2.2001, at step 600 (...); checkpoint in runs/a" */
static void print_end(const sr_run *run, const losses *last, int signal, const char *folder) {
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

int run_to_end(sr_run *run, const char *folder, const sr_ranks *ranks) {
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
        print_end(run, &last, signal, folder);
    return signal ? EXIT_SIGNAL + signal : EXIT_OK;
}
