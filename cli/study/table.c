/* table.c: a study's plan and its results as tables of text. */
#include "cli/study/table.h"

#include "base/units.h"

#include "cli/line/columns.h"
#include "study/execute/tune.h"
#include "study/results/power.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Training FLOP/s a core reaches on models as small as a study's; measured with the default
 * study. */
static const double typical_rate = 3e10;

void study_table_plan(const sr_study *study, const sr_study_options *options) {
    double tokens = 0, flops = 0;
    size_t count = 0;
    int jobs, threads;
    char time[SR_TIME_WORDS];
    printf("%-40s %8s %11s %12s %10s %9s\n", "run", "steps", "parameters", "tokens", "GFLOP",
           "state");
    for (size_t i = 0; i < study->run_count; i++) {
        const sr_study_run *run = &study->runs[i];
        char state[SR_BYTES_WORDS];
        if (!sr_study_selects(study, options, run))
            continue;
        printf("%-40s %8lld %11zu %12.0f %10.0f %9s\n", run->id, (long long)run->steps,
               run->parameters, run->tokens, run->flops / 1e9,
               sr_bytes_words(state, run->state_bytes));
        tokens += run->tokens;
        flops += run->flops;
        count++;
    }
    sr_study_shares(&jobs, &threads, options->jobs);
    const double seconds = flops / (typical_rate * jobs * threads);
    printf("\n%zu runs, %.3g tokens, %.3g FLOP; %d at a time with %d thread%s each: about %s "
           "at %.0f GFLOP/s per core\n",
           count, tokens, flops, jobs, threads, threads == 1 ? "" : "s",
           sr_duration_words(time, seconds), typical_rate / 1e9);
    const sr_tuning_cost tuning = sr_study_tuning_cost(study, options);
    if (tuning.runs > 0)
        printf("before them, to tune learning rates: %.0f runs, %.3g tokens, %.3g FLOP: about %s\n",
               tuning.runs, tuning.tokens, tuning.flops,
               sr_duration_words(time, tuning.flops / (typical_rate * jobs * threads)));
}

/* The sort key of variants; worst without a result. */
static double rank_of(const sr_summary_cell *cell, const sr_summary_variant *v) {
    const double value = cell->measure == SR_MEASURE_LOSS ? v->loss.mean : -v->accuracy.mean;
    return isnan(value) ? INFINITY : value;
}

typedef struct place {
    double rank;
    const sr_summary_variant *variant;
} place;

static int compare(const void *left, const void *right) {
    const place *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->variant > b->variant) - (a->variant < b->variant);
}

static void print_difference(const sr_study *study, const sr_summary_cell *cell,
                             const sr_summary_variant *v) {
    const sr_difference *d = &v->difference;
    char verdict[32], alone[32] = "no pair of runs";
    /* With one seed the loss is compared, even if accuracy is the measure. */
    snprintf(verdict, sizeof verdict, "%s%s", sr_verdict_name(d->verdict),
             d->of == cell->measure ? "" : " (loss)");
    if (d->pairs)
        snprintf(alone, sizeof alone, "%+8.4f, no interval", d->interval.mean);
    if (v->variant == study->baseline)
        printf("  %-45s", "(the baseline)");
    else if (d->interval.degrees > 0)
        printf("  %+8.4f [%+8.4f, %+8.4f] %-15s", d->interval.mean, d->interval.low,
               d->interval.high, verdict);
    else
        printf("  %-29s %-15s", alone, verdict);
}

/* Right-aligned; "-" if missing. */
static void print_number(double value, int decimals) {
    if (isfinite(value))
        printf(" %9.*f", decimals, value);
    else
        printf(" %9s", "-");
}

/* The widest name of a variant, so that none is truncated. */
static int name_width(const sr_study *study) {
    int widest = (int)strlen("variant");
    for (size_t i = 0; i < study->variant_count; i++) {
        const int width = column_width(study->variants[i].name);
        widest = width > widest ? width : widest;
    }
    return widest;
}

/* A better variant may owe it to its size. */
static void print_parameters(const sr_summary_variant *v) {
    if (v->difference.verdict == SR_VERDICT_BETTER && isfinite(v->more_parameters))
        printf("  with %.1f %% %s parameters", 100 * fabs(v->more_parameters),
               v->more_parameters > 0 ? "more" : "fewer");
}

