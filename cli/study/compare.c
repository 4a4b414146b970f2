/* compare.c: `softrnn compare`. */
#include "cli/study/compare.h"

#include "cli/commands.h"
#include "cli/line/columns.h"
#include "cli/line/model_open.h"
#include "cli/line/options.h"
#include "files/path.h"
#include "model/mixers.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_status open_run(compared *run, const char *folder) {
    char yaml[SR_PATH_BYTES];
    run->folder = folder;
    SR_TRY(sr_path_join(yaml, folder, "run.yaml"));
    SR_TRY(sr_run_settings_create(&run->settings));
    SR_TRY(sr_run_settings_read(&run->settings, yaml));
    SR_TRY(sr_record_read(&run->record, folder));
    if (run->record.count == 0)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s/metrics.jsonl: no record of a step: the run has not ended one yet, or "
                       "the file was moved or emptied",
                       folder);
    return SRNN_OK;
}

static void close_run(compared *run) {
    sr_run_settings_free(&run->settings);
    sr_record_free(&run->record);
    free(run->curve.steps);
    free(run->curve.losses);
}

/* The last part of a path, without trailing slashes. */
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

/* The widest of the names and of the attentions, so that none is truncated. */
typedef struct widths {
    int name, attention;
} widths;

static widths measure(const compared *runs, int count) {
    widths w = {(int)strlen("run"), (int)strlen("attention")};
    for (int i = 0; i < count; i++) {
        char name[256];
        short_name(name, sizeof name, runs[i].folder);
        const int length = column_width(name), text = column_width(runs[i].settings.attention);
        w.name = length > w.name ? length : w.name;
        w.attention = text > w.attention ? text : w.attention;
    }
    return w;
}

static void print_table(const compared *runs, int count, widths w) {
    printf("  %-*s %-*s %7s %9s %10s %9s %9s %10s %8s\n", w.name, "run", w.attention, "attention",
           "step", "loss", "validation", "best", "accuracy", "tokens/s", "skipped");
    for (int i = 0; i < count; i++) {
        const sr_record *r = &runs[i].record;
        char name[256], columns[2][1024], text[5][32];
        short_name(name, sizeof name, runs[i].folder);
        printf("%c %s %s %7lld %9s %10s %9s %9s %10s %8lld\n", curve_letter(i),
               column_text(columns[0], sizeof columns[0], name, w.name),
               column_text(columns[1], sizeof columns[1], runs[i].settings.attention, w.attention),
               (long long)r->points[r->count - 1].step,
               number_text(text[0], 4, r->points[r->count - 1].loss),
               number_text(text[1], 4, r->last_loss), number_text(text[2], 4, r->best_loss),
               number_text(text[3], 4, r->last_accuracy),
               number_text(text[4], 0, r->tokens_per_second), (long long)r->skipped);
    }
}

/* "2.1034 +- 0.0021" */
static const char *mean_text(char text[64], seed_mean mean) {
    char numbers[2][32];
    snprintf(text, 64, isfinite(mean.deviation) ? "%s +- %s" : "%s",
             number_text(numbers[0], 4, mean.mean), number_text(numbers[1], 4, mean.deviation));
    return text;
}

static void print_groups(const seed_group *groups, int count, widths w) {
    printf("\nmeans over seeds, with standard deviations\n  %-*s %5s %19s %19s %19s %19s\n",
           w.attention, "attention", "seeds", "loss", "validation", "best", "accuracy");
    for (int i = 0; i < count; i++) {
        char attention[1024], text[4][64];
        printf("  %s %5d %19s %19s %19s %19s\n",
               column_text(attention, sizeof attention, groups[i].first->settings.attention,
                           w.attention),
               groups[i].seeds, mean_text(text[0], groups[i].loss),
               mean_text(text[1], groups[i].validation), mean_text(text[2], groups[i].best),
               mean_text(text[3], groups[i].accuracy));
    }
}

/* ---- JSON */

