/* headline.c: what a study found, in a sentence or two with the sizes of the effects. */
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/study/kinds.h"
#include "report/study/sections.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* A sentence of parts. */
typedef struct sentence {
    FILE *out;
    const sr_cell_record *cell;
    size_t parts;
} sentence;

static const char *unit_of(const sr_entry *entry) {
    return entry->of_accuracy ? " in accuracy" : " nats";
}

/* Begins a part with its subject, which is ours; the first letter of a sentence is a capital. */
static void begin(sentence *s, const char *subject) {
    fputs(s->parts ? "; " : "", s->out);
    putc(s->parts++ ? *subject : toupper((unsigned char)*subject), s->out);
    fputs(subject + 1, s->out);
}

static void write_size(sentence *s, const char *verb, const sr_entry *entry) {
    fprintf(s->out, " %s <strong>%s%s</strong>", verb,
            sr_format_size(sr_entry_cost(entry).mean).text, unit_of(entry));
}

/* What an interval that includes zero leaves open. */
static void write_open(sentence *s, const sr_entry *entry) {
    const sr_cost cost = sr_entry_cost(entry);
    if (!isfinite(cost.low) || !isfinite(cost.high)) {
        fputs(" has too few runs to judge", s->out);
    } else if (sr_cell_keeps_up(s->cell, entry)) {
        fprintf(s->out, " costs <strong>nothing that shows here</strong> (at most %s%s)",
                sr_format_bound(cost.high, cost.low, cost.high).text, unit_of(entry));
    } else {
        fprintf(s->out, " <strong>cannot be judged at this size</strong>: it may gain %s or cost ",
                sr_format_bound(cost.low, cost.low, cost.high).text);
        fprintf(s->out, "%s%s", sr_format_bound(cost.high, cost.low, cost.high).text,
                unit_of(entry));
    }
}

static void write_predicate(sentence *s, const sr_entry *entry) {
    char broken[160];
    switch (entry->effect) {
    case SR_EFFECT_WORSE:
        write_size(s, "costs", entry);
        break;
    case SR_EFFECT_BETTER:
        write_size(s, "gains", entry);
        break;
    case SR_EFFECT_UNSTABLE:
        sr_entry_write_broken(broken, sizeof broken, entry);
        fprintf(s->out, " is <strong>unstable</strong> (%s)", broken);
        break;
    case SR_EFFECT_UNCLEAR:
        write_open(s, entry);
        break;
    case SR_EFFECT_UNKNOWN:
    case SR_EFFECT_BASELINE:
        break;
    }
}

static void say(sentence *s, const char *subject, const sr_entry *entry) {
    begin(s, subject);
    write_predicate(s, entry);
}

static void say_name(sentence *s, const sr_entry *entry) {
    begin(s, "the variant ");
    sr_escape_html(s->out, entry->variant->name);
    write_predicate(s, entry);
}

static const sr_entry *first_of(const sr_cell_record *cell, sr_kind *kind) {
    for (size_t i = 0; i < cell->count; i++)
        if (sr_entry_is(&cell->entries[i], kind))
            return &cell->entries[i];
    return NULL;
}

typedef struct forms {
    const sr_entry *least, *most; /* of those that are worse, by their cost; NULL: none is */
    size_t all, worse, unstable, level;
} forms;

static forms find_linear(const sr_cell_record *cell) {
    forms f = {0};
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = cell->ranked[i];
        if (!sr_entry_is(entry, sr_kind_linear))
            continue;
        f.all++;
        f.unstable += entry->effect == SR_EFFECT_UNSTABLE;
        f.level += sr_cell_keeps_up(cell, entry);
        if (entry->effect != SR_EFFECT_WORSE)
            continue;
        f.worse++;
        f.least = f.least ? f.least : entry;
        f.most = entry;
    }
    return f;
}

static void write_range(sentence *s, const forms *f) {
    const sr_formatted least = sr_format_size(sr_entry_cost(f->least).mean);
    const sr_formatted most = sr_format_size(sr_entry_cost(f->most).mean);
    if (strcmp(least.text, most.text) == 0)
        write_size(s, "costs", f->most);
    else
        fprintf(s->out, " costs <strong>%s to %s%s</strong>", least.text, most.text,
                unit_of(f->most));
    if (f->worse < f->all)
        fprintf(s->out, " in %zu of %zu forms", f->worse, f->all);
    if (f->unstable)
        fprintf(s->out, " and is unstable in %zu", f->unstable);
}

static void say_linear(sentence *s) {
    const forms f = find_linear(s->cell);
    if (f.all == 0)
        return;
    if (f.all == 1) {
        say(s, "linear attention", first_of(s->cell, sr_kind_linear));
        return;
    }
    begin(s, "linear attention");
    if (f.worse)
        write_range(s, &f);
    else if (f.unstable)
        fprintf(s->out, " is <strong>unstable</strong> in %zu of %zu forms", f.unstable, f.all);
    else if (f.level == f.all)
        fprintf(s->out, " costs <strong>nothing that shows here</strong> (less than %g\u202f%%)",
                100 * SR_MARGIN);
    else
        fputs(" <strong>cannot be judged at this size</strong>", s->out);
}

