/* headline.c: the result of a study in a sentence or two, with effect sizes. */
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/study/kinds.h"
#include "report/study/sections.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* A sentence being assembled from parts. */
typedef struct sentence {
    FILE *out;
    const sr_cell_record *cell;
    size_t parts;
} sentence;

static const char *unit_of(const sr_entry *entry) {
    return entry->of_accuracy ? " in accuracy" : " nats";
}

/* Begins a part with its subject, a literal; capitalises the start of a sentence. */
static void begin(sentence *s, const char *subject) {
    fputs(s->parts ? "; " : "", s->out);
    putc(s->parts++ ? *subject : toupper((unsigned char)*subject), s->out);
    fputs(subject + 1, s->out);
}

static void write_size(sentence *s, const char *verb, const sr_entry *entry) {
    fprintf(s->out, " %s <strong>%s%s</strong>", verb,
            sr_format_size(sr_entry_cost(entry).mean).text, unit_of(entry));
}

/* A better variant may owe it to its size. */
static void write_gain(sentence *s, const sr_entry *entry) {
    char parameters[48];
    write_size(s, "gains", entry);
    sr_entry_write_parameters(parameters, entry);
    if (*parameters)
        fprintf(s->out, " (with %s)", parameters);
}

/* What remains possible if an interval includes zero. */
static void write_open(sentence *s, const sr_entry *entry) {
    const sr_cost cost = sr_entry_cost(entry);
    if (sr_cell_keeps_up(s->cell, entry)) {
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
        write_gain(s, entry);
        break;
    case SR_EFFECT_UNSTABLE:
        sr_entry_write_broken(broken, sizeof broken, entry);
        fprintf(s->out, " is <strong>unstable</strong> (%s)", broken);
        break;
    case SR_EFFECT_UNCLEAR:
        write_open(s, entry);
        break;
    case SR_EFFECT_TOO_FEW:
        fputs(" has too few runs to judge", s->out);
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

/* Counts of the entries of a group by outcome; each is counted once. */
typedef struct stats {
    size_t all, better, level, worse, unstable, open, too_few;
    const sr_entry *least, *most;  /* lowest and highest cost of those that are worse; NULL: none */
    const sr_entry *best, *second; /* of those that are better; NULL: none */
} stats;

static void count_entry(stats *t, const sr_cell_record *cell, const sr_entry *entry) {
    t->all++;
    switch (entry->effect) {
    case SR_EFFECT_BETTER:
        t->better++;
        t->second = t->best && !t->second ? entry : t->second;
        t->best = t->best ? t->best : entry;
        break;
    case SR_EFFECT_WORSE:
        t->worse++;
        t->least = t->least ? t->least : entry;
        t->most = entry;
        break;
    case SR_EFFECT_UNSTABLE:
        t->unstable++;
        break;
    case SR_EFFECT_UNCLEAR:
        t->level += sr_cell_keeps_up(cell, entry);
        t->open += !sr_cell_keeps_up(cell, entry);
        break;
    case SR_EFFECT_TOO_FEW:
        t->too_few++;
        break;
    case SR_EFFECT_UNKNOWN:
    case SR_EFFECT_BASELINE:
        break;
    }
}

/* Of the compared entries of a kind, best first; NULL: of all of them. */
static stats take_stats(const sr_cell_record *cell, sr_kind *kind) {
    stats t = {0};
    for (size_t i = 0; i < cell->count; i++)
        if (sr_entry_compared(cell->ranked[i]) && (!kind || sr_entry_is(cell->ranked[i], kind)))
            count_entry(&t, cell, cell->ranked[i]);
    return t;
}

static void write_range(sentence *s, const stats *t) {
    const sr_formatted least = sr_format_size(sr_entry_cost(t->least).mean);
    const sr_formatted most = sr_format_size(sr_entry_cost(t->most).mean);
    if (strcmp(least.text, most.text) == 0)
        write_size(s, "costs", t->most);
    else
        fprintf(s->out, " costs <strong>%s to %s%s</strong>", least.text, most.text,
                unit_of(t->most));
}

/* One outcome of a group of entries: "in 2 of 3 forms", then "in 1". */
static void write_forms(sentence *s, const stats *t, size_t count, size_t *said) {
    if (count < t->all)
        fprintf(s->out, *said == 0 ? " in %zu of %zu forms" : " in %zu", count, t->all);
    *said += count;
}

/* The conjunction between an outcome and those before it. */
static const char *joint(const stats *t, size_t count, size_t said) {
    return said == 0 ? "" : said + count == t->all ? " and" : ",";
}

static void write_ways(sentence *s, const stats *t) {
    const struct {
        size_t count;
        const char *words;
    } ways[] = {{t->unstable, " is <strong>unstable</strong>"},
                {t->level, " costs <strong>nothing that shows here</strong>"},
                {t->open, " <strong>cannot be judged at this size</strong>"},
                {t->too_few, " has <strong>too few runs to judge</strong>"}};
    size_t said = 0;
    if (t->worse) {
        write_range(s, t);
        write_forms(s, t, t->worse, &said);
    }
    if (t->better) {
        fputs(joint(t, t->better, said), s->out);
        write_gain(s, t->best);
        fputs(t->better > 1 ? " at most" : "", s->out);
        write_forms(s, t, t->better, &said);
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (ways[i].count) {
            fprintf(s->out, "%s%s", joint(t, ways[i].count, said), ways[i].words);
            write_forms(s, t, ways[i].count, &said);
        }
}

/* A kind in all its forms. False: there is none. */
static bool say_kind(sentence *s, const char *subject, sr_kind *kind) {
    const stats t = take_stats(s->cell, kind);
    if (t.all == 1)
        say(s, subject, first_of(s->cell, kind));
    if (t.all < 2)
        return t.all == 1;
    begin(s, subject);
    write_ways(s, &t);
    return true;
}

/* The lowest order from which on all tried orders keep up. */
static void write_orders(sentence *s) {
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

/* "2 are better", "1 is worse": a part of a count, after a comma if it is not the first. */
static void write_part(sentence *s, size_t count, const char *one, const char *many, bool *first) {
    if (!count)
        return;
    fprintf(s->out, "%s<strong>%zu</strong> %s", *first ? "" : ", ", count, count > 1 ? many : one);
    *first = false;
}

static void write_parts(sentence *s, const stats *t) {
    bool first = true;
    write_part(s, t->better, "is better than the baseline", "are better than the baseline", &first);
    write_part(s, t->level, "keeps up with the baseline", "keep up with the baseline", &first);
    write_part(s, t->worse, "is worse", "are worse", &first);
    write_part(s, t->unstable, "is unstable", "are unstable", &first);
    write_part(s, t->open, "cannot be judged at this size", "cannot be judged at this size",
               &first);
    write_part(s, t->too_few, "has too few runs to judge", "have too few runs to judge", &first);
}

/* One of the related systems, as it is or changed. */
static bool is_system(const sr_entry *entry) {
    const sr_system *system = sr_system_of(entry->variant->attention);
    return system && *system->chooses;
}

/* On related systems: their results, and which of the good ones has the smallest memory of the
 * past. */
static void write_systems(sentence *s) {
    const sr_entry *least = NULL;
    stats t = {0};
    for (size_t i = 0; i < s->cell->count; i++) {
        const sr_entry *entry = s->cell->ranked[i];
        if (!is_system(entry) || !sr_entry_compared(entry))
            continue;
        count_entry(&t, s->cell, entry);
        if (entry->effect != SR_EFFECT_BETTER &&
            (entry->effect != SR_EFFECT_UNCLEAR || !sr_cell_keeps_up(s->cell, entry)))
            continue;
        if (!least || sr_entry_memory(entry) < sr_entry_memory(least))
            least = entry;
    }
    if (t.all < 2)
        return;
    begin(s, "of ");
    fprintf(s->out, "%zu systems, ", t.all);
    write_parts(s, &t);
    if (!least || !(s->cell->length > 0))
        return;
    fputs("; of those that are better or keep up, ", s->out);
    sr_escape_html(s->out, least->variant->name);
    fprintf(s->out,
            " keeps least of the past: <strong>%s</strong> a token of context, the baseline %s",
            sr_format_bytes(sr_entry_memory(least) / s->cell->length).text,
            sr_format_bytes(sr_entry_memory(s->cell->baseline) / s->cell->length).text);
}

/* ---- the winner */

/* The entry with the best mean, if nothing can be compared; NULL: none has a result. */
static const sr_entry *best_mean(const sr_cell_record *cell) {
    const sr_entry *best = NULL;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_entry *entry = cell->ranked[i];
        const bool less =
            best && (cell->accuracy ? entry->mean > best->mean : entry->mean < best->mean);
        if (isfinite(entry->mean) && entry->effect != SR_EFFECT_UNSTABLE && (!best || less))
            best = entry;
    }
    return best;
}

static void say_nothing_compared(sentence *s) {
    const sr_entry *best = best_mean(s->cell);
    begin(s,
          s->cell->baseline && isfinite(s->cell->baseline->mean)
              ? "there is nothing to compare yet"
              : "nothing can be compared, since the baseline has no run that ended with a number");
    if (!best || best->effect == SR_EFFECT_BASELINE)
        return;
    begin(s, "of what has finished, ");
    sr_escape_html(s->out, best->variant->name);
    fprintf(s->out, " ends best, at %s", sr_format_fixed(best->mean, 4).text);
}

/* Without intervals: the best mean, without a judgement. */
static void write_too_few(sentence *s, const stats *t) {
    const sr_entry *first = s->cell->ranked[0];
    begin(s, "there are <strong>too few runs to judge</strong> ");
    fprintf(s->out, t->all == 1 ? "the variant" : "any of %zu variants", t->all);
    begin(s, "so far ");
    if (!(sr_entry_cost(first).mean < 0)) { /* the baseline, or as good */
        fputs("none is ahead of the baseline ", s->out);
        sr_escape_html(s->out, s->cell->baseline->variant->name);
    } else {
        sr_escape_html(s->out, first->variant->name);
        fprintf(s->out, " is ahead, by %s%s", sr_format_size(sr_entry_cost(first).mean).text,
                unit_of(first));
    }
}

/* True if the second may be as good as the best: their intervals have a part in common. */
static bool is_tie(const stats *t) {
    return t->second && t->best->of_accuracy == t->second->of_accuracy &&
           sr_entry_cost(t->second).low <= sr_entry_cost(t->best).high;
}

static void say_best(sentence *s, const stats *t) {
    const bool tie = is_tie(t);
    begin(s, tie ? "the variant ahead is <strong>" : "the best variant is <strong>");
    sr_escape_html(s->out, t->best->variant->name);
    fputs("</strong>: it", s->out);
    write_gain(s, t->best);
    fputs(" over ", s->out);
    sr_escape_html(s->out, s->cell->baseline->variant->name);
    if (tie) {
        fputs(", which is not shown to be more than ", s->out);
        sr_escape_html(s->out, t->second->variant->name);
        fputs(" gains", s->out);
    }
    if (t->better > 1)
        fprintf(s->out, ", and %zu more %s better, too", t->better - 1,
                t->better > 2 ? "are" : "is");
}

/* No variant with an interval is better than the baseline. */
static void write_none(sentence *s, const stats *t) {
    const size_t judged = t->all - t->too_few;
    begin(s, "<strong>");
    if (judged == 1)
        fputs("No variant", s->out);
    else
        fprintf(s->out, "None of the %zu variants%s", judged,
                t->too_few ? " with enough runs" : "");
    fputs(" is shown to be better than ", s->out);
    sr_escape_html(s->out, s->cell->baseline->variant->name);
    fputs("</strong>", s->out);
    if (t->too_few)
        fprintf(s->out, ", and %zu %s too few runs to judge", t->too_few,
                t->too_few > 1 ? "have" : "has");
}

/* The first sentence, with the best variant. False: nothing more to report. */
static bool write_winner(sentence *s) {
    const stats t = take_stats(s->cell, NULL);
    const bool judged = t.all > t.too_few;
    if (t.all == 0 || !s->cell->baseline)
        say_nothing_compared(s);
    else if (!judged)
        write_too_few(s, &t);
    else if (t.best)
        say_best(s, &t);
    else
        write_none(s, &t);
    return judged;
}

/* ---- the rest */

/* Up to this many variants are named individually. */
enum { FEW = 4 };

/* Every variant that was not named as the winner. */
static void write_each(sentence *s, const sr_entry *winner) {
    for (size_t i = 0; i < s->cell->count; i++)
        if (sr_entry_compared(s->cell->ranked[i]) && s->cell->ranked[i] != winner)
            say_name(s, s->cell->ranked[i]);
}

/* The last one of the ranking. */
static void write_last(sentence *s, const sr_entry *winner) {
    const sr_entry *last = NULL;
    for (size_t i = 0; i < s->cell->count; i++)
        if (sr_entry_judged(s->cell->ranked[i]))
            last = s->cell->ranked[i];
    if (last && last != winner)
        say_name(s, last);
}

static void say_kinds(sentence *s) {
    const bool dropped = say_kind(s, "dropping the denominator", sr_kind_unbounded);
    say_kind(s, dropped ? "a norm in its place" : "a norm in place of the denominator",
             sr_kind_normed);
    say_kind(s, "linear attention", sr_kind_linear);
    write_orders(s);
}

static bool has_one_seed(const sr_cell_record *cell) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].runs > 1)
            return false;
    return true;
}

