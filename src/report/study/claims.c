/* claims.c: compares the paper's claims with the results of this study. */
#include "files/memory_stream.h"
#include "report/draw/format.h"
#include "report/study/kinds.h"
#include "report/study/sections.h"

#include <stdlib.h>

/* A cell's judgement on a claim. */
typedef struct judgement {
    const char *word;
    char *why; /* owned; NULL: no memory */
} judgement;

static const char *const seen = "seen here", *const in_part = "seen in part";
static const char *const not_seen = "not seen here", *const cannot_tell = "cannot tell";

typedef struct stats {
    size_t all, short_of, level; /* level: within the margin, also those shown to be worse */
    size_t short_of_level;       /* both */
} stats;

static stats take_stats(const sr_cell_record *cell, sr_kind *kind) {
    stats t = {0};
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!sr_entry_is(entry, kind))
            continue;
        const bool short_of = sr_entry_falls_short(entry), level = sr_cell_keeps_up(cell, entry);
        t.all++;
        t.short_of += short_of;
        t.level += level;
        t.short_of_level += short_of && level;
    }
    return t;
}

/* "order 2: worse, +0.016 [+0.010, +0.022]" */
static void write_entry(FILE *out, const sr_entry *entry) {
    char broken[160];
    fprintf(out, "%s: %s, ", entry->variant->name, sr_effect_word(entry->effect));
    if (entry->effect == SR_EFFECT_UNSTABLE) {
        sr_entry_write_broken(broken, sizeof broken, entry);
        fputs(broken, out);
    } else {
        fputs(sr_format_interval(entry->difference, entry->low, entry->high).text, out);
        fputs(entry->of_accuracy ? "" : " nats", out);
    }
}

static void write_kind(FILE *out, const sr_cell_record *cell, sr_kind *kind) {
    bool first = true;
    for (size_t i = 0; i < cell->count; i++)
        if (sr_entry_is(&cell->entries[i], kind)) {
            fputs(first ? "" : "; ", out);
            write_entry(out, &cell->entries[i]);
            first = false;
        }
}

/* A claim that variants of a kind are worse. */
static const char *judge_worse(const sr_cell_record *cell, sr_kind *kind, FILE *why) {
    const stats t = take_stats(cell, kind);
    if (t.all == 0)
        return "";
    if (t.all > 3)
        fprintf(why, "%zu of %zu are worse or unstable, %zu keep up", t.short_of, t.all,
                t.level - t.short_of_level);
    else
        write_kind(why, cell, kind);
    return t.short_of == t.all ? seen
           : t.short_of        ? in_part
           : t.level == t.all  ? not_seen
                               : cannot_tell;
}

static const char *judge_linear(const sr_cell_record *cell, FILE *why) {
    return judge_worse(cell, sr_kind_linear, why);
}

static const char *judge_unbounded(const sr_cell_record *cell, FILE *why) {
    return judge_worse(cell, sr_kind_unbounded, why);
}

static const char *judge_norm(const sr_cell_record *cell, FILE *why) {
    const stats t = take_stats(cell, sr_kind_normed);
    if (t.all == 0)
        return "";
    write_kind(why, cell, sr_kind_normed);
    if (t.level == t.all)
        return seen;
    return t.short_of == t.short_of_level ? cannot_tell : t.level ? in_part : not_seen;
}

static const char *judge_orders(const sr_cell_record *cell, FILE *why) {
    const sr_entry *lowest = sr_cell_extreme_order(cell, false);
    const sr_entry *highest = sr_cell_extreme_order(cell, true);
    if (!lowest || lowest == highest)
        return "";
    write_entry(why, lowest);
    fputs("; ", why);
    write_entry(why, highest);
    if (sr_cell_keeps_up(cell, highest))
        return sr_entry_falls_short(lowest) ? seen : in_part;
    return sr_entry_falls_short(highest) ? not_seen : cannot_tell;
}

static const struct {
    const char *words;
    const char *(*judge)(const sr_cell_record *cell, FILE *why);
} claims[] = {
    {"A norm can take the place of the denominator", judge_norm},
    {"Something has to bound the output: no denominator and no norm is worse", judge_unbounded},
    {"Linear attention, the first order, falls short of softmax", judge_linear},
    {"With more orders of the series of exp one comes to softmax", judge_orders},
};

enum { CLAIMS = sizeof claims / sizeof *claims };

/* An empty word: the claim does not apply to the cell. */
static srnn_status judge(judgement *j, size_t claim, const sr_cell_record *cell) {
    size_t bytes;
    FILE *why = sr_memory_stream(&j->why, &bytes);
    if (!why)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    j->word = sr_cell_has_softmax(cell) ? claims[claim].judge(cell, why) : "";
    if (fclose(why) != 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    return SRNN_OK;
}

static srnn_status add_claim(sr_table *table, const sr_records *records, size_t claim) {
    sr_table_cell(table, "%s", claims[claim].words);
    for (size_t i = 0; i < records->cell_count; i++) {
        judgement j = {"", NULL};
        if (!records->cells[i].leads)
            continue;
        const srnn_status status = judge(&j, claim, &records->cells[i]);
        if (status == SRNN_OK)
            sr_table_judgement(table, *j.word ? j.word : "\u2013", j.why);
        free(j.why);
        SR_TRY(status);
    }
    return SRNN_OK;
}

/* True if the claim applies to any cell. */
static srnn_status is_met(bool *met, const sr_records *records, size_t claim) {
    *met = false;
    for (size_t i = 0; i < records->cell_count && !*met; i++) {
        judgement j = {"", NULL};
        if (!records->cells[i].leads)
            continue;
        const srnn_status status = judge(&j, claim, &records->cells[i]);
        *met = *j.word;
        free(j.why);
        SR_TRY(status);
    }
    return SRNN_OK;
}

static srnn_status fill(sr_table *table, const sr_records *records) {
    sr_table_column(table, "The paper says");
    for (size_t i = 0; i < records->cell_count; i++)
        if (records->cells[i].leads)
            sr_table_column(table, records->cells[i].title);
    for (size_t claim = 0; claim < CLAIMS; claim++) {
        bool met;
        SR_TRY(is_met(&met, records, claim));
        if (met)
            SR_TRY(add_claim(table, records, claim));
    }
    return sr_table_check(table);
}

srnn_status sr_section_claims(sr_page *page, const sr_records *records) {
    sr_table *table;
    if (!sr_study_is_about_paper(records))
        return SRNN_OK;
    SR_TRY(sr_table_create(&table, "claims",
                           "What the paper says, and whether it is seen in these small models"));
    const srnn_status status = fill(table, records);
    if (status != SRNN_OK || sr_table_rows(table) == 0) {
        sr_table_free(table);
        return status;
    }
    sr_page_paragraph(page,
                      "Below, \u201cseen here\u201d means that the runs show it: of a variant "
                      "that is said to be worse, its whole %.0f\u202f%% interval is worse than "
                      "softmax; of one that is said to do as well, its whole interval costs less "
                      "than %g\u202f%% of what softmax ends with. Where the interval is too wide "
                      "for either, the study cannot tell. An unstable variant counts as worse.",
                      100 * records->confidence, 100 * SR_MARGIN);
    return sr_page_table(page, table);
}
