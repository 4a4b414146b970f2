/* study.c: `softrnn study`. */
#include "commands.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/path.h"
#include "installed.h"
#include "options.h"
#include "origin.h"
#include "progress.h"
#include "study/study_files.h"
#include "study/study_folder.h"
#include "study_table.h"
#include "study_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds to wait for the workers of a study that was killed, which hold its folder until they end. */
static const double lock_patience = 5;

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
    char found[SR_PATH_BYTES];
    installed_find(found, path);
    SR_TRY(sr_mapping_open(&file, found));
    const srnn_status status = sr_study_read(study, found, (const char *)file.data, file.bytes);
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
    if (a->only) {
        fputs(" --only ", out);
        origin_quote(out, a->only);
    }
    if (a->skip) {
        fputs(" --skip ", out);
        origin_quote(out, a->skip);
    }
    fputs(" --out ", out);
    origin_quote(out, a->out);
    return fclose(out) == 0 ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
}

/* Where the text is to lie; as runs name it. */
static srnn_status find_text(char path[SR_PATH_BYTES], const sr_study *study, const arguments *a) {
    snprintf(path, SR_PATH_BYTES, "@text");
    if (a->text && !sr_study_needs_text(study))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "--text: no task of the study trains on @text");
    if (a->dry_run)
        return SRNN_OK;
    char *absolute = realpath(a->out, NULL);
    const srnn_status status = sr_path_join(path, absolute ? absolute : a->out, SR_STUDY_TEXT);
    free(absolute);
    return status;
}

static srnn_status make_text(sr_study *study, const arguments *a) {
    char folder[SR_PATH_BYTES], path[SR_PATH_BYTES];
    sr_word_list files = {0};
    if (!sr_study_needs_text(study))
        return SRNN_OK;
    SR_TRY(find_text(path, study, a));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    SR_TRY(sr_folder_make(folder));
    const bool made = access(path, F_OK) != 0;
    srnn_status status = a->text ? sr_word_list_split(&files, a->text) : SRNN_OK;
    if (status == SRNN_OK)
        status = sr_study_text(path, &files);
    sr_word_list_free(&files);
    SR_TRY(status);
    status = sr_study_price(study);
    if (status != SRNN_OK && made)
        unlink(path); /* one that does not do must not keep out the next */
    return status;
}

/* In a folder that is locked. Nothing is written before it is sure that the runs there, and the
 * text, are of this study. */
static srnn_status take_folder(sr_study *study, const arguments *a) {
    char *repeat = NULL;
    SR_TRY(sr_study_check(study, a->out));
    SR_TRY(make_text(study, a));
    SR_TRY(command_text(&repeat, a));
    const srnn_status status = sr_study_write(study, a->out, repeat);
    free(repeat);
    return status;
}

static void report_failures(const sr_study *study, const sr_run_view *views) {
    for (size_t i = 0; i < study->run_count; i++)
        if (views[i].ending == SR_ENDING_FAILED)
            fprintf(stderr, "softrnn: run %s failed: %s\n", study->runs[i].id, views[i].message);
}

static srnn_status execute(const sr_study *study, const arguments *a, sr_study_way *way,
                           sr_run_view *views) {
    study_view view;
    SR_TRY(study_view_begin(&view, study));
    way->watch = study_view_look;
    way->context = &view;
    progress_catch_interrupt();
    const srnn_status status = sr_study_execute(study, a->out, way, views);
    study_view_end(&view);
    return status;
}

static int run_study(sr_study *study, const arguments *a, sr_study_way *way) {
    int lock = -1;
    sr_run_view *views = calloc(study->run_count, sizeof *views);
    sr_summary summary = {0};
    srnn_status status = views ? sr_folder_lock(&lock, a->out, lock_patience)
                               : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
    if (status == SRNN_OK)
        status = take_folder(study, a);
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
    sr_folder_unlock(lock);
    sr_summary_free(&summary);
    free(views);
    return exit_code;
}

/* Refuses words that select nothing. */
static srnn_status check_selection(const sr_study *study, const sr_study_way *way) {
    SR_TRY(sr_study_words_check(study, &way->only, "--only"));
    SR_TRY(sr_study_words_check(study, &way->skip, "--skip"));
    for (size_t i = 0; i < study->run_count; i++)
        if ((!way->only.count || sr_study_run_matches(study, &study->runs[i], &way->only)) &&
            !sr_study_run_matches(study, &study->runs[i], &way->skip))
            return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT, "--only and --skip leave nothing to run");
}

static srnn_status prepare(sr_study *study, sr_study_way *way, const arguments *a) {
    char text[SR_PATH_BYTES];
    SR_TRY(read_study(study, a->file));
    if (a->only)
        SR_TRY(sr_word_list_split(&way->only, a->only));
    if (a->skip)
        SR_TRY(sr_word_list_split(&way->skip, a->skip));
    if (!a->dry_run)
        SR_TRY(sr_folders_make(a->out));
    SR_TRY(find_text(text, study, a));
    SR_TRY(sr_study_expand(study, text));
    return check_selection(study, way);
}

static int start(const arguments *a) {
    sr_study study = {0};
    sr_study_way way = {.jobs = a->jobs};
    int exit_code = command_report(prepare(&study, &way, a));
    if (exit_code == EXIT_OK && a->dry_run)
        study_table_plan(&study, &way);
    else if (exit_code == EXIT_OK)
        exit_code = run_study(&study, a, &way);
    sr_word_list_free(&way.only);
    sr_word_list_free(&way.skip);
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
        OPTION_INTEGER("--jobs", &a.jobs, 0, 1024, "N", "runs at a time; 0: one per core"),
        OPTION_TEXT("--text", &a.text, "FILES",
                    "the text of @text: a,b; without it the King James Bible"),
    };
    const command_argument study_file = {
        "FILE", &a.file, "a study in YAML; studies/full.yaml comes with the program", true};
    const command_line line = {
        .usage = "softrnn study [FILE.yaml] [options]",
        .purpose =
            "Trains variants of attention under identical conditions (data, order, initial "
            "weights)\n"
            "and says which of them differ. Without a file: the default study, ten minutes on two\n"
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
