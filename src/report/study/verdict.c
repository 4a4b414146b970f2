/* verdict.c: the results of a study in words. */
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <math.h>
#include <string.h>

static size_t count_effect(const sr_cell_record *cell, sr_effect effect) {
    size_t count = 0;
    for (size_t i = 0; i < cell->count; i++)
        count += cell->entries[i].effect == effect;
    return count;
}

static void write_share(FILE *out, size_t count, const char *words) {
    if (count)
        fprintf(out, "<strong>%zu</strong> %s %s", count, count > 1 ? "are" : "is", words);
    else
        fprintf(out, "<strong>none</strong> is %s", words);
}

/* Explains why a cell has no comparison. */
static void write_nothing(FILE *out, const sr_cell_record *cell) {
    if (cell->baseline && cell->count == 1)
        fputs("There is nothing to compare: the baseline is the only variant here.</p>\n", out);
    else if (!cell->baseline)
        fputs("Nothing can be compared: the baseline has no run here.</p>\n", out);
    else if (!isfinite(cell->baseline->mean))
        fputs("Nothing can be compared: the baseline has no run that ended with a number.</p>\n",
              out);
    else
        fputs("There is nothing to compare yet: no variant has a run to pair with one of the "
              "baseline "
              "with the same seed.</p>\n",
              out);
}

/* Counts every variant except the baseline once. */
static void write_lead(FILE *out, const sr_cell_record *cell) {
    const size_t unstable = count_effect(cell, SR_EFFECT_UNSTABLE);
    const size_t unknown = count_effect(cell, SR_EFFECT_UNKNOWN);
    const size_t too_few = count_effect(cell, SR_EFFECT_TOO_FEW);
    const size_t all = cell->count - count_effect(cell, SR_EFFECT_BASELINE);
    fputs("<p class=\"lead\">", out);
    if (!cell->baseline || all == unknown) {
        write_nothing(out, cell);
        return;
    }
    fprintf(out, "Of %zu variant%s, ", all, all == 1 ? "" : "s");
    write_share(out, count_effect(cell, SR_EFFECT_WORSE), "worse than ");
    sr_escape_html(out, cell->baseline->variant->name);
    fputs(", ", out);
    write_share(out, count_effect(cell, SR_EFFECT_BETTER), "better");
    if (unstable) {
        fputs(", ", out);
        write_share(out, unstable, "unstable");
    }
    if (too_few)
        fprintf(out, ", <strong>%zu</strong> %s too few runs to judge", too_few,
                too_few > 1 ? "have" : "has");
    if (unknown)
        fprintf(out, ", <strong>%zu</strong> cannot be compared yet", unknown);
    fprintf(out, ", and <strong>%zu</strong> cannot be told apart from it here.</p>\n",
            count_effect(cell, SR_EFFECT_UNCLEAR));
}

static void write_noise(FILE *out, const sr_cell_record *cell) {
    if (cell->noise_seeds >= 2 && isfinite(cell->noise_deviation))
        fprintf(out,
                " (%s seeds, standard deviation %s). Two seeds of it typically differ by %s: that "
                "is the noise floor.",
                sr_format_count(cell->noise_seeds).text,
                sr_format_fixed(cell->noise_deviation, 4).text,
                sr_format_fixed(cell->noise_floor, 4).text);
    else
        fprintf(out, " (one seed%s, hence the noise between seeds is not known).",
                cell->baseline->runs > 1 ? " so far" : "");
}

static void write_baseline(FILE *out, const sr_cell_record *cell) {
    const sr_entry *baseline = cell->baseline;
    char broken[160];
    if (!baseline)
        return;
    fputs("<p>The baseline ", out);
    sr_escape_html(out, baseline->variant->name);
    if (isfinite(baseline->mean)) {
        fprintf(out, " ends at a validation %s of %s", cell->accuracy ? "accuracy" : "loss",
                sr_format_fixed(baseline->mean, 4).text);
        write_noise(out, cell);
    } else {
        fputs(" has no run that ended with a number.", out);
    }
    if (baseline->diverged > 0 || baseline->not_finite > 0) {
        sr_entry_write_broken(broken, sizeof broken, baseline);
        fprintf(out, " It %s.", broken);
    }
    fputs("</p>\n", out);
}

/* The difference with its interval, and whether a better one has more parameters; for an unstable
 * variant what failed. */
static void write_item(FILE *out, const sr_entry *entry) {
    char broken[160], parameters[48];
    fputs("<span class=\"item\"><b>", out);
    sr_escape_html(out, entry->variant->name);
    fputs("</b> ", out);
    if (entry->effect == SR_EFFECT_UNSTABLE) {
        sr_entry_write_broken(broken, sizeof broken, entry);
        fputs(broken, out);
    } else {
        fputs(sr_format_interval(entry->difference, entry->low, entry->high).text, out);
        sr_entry_write_parameters(parameters, entry);
        if (entry->effect == SR_EFFECT_BETTER && *parameters)
            fprintf(out, " (with %s)", parameters);
    }
    fputs("</span>", out);
}

static void write_effect(FILE *out, const sr_cell_record *cell, sr_effect effect, const char *class,
                         const char *words) {
    bool first = true;
    for (size_t i = 0; i < cell->count; i++) {
        if (cell->ranked[i]->effect != effect)
            continue;
        if (first)
            fprintf(out, "<li class=\"%s\"><strong>%s</strong> ", class, words);
        fputs(first ? "" : ", ", out);
        write_item(out, cell->ranked[i]);
        first = false;
    }
    fputs(first ? "" : "</li>\n", out);
}

