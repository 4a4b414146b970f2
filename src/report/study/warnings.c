/* warnings.c: warnings about the records behind the page. */
#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/study/sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether the statistics still match the runs. */
static bool agrees(const sr_cell_record *cell, const sr_entry *entry) {
    double sum = 0, count = 0;
    for (size_t i = 0; i < entry->member_count; i++) {
        const sr_run_record *run = entry->members[i];
        const double last = cell->accuracy ? run->curve.last_accuracy : run->curve.last_loss;
        if (strcmp(run->status, "finished") == 0 && isfinite(last)) {
            sum += last;
            count++;
        }
    }
    if (count == 0 || !isfinite(entry->mean))
        return count == 0 && !isfinite(entry->mean);
    return fabs(sum / count - entry->mean) <= 1e-6 * fmax(1, fabs(entry->mean));
}

static void write_disagreements(FILE *out, const sr_records *records) {
    for (size_t c = 0; c < records->cell_count; c++)
        for (size_t i = 0; i < records->cells[c].count; i++)
            if (!agrees(&records->cells[c], &records->cells[c].entries[i])) {
                fputs("<p class=\"warning\" role=\"note\"><strong>Stale statistics.</strong> "
                      "summary.json does not agree with the runs' metrics.jsonl (task ",
                      out);
                sr_escape_html(out, records->cells[c].task);
                fputs(", variant ", out);
                sr_escape_html(out, records->cells[c].entries[i].variant->name);
                fputs("). Run the study's command again: finished runs are not run again.</p>\n",
                      out);
                return;
            }
}

static void write_warning(FILE *out, const char *strong, double count, double all,
                          const char *words) {
    fprintf(out, "<p class=\"warning\" role=\"note\"><strong>%s</strong> %s of %s runs %s.</p>\n",
            strong, sr_format_count(count).text, sr_format_count(all).text, words);
}

/* Runs that were not requested do not count as missing. */
static void write_unfinished(FILE *out, const sr_records *records) {
    const double missing = sr_json_number_of(records->summary, "missing");
    const double failed = sr_json_number_of(records->summary, "failed");
    const double left_out = sr_json_number_of(records->summary, "left_out");
    const double planned = sr_json_number_of(records->summary, "runs");
    const double requested = left_out > 0 ? planned - left_out : planned;
    if (missing > 0)
        write_warning(out, "This study is not complete:", missing, requested,
                      "have not ended. What follows is about the others");
    if (failed > 0)
        write_warning(out, "Failed:", failed, requested,
                      "failed. The study\u2019s command tries them again");
    if (left_out > 0)
        write_warning(out, "A part of the study:", requested, planned,
                      "were requested or have ended. The others are not counted: --only or --skip "
                      "left them out, or settle did not need them");
}

static bool is_damaged(const sr_run_record *run) {
    return run->broken_result || run->curve.bad_lines > 0;
}

static void write_damage_of(FILE *out, const sr_run_record *run) {
    fputs("<li><code>", out);
    sr_escape_html(out, sr_json_text_of(run->plan, "folder"));
    fputs("</code>:", out);
    if (run->curve.bad_lines)
        fprintf(out, " %zu line%s of metrics.jsonl cannot be read and %s passed over.",
                run->curve.bad_lines, run->curve.bad_lines > 1 ? "s" : "",
                run->curve.bad_lines > 1 ? "are" : "is");
    if (run->broken_result)
        fputs(" result.json cannot be read: the run counts as not ended.", out);
    fputs("</li>\n", out);
}

/* Records that could not be read, or only partly. */
static void write_damage(FILE *out, const sr_records *records) {
    enum { SHOWN = 12 };
    size_t count = 0, shown = 0;
    for (size_t i = 0; i < records->run_count; i++)
        count += is_damaged(&records->runs[i]);
    if (count == 0)
        return;
    fprintf(out, "<div class=\"warning\" role=\"note\"><strong>Damaged records%s:</strong><ul>",
            count > SHOWN ? " (the first of them)" : "");
    for (size_t i = 0; i < records->run_count && shown < SHOWN; i++)
        if (is_damaged(&records->runs[i])) {
            write_damage_of(out, &records->runs[i]);
            shown++;
        }
    fputs("</ul></div>\n", out);
}

/* Avey as published is not causal: its ranking of the past depends on later tokens. */
static void write_leak(FILE *out, const sr_records *records) {
    for (size_t i = 0; i < records->variant_count; i++) {
        if (!sr_system_leaks(records->variants[i].attention))
            continue;
        fputs("<p class=\"warning\" role=\"note\"><strong>Not causal: ", out);
        sr_escape_html(out, records->variants[i].name);
        fprintf(out, ".</strong> %s</p>\n", sr_system_leak);
    }
}

void sr_warnings_write(FILE *out, const sr_records *records) {
    write_leak(out, records);
    write_unfinished(out, records);
    write_damage(out, records);
    write_disagreements(out, records);
}
