/* verdict.c: what a study found, in words made of its numbers. */
#include "report/escape.h"
#include "report/format.h"
#include "report/json_read.h"
#include "report/sections.h"

#include <math.h>
#include <string.h>

static size_t count_effect(const sr_cell_record *cell, sr_effect effect) {
    size_t count = 0;
    for (size_t i = 0; i < cell->count; i++)
        count += cell->entries[i].effect == effect;
    return count;
}

/* "3 are worse than softmax" */
static void write_share(FILE *out, size_t count, const char *words, const char *name) {
    if (count)
        fprintf(out, "<strong>%zu</strong> ", count);
    else
        fputs("<strong>none</strong> ", out);
    fprintf(out, "%s %s ", count > 1 ? "are" : "is", words);
    sr_escape_html(out, name);
}

static void write_lead(FILE *out, const sr_cell_record *cell) {
    const size_t worse = count_effect(cell, SR_EFFECT_WORSE);
    const size_t better = count_effect(cell, SR_EFFECT_BETTER);
    const size_t unclear = count_effect(cell, SR_EFFECT_UNCLEAR);
    const char *name = cell->baseline ? cell->baseline->variant->name : "";
    fputs("<p class=\"lead\">", out);
    if (!cell->baseline || worse + better + unclear == 0) {
        fputs("There is nothing to compare yet.</p>\n", out);
        return;
    }
    fprintf(out, "Of %zu variants, ", worse + better + unclear);
    write_share(out, worse, "worse than", name);
    fputs(", ", out);
    write_share(out, better, "better than", name);
    fprintf(out, ", and <strong>%zu</strong> cannot be told apart from it here.</p>\n", unclear);
}

static void write_baseline(FILE *out, const sr_cell_record *cell) {
    const sr_entry *baseline = cell->baseline;
    if (!baseline)
        return;
    fputs("<p>The baseline ", out);
    sr_escape_html(out, baseline->variant->name);
    fprintf(out, " ends at a validation %s of %s", cell->accuracy ? "accuracy" : "loss",
            sr_format_fixed(baseline->mean, 4).text);
    if (isfinite(cell->noise_deviation))
        fprintf(out,
                " (%s seeds, standard deviation %s). Two seeds of it typically differ by %s: that "
                "is the noise floor.",
                sr_format_count(cell->noise_seeds).text,
                sr_format_fixed(cell->noise_deviation, 4).text,
                sr_format_fixed(cell->noise_floor, 4).text);
    else
        fputs(". With one seed the noise between seeds is not known.", out);
    fputs("</p>\n", out);
}

/* Every variant with the effect, and its difference with the interval. */
static void write_effect(FILE *out, const sr_cell_record *cell, sr_effect effect, const char *class,
                         const char *words) {
    if (count_effect(cell, effect) == 0)
        return;
    fprintf(out, "<li class=\"%s\"><strong>%s</strong> ", class, words);
    bool first = true;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = cell->ranked[i];
        if (entry->effect != effect)
            continue;
        fputs(first ? "<span class=\"item\">" : ", <span class=\"item\"><b>", out);
        fputs(first ? "<b>" : "", out);
        sr_escape_html(out, entry->variant->name);
        fprintf(out, "</b> %s</span>",
                sr_format_interval(entry->difference, entry->low, entry->high).text);
        first = false;
    }
    fputs("</li>\n", out);
}

static void write_troubles(FILE *out, const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!(entry->diverged > 0) && !(entry->failed > 0) && !(entry->skipped > 0) &&
            entry->effect != SR_EFFECT_UNKNOWN)
            continue;
        fputs("<li class=\"trouble\"><strong>", out);
        sr_escape_html(out, entry->variant->name);
        fprintf(out, ":</strong> %s of %s runs finished", sr_format_count(entry->finished).text,
                sr_format_count(entry->runs).text);
        if (entry->diverged > 0)
            fprintf(out, ", %s diverged", sr_format_count(entry->diverged).text);
        if (entry->failed > 0)
            fprintf(out, ", %s failed", sr_format_count(entry->failed).text);
        if (entry->skipped > 0)
            fprintf(out, ", %s steps skipped for numbers that were not finite",
                    sr_format_count(entry->skipped).text);
        fputs(".</li>\n", out);
    }
}

static void write_cell(FILE *out, const sr_cell_record *cell) {
    fputs("<div class=\"finding\">\n<h3>", out);
    sr_escape_html(out, cell->title);
    fputs("</h3>\n", out);
    write_lead(out, cell);
    write_baseline(out, cell);
    fputs("<ul class=\"effects\">\n", out);
    write_effect(out, cell, SR_EFFECT_BETTER, "better", "Better:");
    write_effect(out, cell, SR_EFFECT_WORSE, "worse", "Worse:");
    write_effect(out, cell, SR_EFFECT_UNCLEAR, "unclear",
                 "No difference shown (the interval includes zero):");
    write_troubles(out, cell);
    fputs("</ul>\n</div>\n", out);
}

/* The statistics were made of the runs: say so if they no longer are. */
static bool agrees(const sr_records *records, const sr_cell_record *cell, const sr_entry *entry) {
    double sum = 0, count = 0;
    for (size_t i = 0; i < records->run_count; i++) {
        const sr_run_record *run = &records->runs[i];
        if (strcmp(run->status, "finished") == 0 && sr_run_in_cell(run, cell) &&
            run->variant == entry->variant) {
            sum += cell->accuracy ? run->curve.last_accuracy : run->curve.last_loss;
            count++;
        }
    }
    if (count == 0 || !isfinite(entry->mean))
        return !(entry->finished > 0) || !isfinite(entry->mean);
    return fabs(sum / count - entry->mean) <= 1e-6 * fmax(1, fabs(entry->mean));
}

static void write_disagreements(FILE *out, const sr_records *records) {
    for (size_t c = 0; c < records->cell_count; c++)
        for (size_t i = 0; i < records->cells[c].count; i++)
            if (!agrees(records, &records->cells[c], &records->cells[c].entries[i])) {
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

static void write_unfinished(FILE *out, const sr_records *records) {
    const double missing = sr_json_number_of(records->summary, "missing");
    if (missing > 0)
        fprintf(out,
                "<p class=\"warning\" role=\"note\"><strong>This study is not complete:</strong> "
                "%s of %s runs have not ended. What follows is about the others.</p>\n",
                sr_format_count(missing).text,
                sr_format_count(sr_json_number_of(records->summary, "runs")).text);
}

srnn_status sr_section_verdict(sr_page *page, const sr_records *records) {
    sr_page_section(page, "verdict", "The verdict");
    write_unfinished(page->body, records);
    write_disagreements(page->body, records);
    for (size_t i = 0; i < records->cell_count; i++)
        write_cell(page->body, &records->cells[i]);
    sr_page_paragraph(
        page,
        "Numbers after a name are its difference to the baseline and the %.0f\u202f%% "
        "confidence interval of that difference, on runs that saw the same data in "
        "the same order from the same initial weights. An interval that includes "
        "zero shows no difference; it does not show that there is none. Of many "
        "intervals, about %.0f in a hundred exclude zero by chance.",
        100 * records->confidence, 100 - 100 * records->confidence);
    sr_page_paragraph(page, "How an interval was made is in the tables. Pooled: from the scatter "
                            "between seeds of all variants together, or of the variant itself "
                            "where that is larger. Seeds: from its own alone. Batches: from the "
                            "batches of one seed, which says nothing about another seed.");
    return SRNN_OK;
}
