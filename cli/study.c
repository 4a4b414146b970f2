/* study.c: `softrnn study`. */
#include "base/file.h"
#include "commands.h"
#include "options.h"
#include "origin.h"
#include "progress.h"
#include "study/study_files.h"
#include "study_table.h"
#include "study_view.h"
#include "train/folder.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *file, *out, *only, *skip, *text;
    int jobs;
    bool dry_run;
} arguments;

static srnn_status read_study(sr_study *study, const char *path) {
    sr_mapping file;
    size_t bytes;
    if (!path) {
        const char *text = sr_study_default(&bytes);
        return sr_study_read(study, "the default study", text, bytes);
    }
    SR_TRY(sr_mapping_open(&file, path));
    const srnn_status status = sr_study_read(study, path, (const char *)file.data, file.bytes);
    sr_mapping_close(&file);
    return status;
}

/* *text = the command that repeats the study; free() it. */
static srnn_status command_text(char **text, const arguments *a) {
    size_t length;
    FILE *out = open_memstream(text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
    fputs("softrnn study", out);
    if (a->file) {
        putc(' ', out);
        origin_quote(out, a->file);
    }
    if (a->text) {
        fputs(" --text ", out);
        origin_quote(out, a->text);
    }
    fputs(" --out ", out);
    origin_quote(out, a->out);
    return fclose(out) == 0 ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
}

/* Where the text is to lie; made unless this is a dry run. */
static srnn_status prepare_text(char path[PATH_MAX], const sr_study *study, const arguments *a) {
    char folder[PATH_MAX + 16], whole[PATH_MAX + 32];
    sr_words files = {0};
    snprintf(path, PATH_MAX, "@text");
    if (a->text && !sr_study_needs_text(study))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "--text: no task of the study trains on @text");
    if (a->dry_run || !sr_study_needs_text(study))
        return SRNN_OK;
    char *absolute = realpath(a->out, NULL);
    snprintf(folder, sizeof folder, "%s/data", absolute ? absolute : a->out);
    free(absolute);
    snprintf(whole, sizeof whole, "%s/text.txt", folder);
    SR_TRY(sr_folder_make(folder));
    if (a->text)
        SR_TRY(sr_words_split(&files, a->text));
    const srnn_status status = sr_study_text(whole, &files);
    sr_words_free(&files);
    snprintf(path, PATH_MAX, "%.*s", PATH_MAX - 1, whole);
    return status;
}

static void report_failures(const sr_study *study, const sr_run_view *views) {
    for (size_t i = 0; i < study->run_count; i++)
        if (views[i].ending == SR_ENDING_FAILED)
            fprintf(stderr, "softrnn: run %s failed: %s\n", study->runs[i].id, views[i].message);
}

static srnn_status execute(const sr_study *study, const arguments *a, sr_study_way *way,
                           sr_run_view *views) {
    int jobs, threads;
    study_view view;
    sr_study_shares(&jobs, &threads, way->jobs);
    SR_TRY(study_view_begin(&view, study, jobs));
    way->watch = study_view_look;
    way->context = &view;
    progress_catch_interrupt();
    const srnn_status status = sr_study_execute(study, a->out, way, views);
    study_view_end(&view);
    return status;
}

static int run_study(sr_study *study, const arguments *a, sr_study_way *way) {
    char *repeat = NULL;
    sr_run_view *views = calloc(study->run_count, sizeof *views);
    sr_summary summary = {0};
    srnn_status status =
        views ? command_text(&repeat, a) : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
    if (status == SRNN_OK)
        status = sr_study_write(study, a->out, repeat);
    free(repeat);
    const srnn_status ran = status == SRNN_OK ? execute(study, a, way, views) : status;
    int exit_code = command_report(ran);
    if (ran == SRNN_OK || ran == SRNN_ERR_INTERRUPTED) {
        report_failures(study, views);
        status = sr_study_summarise(&summary, study, a->out);
        if (status != SRNN_OK)
            exit_code = command_report(status);
        else if (ran == SRNN_OK)
            study_table_summary(study, &summary);
        if (summary.failed)
            exit_code = EXIT_FAILED;
    }
    sr_summary_free(&summary);
    free(views);
    return exit_code;
}

static srnn_status prepare(sr_study *study, sr_study_way *way, const arguments *a) {
    char text[PATH_MAX];
    SR_TRY(read_study(study, a->file));
    if (a->only)
        SR_TRY(sr_words_split(&way->only, a->only));
    if (a->skip)
        SR_TRY(sr_words_split(&way->skip, a->skip));
    if (!a->dry_run)
        SR_TRY(sr_folders_make(a->out));
    SR_TRY(prepare_text(text, study, a));
    return sr_study_expand(study, text);
}

static int start(const arguments *a) {
    sr_study study = {0};
    sr_study_way way = {.jobs = a->jobs};
    int exit_code = command_report(prepare(&study, &way, a));
    if (exit_code == EXIT_OK && a->dry_run)
        study_table_plan(&study, &way);
    else if (exit_code == EXIT_OK)
        exit_code = run_study(&study, a, &way);
    sr_words_free(&way.only);
    sr_words_free(&way.skip);
    sr_study_free(&study);
    return exit_code;
}

int command_study(int argc, char **argv) {
    arguments a = {.out = "runs/study"};
    const command_option options[] = {
        OPTION_TEXT("--out", &a.out, "DIR", "the study's folder; what has ended there stays"),
        OPTION_FLAG("--dry-run", &a.dry_run, "print the plan with its cost and stop"),
        OPTION_TEXT("--only", &a.only, "NAMES",
                    "run only these tasks, variants, sizes or runs: a,b or 'recall.*'"),
        OPTION_TEXT("--skip", &a.skip, "NAMES", "do not run these"),
        OPTION_INTEGER("--jobs", &a.jobs, 0, 1024, "N", "runs at a time; 0: one a core"),
        OPTION_TEXT("--text", &a.text, "FILES",
                    "the text of @text: a,b; without it the King James Bible"),
    };
    const command_argument study_file = {"FILE", &a.file, "a study in YAML", true};
    const command_line line = {
        .usage = "softrnn study [FILE.yaml] [options]",
        .purpose =
            "Trains variants of attention alike, same data, same order, same initial weights, and\n"
            "says which of them differ. Without a file: the default study, ten minutes on two\n"
            "cores. Ctrl-C leaves cleanly; the same command goes on where it stopped.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = &study_file,
        .argument_count = 1,
        .examples = "  softrnn study --out runs/study\n"
                    "  softrnn study --text mytext.txt --out runs/mine\n"
                    "  softrnn study studies/full.yaml --dry-run\n"
                    "  softrnn study --only recall --skip 'recall.relu.*'\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    return start(&a);
}