/* Details: each variant if they are few; the paper's kinds if the study is about them; else the
 * systems; else the last. */
static void write_details(sentence *s, bool of_paper) {
    const stats t = take_stats(s->cell, NULL);
    if (t.all <= FEW) {
        write_each(s, t.best);
        return;
    }
    if (of_paper && sr_cell_has_softmax(s->cell))
        say_kinds(s);
    if (s->parts == 0)
        write_systems(s);
    if (s->parts == 0)
        write_last(s, t.best);
}

static void write_sentence(FILE *out, const sr_cell_record *cell, bool of_paper) {
    sentence s = {out, cell, 0};
    fputs("<p class=\"headline\"><span class=\"task\">", out);
    sr_escape_html(out, cell->title);
    fputs(":</span> ", out);
    if (write_winner(&s)) {
        fputs(". ", out);
        s.parts = 0;
        write_details(&s, of_paper);
        fputs(has_one_seed(cell) ? s.parts ? " (of one seed: another may say otherwise)."
                                           : "Of one seed: another may say otherwise."
              : s.parts          ? "."
                                 : "",
              out);
    } else {
        putc('.', out);
    }
    fputs("</p>\n", out);
}

/* The first task of each measure, in all its sizes. */
void sr_headline_write(FILE *out, const sr_records *records) {
    enum { SENTENCES = 4 };
    const bool of_paper = sr_study_is_about_paper(records);
    const char *tasks[2] = {NULL, NULL};
    size_t said = 0;
    for (size_t i = 0; i < records->cell_count && said < SENTENCES; i++) {
        const sr_cell_record *cell = &records->cells[i];
        const char **task = &tasks[cell->accuracy];
        *task = *task ? *task : cell->task;
        if (!cell->leads || strcmp(*task, cell->task) != 0)
            continue;
        write_sentence(out, cell, of_paper);
        said++;
    }
}