/* A missing comparison is explained unless the baseline itself is missing. */
static bool has_trouble(const sr_cell_record *cell, const sr_entry *entry) {
    const bool alone = !cell->baseline || !isfinite(cell->baseline->mean);
    return entry->failed > 0 || entry->skipped > 0 || entry->contradicts ||
           (entry->effect == SR_EFFECT_UNKNOWN && !alone);
}

/* Other problems of a variant's runs. */
static void write_troubles(FILE *out, const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!has_trouble(cell, entry))
            continue;
        fputs("<li class=\"trouble\"><strong>", out);
        sr_escape_html(out, entry->variant->name);
        fprintf(out, ":</strong> %s of %s runs finished", sr_format_count(entry->finished).text,
                sr_format_count(entry->runs).text);
        if (entry->failed > 0)
            fprintf(out, ", %s failed", sr_format_count(entry->failed).text);
        if (entry->skipped > 0)
            fprintf(out, ", %s steps skipped for numbers that were not finite",
                    sr_format_count(entry->skipped).text);
        fputs(entry->contradicts ? "; summary.json has a verdict that its interval denies, hence "
                                   "none is given.</li>\n"
                                 : ".</li>\n",
              out);
    }
}

/* Notes if differences are of another measure than the task's. */
static void write_quantity(FILE *out, const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (sr_entry_compared(&cell->entries[i]) &&
            cell->entries[i].of_accuracy != cell->accuracy) {
            fputs("<p>With one seed accuracies cannot be judged. The differences below are of the "
                  "validation loss, in nats: less is better.</p>\n",
                  out);
            return;
        }
}

static void write_cell(FILE *out, const sr_cell_record *cell) {
    fputs("<div class=\"finding\">\n<h3>", out);
    sr_escape_html(out, cell->title);
    fputs("</h3>\n", out);
    write_lead(out, cell);
    write_baseline(out, cell);
    write_quantity(out, cell);
    fputs("<ul class=\"effects\">\n", out);
    write_effect(out, cell, SR_EFFECT_BETTER, "better", "Better:");
    write_effect(out, cell, SR_EFFECT_WORSE, "worse", "Worse:");
    write_effect(out, cell, SR_EFFECT_UNSTABLE, "worse", "Unstable:");
    write_effect(out, cell, SR_EFFECT_UNCLEAR, "unclear",
                 "No difference shown (the interval includes zero):");
    write_effect(out, cell, SR_EFFECT_TOO_FEW, "unclear", "Too few runs to judge:");
    write_troubles(out, cell);
    fputs("</ul>\n</div>\n", out);
}

static bool has_method(const sr_records *records, const char *method) {
    for (size_t c = 0; c < records->cell_count; c++)
        for (size_t i = 0; i < records->cells[c].count; i++)
            if (strcmp(records->cells[c].entries[i].method, method) == 0)
                return true;
    return false;
}

static bool has_intervals(const sr_records *records) {
    return has_method(records, "moderated") || has_method(records, "seeds") ||
           has_method(records, "sequential") || has_method(records, "batches");
}

/* How the intervals of this study were computed. */
static void write_footnote(FILE *out, const sr_records *records) {
    static const struct {
        const char *method, *words;
    } notes[] = {
        {"moderated", "from the scatter of the differences over seeds, which borrows from the "
                      "other variants of the task as far as they scatter equally (Smyth 2004)"},
        {"seeds", "from the scatter of the variant\u2019s own differences over seeds alone"},
        {"sequential", "from the scatter of the variant\u2019s own differences over seeds, wide "
                       "enough to hold after every seed from the second on, because the "
                       "comparison could end at any of them"},
        {"batches", "from the validation batches of one seed; it is about these trained models "
                    "and says nothing about another seed"},
    };
    if (!has_intervals(records))
        return;
    fputs("<p class=\"footnote\" id=\"note-interval\"><sup>1</sup> How an interval was made is in "
          "the tables. All are Student\u2019s, two-sided.",
          out);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (has_method(records, notes[i].method))
            fprintf(out, " <em>%s</em>: %s.", notes[i].method, notes[i].words);
    fputs("</p>\n", out);
}

/* How to read the numbers after the names. */
static void write_reading(FILE *out, const sr_records *records) {
    if (!has_intervals(records)) {
        fputs("<p>Numbers after a name are its difference to the baseline. None of them has a "
              "confidence interval, which takes two seeds or more at which both have ended, hence "
              "none of them is judged.</p>\n",
              out);
        return;
    }
    fprintf(out,
            "<p>Numbers after a name are its difference to the baseline and the %.0f\u202f%% "
            "confidence interval<a href=\"#note-interval\"><sup>1</sup></a> of that difference, on "
            "runs that saw the same data in the same order from the same initial weights. An "
            "interval that includes zero shows no difference; it does not show that there is none. "
            "Of many intervals, about %.0f in a hundred exclude zero by chance.</p>\n",
            100 * records->confidence, 100 - 100 * records->confidence);
}

srnn_status sr_section_verdict(sr_page *page, const sr_records *records) {
    FILE *out = page->body;
    sr_page_section(page, "verdict", "The verdict");
    sr_headline_write(out, records);
    sr_warnings_write(out, records);
    SR_TRY(sr_section_claims(page, records));
    for (size_t i = 0; i < records->cell_count; i++)
        write_cell(out, &records->cells[i]);
    sr_tuning_write(out, records);
    write_reading(out, records);
    write_footnote(out, records);
    return SRNN_OK;
}