static json_t *number_json(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *run_json(const compared *run) {
    const sr_record *r = &run->record;
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "run", run->folder,
                     "attention", run->settings.attention, "seed", (json_int_t)run->settings.seed,
                     "step", (json_int_t)r->points[r->count - 1].step, "loss",
                     number_json(r->points[r->count - 1].loss), "validation_loss",
                     number_json(r->last_loss), "best_validation_loss", number_json(r->best_loss),
                     "validation_accuracy", number_json(r->last_accuracy), "tokens_per_second",
                     number_json(r->tokens_per_second), "skipped", (json_int_t)r->skipped);
}

static json_t *mean_json(seed_mean mean) {
    return json_pack("{s:o, s:o}", "mean", number_json(mean.mean), "standard_deviation",
                     number_json(mean.deviation));
}

static json_t *group_json(const seed_group *group) {
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "attention",
                     group->first->settings.attention, "seeds", group->seeds, "loss",
                     mean_json(group->loss), "validation_loss", mean_json(group->validation),
                     "best_validation_loss", mean_json(group->best), "validation_accuracy",
                     mean_json(group->accuracy));
}

static srnn_status print_json(const compared *runs, int count, const seed_group *groups,
                              int group_count) {
    json_t *root = json_pack("{s:[], s:[]}", "runs", "means");
    bool whole = root;
    for (int i = 0; i < count && whole; i++)
        whole = json_array_append_new(json_object_get(root, "runs"), run_json(&runs[i])) == 0;
    for (int i = 0; i < group_count && whole; i++)
        whole = json_array_append_new(json_object_get(root, "means"), group_json(&groups[i])) == 0;
    whole = whole && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    if (whole)
        putchar('\n');
    return whole ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for the output");
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

typedef struct comparison {
    command_arguments folders;
    bool training, json;
} comparison;

static srnn_status show(compared *runs, seed_group *groups, const comparison *c) {
    const int count = c->folders.count, group_count = compare_groups(groups, runs, count);
    if (c->json)
        return print_json(runs, count, groups, group_count);
    const widths w = measure(runs, count);
    print_table(runs, count, w);
    if (group_count < count)
        print_groups(groups, group_count, w);
    return plot(runs, count, c->training);
}

static void print_leaks(const compared *runs, int count) {
    for (int i = 0; i < count; i++)
        if (sr_mixer_leaks(runs[i].settings.attention)) {
            model_warn_leak();
            return;
        }
}

static srnn_status compare(compared *runs, const comparison *c) {
    for (int i = 0; i < c->folders.count; i++)
        SR_TRY(open_run(&runs[i], c->folders.values[i]));
    print_leaks(runs, c->folders.count);
    seed_group *groups = calloc((size_t)c->folders.count, sizeof *groups);
    if (!groups)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %d runs", c->folders.count);
    const srnn_status status = show(runs, groups, c);
    free(groups);
    return status;
}

int command_compare(int argc, char **argv) {
    comparison c = {0};
    const command_option options[] = {
        OPTION_FLAG("--training", &c.training, "plot the training loss instead of the validation"),
        OPTION_FLAG("--json", &c.json, "one object instead of tables and plot"),
    };
    const command_line line = {
        .usage = "softrnn compare [options] RUN RUN...",
        .purpose =
            "Compares training runs: a table, means over runs that differ in their seed alone, and "
            "the\nlosses against steps as a plot.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &c.folders,
        .examples = "  softrnn compare runs/norm runs/softmax\n"
                    "  softrnn compare runs/study/runs/recall.*.1\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (c.folders.count == 0)
        return command_refuse("compare needs the folders of runs");
    compared *runs = calloc((size_t)c.folders.count, sizeof *runs);
    if (!runs)
        return command_report(SR_FAIL(SRNN_ERR_MEMORY, "no memory for %d runs", c.folders.count));
    exit_code = command_report(compare(runs, &c));
    for (int i = 0; i < c.folders.count; i++)
        close_run(&runs[i]);
    free(runs);
    return exit_code;
}