static void print_variant(const sr_study *study, const sr_summary_cell *cell,
                          const sr_summary_variant *v) {
    char state[32], memory[32], name[1024];
    fputs(column_text(name, sizeof name, study->variants[v->variant].name, name_width(study)),
          stdout);
    print_number(v->loss.mean, 4);
    print_number(v->loss.standard_deviation, 4);
    print_number(v->best_loss.mean, 4);
    print_number(v->accuracy.mean, 4);
    print_difference(study, cell, v);
    print_number(v->tokens_per_second, 0);
    putchar(v->apart ? '*' : ' ');
    printf("%9s %9s", sr_bytes_words(memory, v->memory_bytes),
           sr_bytes_words(state, v->state_bytes));
    if (v->variant != study->baseline)
        print_parameters(v);
    if (isnan(cell->learning_rate) && !study->teacher.wanted)
        printf("  learning rate %g", v->learning_rate);
    if (v->skipped || v->diverged || v->failed || v->not_finite || v->finished < v->runs)
        printf("  %zu of %zu finished, %zu diverged, %zu failed, %zu without a finite number, "
               "%lld steps skipped",
               v->finished, v->runs, v->diverged, v->failed, v->not_finite, (long long)v->skipped);
    putchar('\n');
}

static void print_cell(const sr_study *study, const sr_summary_cell *cell) {
    place *places = malloc(cell->count * sizeof *places);
    if (!places)
        return;
    printf("\n%s", study->tasks[cell->task].name);
    if (study->size_count)
        printf(", %s", study->sizes[cell->size].name);
    if (study->tune_count)
        printf(", each variant at its tuned learning rate");
    else if (study->teacher.wanted)
        printf(", the teacher trained again, students, and the same from scratch");
    else if (isnan(cell->learning_rate))
        printf(", each variant at its best learning rate");
    else
        printf(", learning rate %g", cell->learning_rate);
    printf(": by %s", sr_measure_name(cell->measure));
    if (isfinite(cell->noise))
        printf("; seeds of the baseline scatter by %.4f", cell->noise);
    printf("\n%-*s %9s %9s %9s %9s  %-45s %9s %9s %9s\n", name_width(study), "variant", "loss",
           "+-", "best", "accuracy", "difference, 95 % interval", "tokens/s", "memory", "state");
    for (size_t i = 0; i < cell->count; i++)
        places[i] = (place){rank_of(cell, &cell->variants[i]), &cell->variants[i]};
    qsort(places, cell->count, sizeof *places, compare);
    bool apart = false;
    for (size_t i = 0; i < cell->count; i++) {
        print_variant(study, cell, places[i].variant);
        apart = apart || places[i].variant->apart;
    }
    if (apart)
        printf("* measured under other conditions than the baseline: another machine, another "
               "number\n"
               "  of threads, or more or fewer concurrent runs; these speeds cannot be compared\n");
    free(places);
}

static double most_needed(const sr_power_row *rows, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, rows[i].seeds);
    return most;
}

void study_table_power(const sr_study *study, const sr_power_row *rows, size_t count,
                       double difference) {
    const int width = name_width(study);
    char name[1024];
    printf("seeds needed to see a difference of %g, in %.0f %% of cases at %.0f %% confidence\n",
           difference, 100 * SR_POWER, 100 * SR_CONFIDENCE);
    for (size_t i = 0; i < count; i++) {
        const sr_power_row *row = &rows[i], *before = i ? row - 1 : NULL;
        if (!before || before->task != row->task || before->size != row->size ||
            (before->learning_rate != row->learning_rate && !isnan(row->learning_rate))) {
            printf("\n%s", study->tasks[row->task].name);
            if (study->size_count)
                printf(", %s", study->sizes[row->size].name);
            if (!isnan(row->learning_rate))
                printf(", learning rate %g", row->learning_rate);
            printf(": by %s\n%-*s %9s %6s %7s %9s\n", sr_measure_name(row->of), width, "variant",
                   "std. dev.", "pairs", "seeds", "at most");
        }
        fputs(column_text(name, sizeof name, study->variants[row->variant].name, width), stdout);
        printf(" %9.5f %6zu %7.0f %9.0f\n", row->deviation, row->pairs, row->seeds,
               row->seeds_most);
    }
    printf("\n%.0f seeds see it everywhere; the study has %zu. \"at most\": if the true scatter is "
           "as large as so few\n"
           "pairs allow in four cases of five.\n",
           most_needed(rows, count), study->seed_count);
}

void study_table_summary(const sr_study *study, const sr_summary *summary) {
    for (size_t i = 0; i < summary->count; i++)
        print_cell(study, &summary->cells[i]);
    for (size_t i = 0; i < summary->best_count; i++)
        print_cell(study, &summary->best[i]);
    printf("\n%zu runs: %zu finished, %zu diverged, %zu failed, %zu not ended\n",
           study->run_count - summary->left_out, summary->finished, summary->diverged,
           summary->failed, summary->missing);
    if (summary->left_out)
        printf("%zu more are planned and were not %s\n", summary->left_out,
               study->settle > 0 ? "needed, or not selected" : "selected");
    if (!study->tune_count && !study->teacher.wanted && !summary->best_count &&
        study->variant_count > 1)
        printf("untuned: all variants have one learning rate; `tune` in the study's file finds one "
               "for each\n");
}
