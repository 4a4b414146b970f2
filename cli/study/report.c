/* report.c: `softrnn report`: records as one page. */
#include "report/study/report.h"

#include "base/status.h"
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/options.h"
#include "files/folder.h"
#include "files/path.h"
#include "report/orders/orders.h"
#include "report/runs/runs.h"

#include <stdio.h>

/* The kind of a folder. */
static bool is_study(const char *folder) {
    return sr_path_has(folder, "study.json");
}

static bool is_orders(const char *folder) {
    return sr_path_has(folder, "orders.json") && !is_study(folder);
}

static srnn_status check_runs(const command_arguments *folders) {
    for (int i = 0; i < folders->count; i++)
        if (!sr_path_has(folders->values[i], "run.yaml"))
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           folders->count == 1
                               ? "%s: there is no study.json, no orders.json and no run.yaml"
                               : "%s: there is no run.yaml; of several folders each must be a run",
                           folders->values[i]);
    return SRNN_OK;
}

static srnn_status write_page(const command_arguments *folders, const char *out, size_t *bytes,
                              bool *leaks) {
    const char *first = folders->values[0];
    *leaks = false; /* orders exist only for models with attention */
    if (folders->count == 1 && is_study(first))
        return sr_report_write(first, out, bytes, leaks);
    if (folders->count == 1 && is_orders(first))
        return sr_report_write_orders(first, out, bytes);
    return sr_report_write_runs(folders->values, (size_t)folders->count, out, bytes, leaks);
}

static srnn_status write_report(const command_arguments *folders, const char *out) {
    const char *first = folders->values[0];
    size_t bytes;
    bool leaks;
    if (folders->count > 1 || !(is_study(first) || is_orders(first)))
        SR_TRY(check_runs(folders));
    SR_TRY(sr_folders_make(out));
    SR_TRY(write_page(folders, out, &bytes, &leaks));
    if (leaks)
        model_warn_leak();
    printf("%s/report.html\n", out);
    fprintf(stderr, "%.0f KB; figures (SVG) and tables (CSV, LaTeX) are next to it\n",
            (double)bytes / 1024);
    return SRNN_OK;
}

int command_report_page(int argc, char **argv) {
    const char *out = NULL;
    command_arguments folders = {0};
    const command_option options[] = {
        OPTION_TEXT("--out", &out, "FOLDER",
                    "write into this folder; default: DIR itself, of several runs ./report"),
    };
    const command_line line = {
        .usage = "softrnn report [options] DIR\n"
                 "       softrnn report [options] RUN RUN...",
        .purpose =
            "What a study, or `softrnn orders`, found, or how training runs went, as one page, "
            "report.html, that\nopens in any browser without a network; its figures as SVG "
            "in figures/, its tables as CSV and\nLaTeX in tables/.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &folders,
        .examples = "  softrnn report runs/study\n"
                    "  softrnn report --out public runs/study\n"
                    "  softrnn report runs/norm runs/softmax\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (folders.count == 0)
        return command_refuse("missing DIR\nUsage: %s", line.usage);
    if (!out)
        out = folders.count == 1 ? folders.values[0] : "report";
    return command_report(write_report(&folders, out));
}
