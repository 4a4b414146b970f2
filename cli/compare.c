/* compare.c: `softrnn compare`. */
#include "columns.h"
#include "commands.h"
#include "curve_plot.h"
#include "files/path.h"
#include "options.h"
#include "study/record.h"
#include "train/run_settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One run to be compared. */
typedef struct compared {
    const char *folder;
    sr_run_settings settings;
    sr_record record;
    curve curve;
} compared;

static srnn_status open_run(compared *run, const char *folder) {
    char yaml[SR_PATH_BYTES];
    run->folder = folder;
    SR_TRY(sr_path_join(yaml, folder, "run.yaml"));
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(sr_run_settings_read(&run->settings, yaml));
    SR_TRY(sr_record_read(&run->record, folder));
    if (run->record.count == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the run has no records yet", folder);
    return SRNN_OK;
}

static void close_run(compared *run) {
    sr_run_settings_free(&run->settings);
    sr_record_free(&run->record);
    free(run->curve.steps);
    free(run->curve.losses);
}

/* The last part of a path, slashes at its end left out. */
static void short_name(char *name, size_t size, const char *folder) {
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    snprintf(name, size, "%.*s", (int)(end - begin), folder + begin);
}

static const char *number_text(char text[32], int decimals, double value) {
    if (isfinite(value))
        snprintf(text, 32, "%.*f", decimals, value);
    else
        snprintf(text, 32, "-");
    return text;
}

static void print_table(const compared *runs, int count) {
    printf("  %-28s %-28s %7s %9s %10s %9s %9s %10s %8s\n", "run", "attention", "step", "loss",
           "validation", "best", "accuracy", "tokens/s", "skipped");
    for (int i = 0; i < count; i++) {
        const sr_record *r = &runs[i].record;
        char name[256], columns[2][128], text[5][32];
        short_name(name, sizeof name, runs[i].folder);
        printf("%c %s %s %7lld %9s %10s %9s %9s %10s %8lld\n", curve_letter(i),
               column_text(columns[0], sizeof columns[0], name, 28),
               column_text(columns[1], sizeof columns[1], runs[i].settings.attention, 28),
               (long long)r->points[r->count - 1].step,
               number_text(text[0], 4, r->points[r->count - 1].loss),
               number_text(text[1], 4, r->last_loss), number_text(text[2], 4, r->best_loss),
               number_text(text[3], 4, r->last_accuracy),
               number_text(text[4], 0, r->tokens_per_second), (long long)r->skipped);
    }
}

/* Validation losses, or smoothed training losses. */
static srnn_status make_curve(compared *run, bool training) {
    const sr_record *r = &run->record;
    curve *c = &run->curve;
    double smooth = NAN;
    c->steps = calloc(r->count, sizeof *c->steps);
    c->losses = calloc(r->count, sizeof *c->losses);
    if (!c->steps || !c->losses)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a curve");
    for (size_t i = 0; i < r->count; i++) {
        const sr_point *point = &r->points[i];
        smooth = isfinite(smooth) ? 0.95 * smooth + 0.05 * point->loss : point->loss;
        const double loss = training ? smooth : point->validation;
        if (!isfinite(loss))
            continue;
        c->steps[c->count] = (double)point->step;
        c->losses[c->count++] = loss;
    }
    return SRNN_OK;
}

static srnn_status plot(compared *runs, int count, bool training) {
    curve *curves = calloc((size_t)count, sizeof *curves);
    if (!curves)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a plot");
    for (int i = 0; i < count && !training; i++)
        training = isnan(runs[i].record.last_loss);
    srnn_status status = SRNN_OK;
    for (int i = 0; i < count && status == SRNN_OK; i++) {
        status = make_curve(&runs[i], training);
        curves[i] = runs[i].curve;
    }
    if (status == SRNN_OK) {
        printf("\n%s loss against steps\n", training ? "training" : "validation");
        curve_plot(curves, count);
    }
    free(curves);
    return status;
}

static srnn_status compare(compared *runs, const command_arguments *folders, bool training) {
    for (int i = 0; i < folders->count; i++)
        SR_TRY(open_run(&runs[i], folders->values[i]));
    print_table(runs, folders->count);
    return plot(runs, folders->count, training);
}

int command_compare(int argc, char **argv) {
    bool training = false;
    command_arguments folders = {0};
    const command_option options[] = {
        OPTION_FLAG("--training", &training, "plot the training loss instead of the validation"),
    };
    const command_line line = {
        .usage = "softrnn compare [--training] RUN RUN...",
        .purpose = "Compares training runs: a table, and their losses against steps as a plot.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &folders,
        .examples = "  softrnn compare runs/norm runs/softmax\n"
                    "  softrnn compare runs/study/runs/recall.*.1\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (folders.count == 0)
        return command_refuse("compare needs the folders of runs");
    compared *runs = calloc((size_t)folders.count, sizeof *runs);
    if (!runs)
        return command_report(SR_FAIL(SRNN_ERR_MEMORY, "no memory for %d runs", folders.count));
    exit_code = command_report(compare(runs, &folders, training));
    for (int i = 0; i < folders.count; i++)
        close_run(&runs[i]);
    free(runs);
    return exit_code;
}
