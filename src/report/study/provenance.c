/* provenance.c: all runs, their settings, program and machine, and how to reproduce the study. */
#include "files/file.h"
#include "files/json.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/page/origin.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SETTINGS_BYTES = 20000 }; /* most bytes of one file that are shown */

/* The training time of all runs, added up: on one device it is what the study occupied it for if
 * one run followed another. */
static void put_time(sr_table *table, const char *what, double runs, double seconds) {
    char text[240];
    snprintf(text, sizeof text, "%s runs, %s minutes", sr_format_count(runs).text,
             sr_format_fixed(seconds / 60, 1).text);
    sr_origin_text(table, what, text);
}

static void put_times(sr_table *table, const sr_records *records) {
    double seconds = 0;
    size_t runs = 0;
    for (size_t i = 0; i < records->run_count; i++) {
        const double of_run = sr_json_number_of(records->runs[i].result, "seconds");
        if (isfinite(of_run)) { /* else its timings could not be written */
            seconds += of_run;
            runs++;
        }
    }
    put_time(table, "training time", (double)runs, seconds);
    if (records->tuning)
        put_time(table, "training time of tuning", sr_json_number_of(records->tuning, "runs"),
                 sr_json_number_of(records->tuning, "seconds"));
}

static srnn_status put_origin(sr_page *page, const sr_records *records) {
    sr_table *table;
    SR_TRY(sr_table_create(&table, "origin", "Where and with what the study was made"));
    sr_table_column(table, "what");
    sr_table_column(table, "value");
    sr_origin_text(table, "study", sr_json_text_of(records->plan, "name"));
    sr_origin_machine(table, records->plan);
    put_times(table, records);
    return sr_page_table(page, table);
}

/* A file of the study, verbatim and folded; omitted if it is missing. */
static srnn_status put_file(sr_page *page, const sr_records *records, const char *folder,
                            const char *name, const char *summary) {
    char path[SR_PATH_BYTES];
    sr_mapping mapping;
    SR_TRY(sr_path_print(path, "%s/%s%s%s", records->folder, folder, *folder ? "/" : "", name));
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_mapping_open(&mapping, path));
    const size_t bytes = mapping.bytes < SETTINGS_BYTES ? mapping.bytes : SETTINGS_BYTES;
    char *text = strndup((const char *)mapping.data, bytes);
    sr_mapping_close(&mapping);
    if (!text)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to show it", path);
    fputs("<details><summary>", page->body);
    sr_escape_html(page->body, summary);
    fputs("</summary><pre tabindex=\"0\">", page->body);
    sr_escape_html(page->body, text);
    fputs("</pre></details>\n", page->body);
    free(text);
    return SRNN_OK;
}

/* NULL: it has none. */
static const sr_run_record *first_run(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].member_count)
            return cell->entries[i].members[0];
    return NULL;
}

/* The settings of one run of each task; the others differ in variant and seed. */
static srnn_status put_settings(sr_page *page, const sr_records *records) {
    SR_TRY(put_file(page, records, "", "study.yaml", "study.yaml: the study as requested"));
    for (size_t c = 0; c < records->cell_count; c++) {
        const sr_run_record *run = first_run(&records->cells[c]);
        char summary[200];
        if (!run || records->cells[c].at_best)
            continue;
        snprintf(summary, sizeof summary, "run.yaml of %s: every setting",
                 sr_json_text_of(run->plan, "id"));
        SR_TRY(put_file(page, records, sr_json_text_of(run->plan, "folder"), "run.yaml", summary));
    }
    return SRNN_OK;
}

static void add_run(sr_table *table, const sr_run_record *run) {
    const sr_curve *curve = &run->curve;
    const double seed = sr_json_number_of(run->plan, "seed");
    const double seconds = sr_json_number_of(run->result, "seconds");
    sr_table_cell(table, "%s", sr_json_text_of(run->plan, "id"));
    sr_table_cell(table, "%s",
                  *run->status         ? run->status
                  : run->broken_result ? "result.json is damaged"
                                       : "not ended");
    sr_table_number(table, seed, sr_format_count(seed).text);
    sr_table_number(table, curve->last_step, sr_format_count(curve->last_step).text);
    sr_table_number(table, curve->steps, sr_format_count(curve->steps).text);
    sr_table_number(table, curve->last_loss, sr_format_fixed(curve->last_loss, 4).text);
    sr_table_number(table, curve->best_loss, sr_format_fixed(curve->best_loss, 4).text);
    sr_table_number(table, curve->last_accuracy, sr_format_fixed(curve->last_accuracy, 4).text);
    sr_table_number(table, curve->skipped, sr_format_count(curve->skipped).text);
    sr_table_number(table, seconds, sr_format_fixed(seconds, 1).text);
}

static srnn_status put_runs(sr_page *page, const sr_records *records) {
    static const char *const numbers[] = {"seed",      "steps",          "planned", "final loss",
                                          "best loss", "final accuracy", "skipped", "seconds"};
    sr_table *table;
    SR_TRY(sr_table_create(&table, "runs", "Every run, from its metrics.jsonl"));
    sr_table_column(table, "run");
    sr_table_column(table, "status");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    for (size_t i = 0; i < records->run_count; i++)
        add_run(table, &records->runs[i]);
    fputs("<details><summary>All runs</summary>\n", page->body);
    const srnn_status status = sr_page_table(page, table);
    fputs("</details>\n", page->body);
    return status;
}

/* Links to the checkpoints of the runs; only if the page is in the study's folder. */
static srnn_status put_checkpoints(sr_page *page, const sr_records *records) {
    char path[SR_PATH_BYTES];
    bool first = true;
    for (size_t i = 0; i < records->run_count && strcmp(page->folder, records->folder) == 0; i++) {
        const char *folder = sr_json_text_of(records->runs[i].plan, "folder");
        SR_TRY(sr_path_print(path, "%s/%s/checkpoints", records->folder, folder));
        if (access(path, F_OK) != 0)
            continue;
        fputs(first ? "<details><summary>Checkpoints, which <code>softrnn generate</code>, "
                      "<code>eval</code> and <code>orders</code> read</summary>\n<ul>\n"
                    : "",
              page->body);
        fputs("<li><a href=\"./", page->body); /* "./" keeps a name with a colon a path */
        sr_escape_html(page->body, folder);
        fputs("/checkpoints\">", page->body);
        sr_escape_html(page->body, sr_json_text_of(records->runs[i].plan, "id"));
        fputs("</a></li>\n", page->body);
        first = false;
    }
    fputs(first ? "" : "</ul></details>\n", page->body);
    return SRNN_OK;
}

srnn_status sr_section_provenance(sr_page *page, const sr_records *records) {
    sr_origin_section(page, records->plan);
    SR_TRY(put_origin(page, records));
    SR_TRY(put_settings(page, records));
    SR_TRY(put_runs(page, records));
    return put_checkpoints(page, records);
}
