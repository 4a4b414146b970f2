/* study.c: `softrnn study`. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/line/installed.h"
#include "cli/line/model_open.h"
#include "cli/line/options.h"
#include "cli/line/origin.h"
#include "cli/line/progress.h"
#include "cli/study/table.h"
#include "cli/study/view.h"
#include "files/memory_stream.h"
#include "model/mixers.h"
#include "report/study/report.h"
#include "study/execute/execute.h"
#include "study/execute/launch/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct arguments {
    sr_study_request request; /* with the resolved file */
    const char *file;         /* as given */
    int jobs, together, launcher;
    double minutes;  /* of this sitting; 0: no limit */
    const char *run; /* execute only this run, in this process: started by launchers */
    double power;    /* the difference to detect; 0: not requested */
    bool no_report;
} arguments;

/* *text = the command that reproduces the study, called as `program`; free() it. */
static srnn_status command_text(char **text, const arguments *a, const char *program) {
    const sr_study_request *r = &a->request;
    size_t length;
    FILE *out = sr_memory_stream(text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
    origin_quote(out, program);
    fputs(" study", out);
    if (a->file) {
        putc(' ', out);
        origin_quote(out, a->file);
    }
    if (r->text) {
        fputs(" --text ", out);
        origin_quote(out, r->text);
    }
    if (r->only) {
        fputs(" --only ", out);
        origin_quote(out, r->only);
    }
    if (r->skip) {
        fputs(" --skip ", out);
        origin_quote(out, r->skip);
    }
    fputs(" --out ", out);
    origin_quote(out, r->out);
    return fclose(out) == 0 ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a line");
}

/* The path of this program, for launchers. */
static const char *program_path(char path[SR_PATH_BYTES]) {
    const ssize_t length = readlink("/proc/self/exe", path, SR_PATH_BYTES - 1);
    if (length <= 0)
        return "softrnn";
    path[length] = '\0';
    return path;
}

static void report_failures(const sr_study *study, const sr_run_view *views) {
    for (size_t i = 0; i < study->run_count; i++)
        if (views[i].ending == SR_ENDING_FAILED)
            fprintf(stderr, "softrnn: run %s failed: %s\n", study->runs[i].id, views[i].message);
}

static srnn_status execute_study(sr_study *study, const arguments *a, sr_study_options *options,
                                 sr_run_view *views, sr_summary *summary) {
    char *repeat = NULL, *member = NULL, own[SR_PATH_BYTES];
    study_view view;
    SR_TRY(command_text(&repeat, a, "softrnn"));
    srnn_status status = command_text(&member, a, program_path(own));
    options->member = member;
    if (status == SRNN_OK)
        status = study_view_begin(&view, study);
    if (status == SRNN_OK) {
        options->watch = study_view_look;
        options->context = &view;
        progress_catch_interrupt();
        status = sr_study_execute_file(study, options, &a->request, repeat, views, summary);
        study_view_end(&view);
    }
    free(repeat);
    free(member);
    return status;
}

/* Prints which run is on which machine. */
static int show_status(const sr_study *study, const arguments *a, const sr_study_options *options) {
    sr_run_view *views = calloc(study->run_count, sizeof *views);
    srnn_status status = views ? sr_study_status(study, a->request.out, options, views)
                               : SR_FAIL(SRNN_ERR_MEMORY, "no memory to look at the runs");
    for (size_t i = 0; status == SRNN_OK && i < study->run_count; i++) {
        const sr_run_view *v = &views[i];
        if (!v->selected)
            continue;
        printf("%-32s %-9s step %lld of %lld", study->runs[i].id,
               v->ending != SR_ENDING_NONE ? sr_ending_name(v->ending)
               : v->running                ? "running"
               : v->step > 0               ? "stopped"
                                           : "waiting",
               (long long)v->step, (long long)study->runs[i].steps);
        if (v->running)
            printf("  on %s, ", v->place);
        if (v->running && isnan(v->seconds))
            printf("no record yet");
        else if (v->running)
            printf("last record %.0f s ago", v->seconds);
        printf("%s%s\n", *v->message ? "  " : "", v->message);
    }
    free(views);
    return command_report(status);
}

/* Prints how many seeds each comparison needs. */
static int show_power(const sr_study *study, const arguments *a) {
    sr_power_row *rows = NULL;
    size_t count;
    const srnn_status status = sr_study_power(&rows, &count, study, a->request.out, a->power);
    if (status == SRNN_OK)
        study_table_power(study, rows, count, a->power);
    free(rows);
    return command_report(status);
}

/* Says how to create the report of the results so far. */
static void print_report(const arguments *a) {
    fflush(stdout);
    fputs("softrnn report ", stderr);
    origin_quote(stderr, a->request.out);
    fputs("   writes the results as a page\n", stderr);
}

/* The results as a page, in the study's folder. */
static srnn_status write_report(const arguments *a) {
    size_t bytes;
    bool leaks; /* reported before the runs */
    SR_TRY(sr_report_write(a->request.out, a->request.out, &bytes, &leaks));
    fflush(stdout);
    fprintf(stderr, "%s/report.html   the results as a page\n", a->request.out);
    return SRNN_OK;
}

static int run_study(sr_study *study, const arguments *a, sr_study_options *options) {
    sr_run_view *views = calloc(study->run_count, sizeof *views);
    sr_summary summary = {0};
    const srnn_status status = views ? execute_study(study, a, options, views, &summary)
                                     : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
    int exit_code = options->ranks && status != SRNN_ERR_INTERRUPTED
                        ? command_report_rank(status, options->ranks)
                        : command_report(status);
    if (status == SRNN_OK || status == SRNN_ERR_INTERRUPTED) {
        report_failures(study, views);
        if (status == SRNN_OK)
            study_table_summary(study, &summary);
        if (status == SRNN_OK && !a->no_report)
            exit_code = command_report(write_report(a));
        else
            print_report(a);
        if (summary.failed)
            exit_code = EXIT_FAILED;
    }
    sr_summary_free(&summary);
    free(views);
    return exit_code;
}

/* Ranks other than the first only execute their runs. */
static int serve(const sr_study *study, const arguments *a, const sr_study_options *options) {
    sr_run_view *views = calloc(study->run_count, sizeof *views);
    const srnn_status status =
        views ? sr_study_execute_on_ranks(study, a->request.out, options, views)
              : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
    free(views);
    return status == SRNN_ERR_INTERRUPTED ? command_report(status)
                                          : command_report_rank(status, options->ranks);
}

static int run_on_ranks(sr_study *study, const arguments *a, sr_study_options *options) {
    sr_ranks ranks;
    int exit_code = command_report(sr_ranks_open(&ranks));
    if (exit_code != EXIT_OK)
        return exit_code;
    options->ranks = &ranks;
    exit_code = ranks.rank == 0 ? run_study(study, a, options) : serve(study, a, options);
    sr_ranks_close(&ranks);
    return exit_code;
}

static void print_leaks(const sr_study *study) {
    for (size_t i = 0; i < study->variant_count; i++)
        if (sr_mixer_leaks(study->variants[i].attention)) {
            model_warn_leak();
            return;
        }
}

static int start(const arguments *a) {
    sr_study study = {0};
    sr_study_options options = {.jobs = a->jobs,
                                .together = a->together,
                                .deadline =
                                    a->minutes > 0 ? sr_clock_seconds() + 60 * a->minutes : 0,
                                .launcher = (sr_launcher)a->launcher};
    int exit_code = command_report(sr_study_prepare(&study, &options, &a->request));
    if (exit_code == EXIT_OK)
        print_leaks(&study);
    if (exit_code == EXIT_OK && a->request.plan_only)
        study_table_plan(&study, &options);
    else if (exit_code == EXIT_OK && a->power > 0)
        exit_code = show_power(&study, a);
    else if (exit_code == EXIT_OK && a->request.status_only)
        exit_code = show_status(&study, a, &options);
    else if (exit_code == EXIT_OK && a->run)
        exit_code = command_report(sr_study_member(&study, &a->request, a->run));
    else if (exit_code == EXIT_OK)
        exit_code = a->launcher == SR_LAUNCHER_MPI ? run_on_ranks(&study, a, &options)
                                                   : run_study(&study, a, &options);
    sr_study_options_free(&options);
    sr_study_free(&study);
    return exit_code;
}

int command_study(int argc, char **argv) {
    static const char *const launchers[] = {"local", "slurm", "mpi", NULL}; /* as sr_launcher */
    arguments a = {.request = {.out = "runs/study"}, .together = 1};
    sr_study_request *r = &a.request;
    const command_option options[] = {
        OPTION_TEXT("--out", &r->out, "DIR", "the study's folder; what has ended there stays"),
        OPTION_FLAG("--dry-run", &r->plan_only, "print the plan with its cost and stop"),
        OPTION_TEXT("--only", &r->only, "NAMES",
                    "only these tasks, variants, sizes or runs, such as 'recall.*.1'; words of "
                    "one kind add up, kinds narrow: recall,softmax,gate are two variants of one "
                    "task"),
        OPTION_TEXT("--skip", &r->skip, "NAMES", "but not these"),
        OPTION_INTEGER("--jobs", &a.jobs, 0, 1024, "N", "runs at a time; 0: one per core"),
        OPTION_INTEGER("--together", &a.together, 1, 1024, "N",
                       "of the runs at a time, how many are threads of one process: on a GPU their "
                       "kernels run side by side, where those of processes take turns"),
        OPTION_NUMBER("--minutes", &a.minutes, 0, 1e6, "X",
                      "start no run that would not end within X minutes, and stop then; the same "
                      "command resumes the study; 0: no limit"),
        OPTION_CHOICE("--launcher", &a.launcher, launchers, "WORD",
                      "who starts the runs: local, on this machine; slurm, as an array of jobs; "
                      "mpi: ranks that mpirun started share them"),
        OPTION_TEXT("--cluster", &r->cluster, "OPTIONS",
                    "of Slurm's sbatch: partition=short,cpus-per-task=4,gpus=1,time=2:00:00"),
        OPTION_FLAG("--status", &r->status_only,
                    "print what runs where and stop; without FILE of the study in --out"),
        OPTION_FLAG("--no-report", &a.no_report,
                    "do not write the results as a page (report.html) at the end"),
        OPTION_NUMBER("--power", &a.power, 0, 1e9, "X",
                      "print how many seeds it takes to see a difference of X, from the scatter of "
                      "the runs in --out, and stop"),
        OPTION_TEXT("--run", &a.run, "NAME",
                    "only this run, in this process: what the jobs of an array do"),
        OPTION_TEXT("--text", &r->text, "FILES",
                    "the text of @text: a,b; without it the King James Bible"),
    };
    const command_argument study_file = {
        "FILE", &a.file, "a study in YAML; studies/full.yaml comes with the program", true};
    const command_line line = {
        .usage = "softrnn study [FILE.yaml] [options]",
        .purpose = "Trains variants of attention under identical conditions (data, order, initial "
                   "weights)\n"
                   "and says which of them differ, on a page too (report.html). Without a file: "
                   "the default study, ten minutes on two\n"
                   "cores. Ctrl-C stops cleanly; the same command resumes it.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = &study_file,
        .argument_count = 1,
        .examples = "  softrnn study --out runs/study\n"
                    "  softrnn study --text mytext.txt --out runs/mine\n"
                    "  softrnn study studies/full.yaml --dry-run\n"
                    "  softrnn study --only recall --skip 'recall.relu.*'\n"
                    "  softrnn study --out runs/study --power 0.01\n"
                    "  softrnn study --launcher slurm --cluster partition=short,time=1:00:00\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (r->plan_only + r->status_only + (a.power > 0) > 1)
        return command_refuse("--dry-run, --status or --power, not two of them");
    if (a.launcher != SR_LAUNCHER_LOCAL && (a.together > 1 || a.minutes > 0))
        return command_refuse("--together and --minutes are for --launcher local: a job array has "
                              "a time limit of its own");
    r->status_only = r->status_only || a.power > 0; /* nothing is written */
    char found[SR_PATH_BYTES];
    if (a.file) {
        installed_find(found, a.file);
        r->file = found;
    }
    return start(&a);
}
