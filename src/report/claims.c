/* claims.c: what the paper says, and what the numbers of this study say to it. */
#include "report/format.h"
#include "report/sections.h"

#include <math.h>

/* The variants that a claim is about are known by their descriptors, never by their names. */

static bool is_linear(const srnn_attention *a) {
    return a->score == SRNN_SCORE_LINEAR;
}

/* exp cut short; odd orders need another denominator than the row sum, which may vanish. */
static bool is_truncated(const srnn_attention *a) {
    return a->score == SRNN_SCORE_TAYLOR && a->feature == SRNN_FEATURE_IDENTITY &&
           a->output_gate == SRNN_GATE_NONE && !a->value_gate;
}

static bool is_bare(const srnn_attention *a) {
    return a->score == SRNN_SCORE_EXP && a->feature == SRNN_FEATURE_IDENTITY &&
           a->normaliser == SRNN_NORMALISER_NONE && a->output_gate == SRNN_GATE_NONE &&
           !a->value_gate && a->decay == SRNN_DECAY_NONE;
}

static bool is_normed(const srnn_attention *a) {
    return is_bare(a) && a->norm == SRNN_NORM_L2;
}

static bool is_unbounded(const srnn_attention *a) {
    return is_bare(a) && a->norm == SRNN_NORM_NONE;
}

static bool compared(const sr_entry *entry) {
    return entry->effect == SR_EFFECT_BETTER || entry->effect == SR_EFFECT_WORSE ||
           entry->effect == SR_EFFECT_UNCLEAR;
}

typedef struct tally {
    size_t all, worse, unclear, better, broken; /* broken: no run of it finished */
    const sr_entry *one;                        /* the last one seen */
} tally;

static tally take_tally(const sr_cell_record *cell, bool (*is)(const srnn_attention *)) {
    tally t = {0};
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!entry->variant->known || !is(&entry->variant->descriptor))
            continue;
        t.all++;
        t.worse += entry->effect == SR_EFFECT_WORSE;
        t.better += entry->effect == SR_EFFECT_BETTER;
        t.unclear += entry->effect == SR_EFFECT_UNCLEAR;
        t.broken += !compared(entry) && entry->diverged > 0;
        t.one = entry;
    }
    return t;
}

static void say_linear(sr_table *table, const sr_cell_record *cell) {
    const tally t = take_tally(cell, is_linear);
    if (t.all == 0)
        return;
    sr_table_cell(table, "Linear attention falls short of softmax");
    sr_table_cell(table, "%s",
                  t.worse == t.all ? "shows"
                  : t.worse        ? "shows in part"
                                   : "does not show");
    sr_table_cell(table, "%s", cell->title);
    sr_table_cell(table, "%zu of %zu linear variants are worse than the baseline", t.worse, t.all);
}

static void say_norm(sr_table *table, const sr_cell_record *cell) {
    const tally t = take_tally(cell, is_normed);
    if (t.all == 0 || !compared(t.one))
        return;
    sr_table_cell(table, "A norm can take the place of the denominator (Norm)");
    sr_table_cell(table, "%s", t.one->effect == SR_EFFECT_WORSE ? "does not show" : "agrees");
    sr_table_cell(table, "%s", cell->title);
    sr_table_cell(table, "%s: %s%s", t.one->variant->name,
                  sr_format_interval(t.one->difference, t.one->low, t.one->high).text,
                  t.one->effect == SR_EFFECT_UNCLEAR ? ", which includes zero" : "");
}

static void say_unbounded(sr_table *table, const sr_cell_record *cell) {
    const tally t = take_tally(cell, is_unbounded);
    if (t.all == 0)
        return;
    const bool shows = t.worse + t.broken == t.all;
    sr_table_cell(table, "Something has to bound the output: no denominator and no norm is worse");
    sr_table_cell(table, "%s", shows ? "shows" : "does not show");
    sr_table_cell(table, "%s", cell->title);
    sr_table_cell(table, "%zu of %zu such variants are worse than the baseline or diverge",
                  t.worse + t.broken, t.all);
}

static const char *effect_words(sr_effect effect) {
    return effect == SR_EFFECT_WORSE    ? "worse"
           : effect == SR_EFFECT_BETTER ? "better"
                                        : "no difference shown";
}

/* The lowest and the highest order that can be compared. */
static void say_orders(sr_table *table, const sr_cell_record *cell) {
    const sr_entry *lowest = NULL, *highest = NULL;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = &cell->entries[i];
        if (!entry->variant->known || !is_truncated(&entry->variant->descriptor) ||
            !compared(entry))
            continue;
        const int order = entry->variant->descriptor.order;
        if (!lowest || order < lowest->variant->descriptor.order)
            lowest = entry;
        if (!highest || order > highest->variant->descriptor.order)
            highest = entry;
    }
    if (!lowest || lowest == highest)
        return;
    const bool reaches = highest->effect != SR_EFFECT_WORSE;
    const bool begins_below = lowest->effect == SR_EFFECT_WORSE;
    sr_table_cell(table, "With more orders of the series one comes to softmax");
    sr_table_cell(table, "%s", !reaches ? "does not show" : begins_below ? "shows" : "unclear");
    sr_table_cell(table, "%s", cell->title);
    sr_table_cell(table, "order %d: %s; order %d: %s", lowest->variant->descriptor.order,
                  effect_words(lowest->effect), highest->variant->descriptor.order,
                  effect_words(highest->effect));
}

srnn_status sr_section_claims(sr_page *page, const sr_records *records) {
    static void (*const claims[])(sr_table *, const sr_cell_record *) = {say_norm, say_orders, say_linear,
                                                                  say_unbounded};
    sr_table *table;
    SR_TRY(sr_table_create(&table, "claims", "What the paper says, and what shows at this size"));
    sr_table_column(table, "The paper");
    sr_table_column(table, "Here");
    sr_table_column(table, "Task");
    sr_table_column(table, "Because");
    for (size_t claim = 0; claim < sizeof claims / sizeof *claims; claim++)
        for (size_t i = 0; i < records->cell_count; i++)
            claims[claim](table, &records->cells[i]);
    if (sr_table_rows(table) == 0) {
        sr_table_free(table);
        return SRNN_OK;
    }
    return sr_page_table(page, table);
}
