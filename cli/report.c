/* report.c: `softrnn report`: records as one page. */
#include "report/study/report.h"

#include "base/status.h"
#include "commands.h"
#include "files/folder.h"
#include "files/path.h"
#include "options.h"
#include "report/orders/orders.h"

#include <stdio.h>

static srnn_status write_report(const char *study, const char *folder) {
    size_t bytes;
    if (!sr_path_has(study, "orders.json") && !sr_path_has(study, "study.json"))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: there is no study.json and no orders.json", study);
    SR_TRY(sr_folders_make(folder));
    if (sr_path_has(study, "orders.json") && !sr_path_has(study, "study.json"))
        SR_TRY(sr_report_write_orders(study, folder, &bytes));
    else
        SR_TRY(sr_report_write(study, folder, &bytes));
    printf("%s/report.html\n", folder);
    fprintf(stderr, "%.0f KB; figures (SVG) and tables (CSV, LaTeX) are beside it\n",
            (double)bytes / 1024);
    return SRNN_OK;
}

int command_report_page(int argc, char **argv) {
    const char *study = NULL, *out = NULL;
    const command_option options[] = {
        OPTION_TEXT("--out", &out, "FOLDER", "write into this folder; default: DIR itself"),
    };
    const command_argument arguments[] = {
        {"DIR", &study, "the folder of a study, or one with orders.json", false}};
    const command_line line = {
        .usage = "softrnn report [options] DIR",
        .purpose = "What a study, or `softrnn orders`, found as one page, DIR/report.html, that "
                   "opens in any browser "
                   "without a network;\nits figures as SVG in DIR/figures, its tables as CSV and "
                   "LaTeX in DIR/tables.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = arguments,
        .argument_count = sizeof arguments / sizeof *arguments,
        .examples = "  softrnn report runs/study\n"
                    "  softrnn report --out public runs/study\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    return command_report(write_report(study, out ? out : study));
}