/* The least order from which on all that were tried keep up. */
static void say_orders(sentence *s) {
    const sr_entry *highest = sr_cell_extreme_order(s->cell, true), *from = NULL;
    char subject[80];
    if (!highest)
        return;
    int fails = -1;
    for (size_t i = 0; i < s->cell->count; i++) {
        const sr_entry *entry = &s->cell->entries[i];
        if (sr_entry_is(entry, sr_kind_truncated) && !sr_cell_keeps_up(s->cell, entry) &&
            entry->variant->descriptor.order > fails)
            fails = entry->variant->descriptor.order;
    }
    for (size_t i = 0; i < s->cell->count; i++) {
        const sr_entry *entry = &s->cell->entries[i];
        if (sr_entry_is(entry, sr_kind_truncated) && entry->variant->descriptor.order > fails &&
            (!from || entry->variant->descriptor.order < from->variant->descriptor.order))
            from = entry;
    }
    if (from && from != highest) {
        snprintf(subject, sizeof subject, "cutting exp after order %d",
                 from->variant->descriptor.order);
        begin(s, subject);
        fprintf(s->out, " or later costs <strong>less than %g\u202f%%</strong>", 100 * SR_MARGIN);
        return;
    }
    snprintf(subject, sizeof subject, "cutting exp after order %d",
             highest->variant->descriptor.order);
    say(s, subject, highest);
}

/* Of the neighbouring systems: how many keep up, and which of these needs least of the past. */
static void say_systems(sentence *s) {
    const sr_entry *least = NULL;
    size_t all = 0, level = 0;
    for (size_t i = 0; i < s->cell->count; i++) {
        const sr_entry *entry = &s->cell->entries[i];
        if (!sr_system_of(entry->variant->attention) || !sr_entry_compared(entry))
            continue;
        all++;
        if (entry->effect != SR_EFFECT_BETTER && !sr_cell_keeps_up(s->cell, entry))
            continue;
        level++;
        if (!least || sr_entry_memory(entry) < sr_entry_memory(least))
            least = entry;
    }
    if (all < 2)
        return;
    begin(s, "of ");
    fprintf(s->out, "%zu systems, <strong>%zu</strong> keep up with the baseline", all, level);
    if (!least || !(s->cell->length > 0))
        return;
    fputs("; of these ", s->out);
    sr_escape_html(s->out, least->variant->name);
    fprintf(s->out,
            " keeps least of the past: <strong>%s</strong> a token of context, the baseline %s",
            sr_format_bytes(sr_entry_memory(least) / s->cell->length).text,
            sr_format_bytes(sr_entry_memory(s->cell->baseline) / s->cell->length).text);
}

/* Where the paper's kinds are not among the variants: the two ends. */
static void say_ends(sentence *s) {
    const sr_entry *best = NULL, *worst = NULL;
    for (size_t i = 0; i < s->cell->count; i++)
        if (sr_entry_compared(s->cell->ranked[i])) {
            best = best ? best : s->cell->ranked[i];
            worst = s->cell->ranked[i];
        }
    if (!best)
        return;
    say_name(s, best);
    if (worst != best)
        say_name(s, worst);
}

static bool has_one_seed(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].runs > 1)
            return false;
    return true;
}

static void write_sentence(FILE *out, const sr_cell_record *cell) {
    sentence s = {out, cell, 0};
    const bool claims = sr_cell_has_softmax(cell);
    const sr_entry *unbounded = claims ? first_of(cell, sr_kind_unbounded) : NULL;
    const sr_entry *normed = claims ? first_of(cell, sr_kind_normed) : NULL;
    fputs("<p class=\"headline\"><span class=\"task\">", out);
    sr_escape_html(out, cell->title);
    fputs(":</span> ", out);
    if (unbounded)
        say(&s, "dropping the denominator", unbounded);
    if (normed)
        say(&s, unbounded ? "a norm in its place" : "a norm in place of the denominator", normed);
    if (claims) {
        say_linear(&s);
        say_orders(&s);
    }
    if (s.parts == 0 && cell->baseline)
        say_systems(&s);
    if (s.parts == 0)
        say_ends(&s);
    fputs(s.parts == 0         ? "There is nothing to compare yet"
          : has_one_seed(cell) ? " (of one seed: another may say otherwise)"
                               : "",
          out);
    fputs(".</p>\n", out);
}

/* At most two sentences: of the first cell of each measure. */
void sr_headline_write(FILE *out, const sr_records *records) {
    bool said[2] = {false, false};
    for (size_t i = 0; i < records->cell_count; i++) {
        const sr_cell_record *cell = &records->cells[i];
        if (!said[cell->accuracy])
            write_sentence(out, cell);
        said[cell->accuracy] = true;
    }
}
