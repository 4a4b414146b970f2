/* summary.c: the records of a study's runs -> statistics. */
#include "study/results/summary.h"

#include "study/results/shrinkage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *sr_verdict_name(sr_verdict verdict) {
    switch (verdict) {
    case SR_VERDICT_UNCLEAR:
        return "unclear";
    case SR_VERDICT_BETTER:
        return "better";
    case SR_VERDICT_WORSE:
        return "worse";
    case SR_VERDICT_UNSTABLE:
        return "unstable";
    }
    return "";
}

/* What a summary is made from. */
typedef struct maker {
    const sr_study *study;
    const sr_record *records; /* (study->run_count) */
} maker;

static srnn_status numbers(void *out, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the statistics");
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

static bool in_cell(const maker *m, const sr_summary_cell *cell, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    return r->task == cell->task && (!m->study->size_count || r->size == cell->size) &&
           r->settings.learning_rate == cell->learning_rate;
}

static bool finished(const maker *m, size_t run) {
    return m->records[run].result.ending == SR_ENDING_FINISHED;
}

static double value_of(sr_measure measure, const sr_record *record) {
    switch (measure) {
    case SR_MEASURE_LOSS:
        return record->last_loss;
    case SR_MEASURE_ACCURACY:
        return record->last_accuracy;
    }
    return NAN;
}

static double measure_of(const sr_summary_cell *cell, const sr_record *record) {
    return value_of(cell->measure, record);
}

/* The finished run of a variant and seed in a cell; NULL if there is none. */
static const sr_record *record_of(const maker *m, const sr_summary_cell *cell, size_t variant,
                                  int64_t seed) {
    for (size_t i = 0; i < m->study->run_count; i++)
        if (in_cell(m, cell, i) && m->study->runs[i].variant == variant &&
            m->study->runs[i].settings.seed == seed && finished(m, i))
            return &m->records[i];
    return NULL;
}

/* ---- spreads */

/* Over the values that are finite: a run may end without a number. */
static srnn_status finish_spread(sr_spread *spread, size_t count) {
    double *finite = NULL;
    SR_TRY(numbers(&finite, count, sizeof *finite));
    for (size_t i = 0; i < count; i++)
        if (isfinite(spread->values[i]))
            finite[spread->count++] = spread->values[i];
    spread->mean = sr_mean(finite, spread->count);
    spread->standard_deviation = sr_standard_deviation(finite, spread->count);
    free(finite);
    return SRNN_OK;
}

static void add_finished(sr_summary_variant *v, const sr_study_run *run, const sr_record *record) {
    const double n = (double)v->finished;
    v->seeds[v->finished] = run->settings.seed;
    v->loss.values[v->finished] = record->last_loss;
    v->best_loss.values[v->finished] = record->best_loss;
    v->accuracy.values[v->finished] = record->last_accuracy;
    v->tokens_per_second = (n * v->tokens_per_second + record->tokens_per_second) / (n + 1);
    v->memory_bytes = (n * v->memory_bytes + record->result.memory_bytes) / (n + 1);
    v->finished++;
}

static srnn_status fill_variant(sr_summary_variant *v, const maker *m,
                                const sr_summary_cell *cell) {
    const size_t seeds = m->study->seed_count;
    SR_TRY(numbers(&v->seeds, seeds, sizeof *v->seeds));
    SR_TRY(numbers(&v->loss.values, seeds, sizeof *v->loss.values));
    SR_TRY(numbers(&v->best_loss.values, seeds, sizeof *v->loss.values));
    SR_TRY(numbers(&v->accuracy.values, seeds, sizeof *v->loss.values));
    for (size_t i = 0; i < m->study->run_count; i++) {
        const sr_study_run *run = &m->study->runs[i];
        const sr_record *record = &m->records[i];
        if (!in_cell(m, cell, i) || run->variant != v->variant)
            continue;
        v->runs++;
        v->diverged += record->result.ending == SR_ENDING_DIVERGED;
        v->failed += record->result.ending == SR_ENDING_FAILED;
        v->skipped += record->skipped;
        v->parameters = (double)run->parameters;
        v->state_bytes = run->state_bytes;
        v->cache_bytes = run->cache_bytes;
        if (!finished(m, i))
            continue;
        v->not_finite += !isfinite(record->last_loss) || !isfinite(measure_of(cell, record));
        add_finished(v, run, record);
    }
    if (!v->finished)
        v->tokens_per_second = v->memory_bytes = NAN;
    SR_TRY(finish_spread(&v->loss, v->finished));
    SR_TRY(finish_spread(&v->best_loss, v->finished));
    return finish_spread(&v->accuracy, v->finished);
}

/* ---- differences */

/* Of one seed that is planned the loss is compared, batch by batch: there is no other scatter to
 * judge a difference by. */
static srnn_status find_pairs(sr_summary_variant *v, const maker *m, const sr_summary_cell *cell) {
    sr_difference *d = &v->difference;
    const size_t seeds = m->study->seed_count;
    d->of = v->runs == 1 ? SR_MEASURE_LOSS : cell->measure;
    SR_TRY(numbers(&d->seeds, seeds, sizeof *d->seeds));
    SR_TRY(numbers(&d->differences, seeds, sizeof *d->differences));
    for (size_t s = 0; s < seeds; s++) {
        const int64_t seed = m->study->seeds[s];
        const sr_record *own = record_of(m, cell, v->variant, seed);
        const sr_record *base = record_of(m, cell, m->study->baseline, seed);
        const double difference = own && base ? value_of(d->of, own) - value_of(d->of, base) : NAN;
        if (!isfinite(difference))
            continue;
        d->seeds[d->pairs] = seed;
        d->differences[d->pairs++] = difference;
    }
    return SRNN_OK;
}

/* Differences of two runs' last validation, batch by batch. */
static srnn_status compare_batches(sr_interval *interval, const sr_record *own,
                                   const sr_record *base) {
    double *differences = NULL;
    size_t count = 0;
    SR_TRY(numbers(&differences, own->batches, sizeof *differences));
    for (size_t i = 0; own->batches == base->batches && i < own->batches; i++)
        if (isfinite(own->batch_losses[i] - base->batch_losses[i]))
            differences[count++] = own->batch_losses[i] - base->batch_losses[i];
    *interval = sr_interval_of(differences, count, SR_CONFIDENCE);
    free(differences);
    return SRNN_OK;
}

/* What the pairs of all variants say of the scatter of one. */
static srnn_status find_prior(sr_prior *prior, const maker *m, const sr_summary_cell *cell) {
    const size_t seeds = m->study->seed_count;
    double *table = NULL; /* (variants, seeds) */
    SR_TRY(numbers(&table, cell->count * seeds, sizeof *table));
    for (size_t v = 0; v < cell->count; v++) {
        const sr_difference *d = &cell->variants[v].difference;
        double *row = table + v * seeds;
        for (size_t s = 0; s < seeds; s++)
            row[s] = NAN;
        for (size_t i = 0; i < d->pairs && cell->variants[v].variant != m->study->baseline; i++)
            for (size_t s = 0; s < seeds; s++)
                if (m->study->seeds[s] == d->seeds[i])
                    row[s] = d->differences[i];
    }
    *prior = sr_prior_of(table, cell->count, seeds);
    free(table);
    return SRNN_OK;
}

static srnn_status find_interval(sr_summary_variant *v, const maker *m, const sr_summary_cell *cell,
                                 const sr_prior *prior) {
    sr_difference *d = &v->difference;
    d->own = sr_interval_of(d->differences, d->pairs, SR_CONFIDENCE);
    d->interval = d->own;
    d->method = d->pairs > 1 ? "seeds" : "none";
    if (d->pairs > 1 && prior->degrees > 0) {
        d->interval = sr_interval_moderated(d->differences, d->pairs, prior, SR_CONFIDENCE);
        d->method = "moderated";
    } else if (d->pairs == 1 && v->runs == 1) {
        SR_TRY(compare_batches(&d->interval, record_of(m, cell, v->variant, d->seeds[0]),
                               record_of(m, cell, m->study->baseline, d->seeds[0])));
        d->method = d->interval.degrees > 0 ? "batches" : "none";
    }
    return SRNN_OK;
}

/* The one place where it is decided what a difference says. */
static sr_verdict judge(const sr_summary_variant *v) {
    const sr_difference *d = &v->difference;
    if (v->diverged || v->not_finite)
        return SR_VERDICT_UNSTABLE;
    if (!(d->interval.degrees > 0) || !sr_interval_decides(&d->interval))
        return SR_VERDICT_UNCLEAR;
    return (d->interval.mean > 0) == (d->of == SR_MEASURE_ACCURACY) ? SR_VERDICT_BETTER
                                                                    : SR_VERDICT_WORSE;
}

static srnn_status fill_differences(sr_summary_cell *cell, const maker *m) {
    sr_prior prior;
    for (size_t v = 0; v < cell->count; v++)
        SR_TRY(find_pairs(&cell->variants[v], m, cell));
    SR_TRY(find_prior(&prior, m, cell));
    for (size_t v = 0; v < cell->count; v++) {
        SR_TRY(find_interval(&cell->variants[v], m, cell, &prior));
        cell->variants[v].difference.verdict = judge(&cell->variants[v]);
    }
    return SRNN_OK;
}

/* ---- cells */

static srnn_status fill_cell(sr_summary_cell *cell, const maker *m) {
    cell->noise = NAN;
    cell->measure = m->study->tasks[cell->task].measure;
    SR_TRY(numbers(&cell->variants, m->study->variant_count, sizeof *cell->variants));
    for (size_t v = 0; v < m->study->variant_count; v++) {
        bool there = false;
        for (size_t i = 0; i < m->study->run_count && !there; i++)
            there = in_cell(m, cell, i) && m->study->runs[i].variant == v;
        if (!there)
            continue;
        sr_summary_variant *added = &cell->variants[cell->count++];
        added->variant = v;
        SR_TRY(fill_variant(added, m, cell));
        const sr_spread *spread =
            cell->measure == SR_MEASURE_LOSS ? &added->loss : &added->accuracy;
        if (v == m->study->baseline) {
            cell->noise = spread->standard_deviation;
            cell->noise_seeds = spread->count;
        }
    }
    return fill_differences(cell, m);
}

static srnn_status add_cell(sr_summary *summary, const maker *m, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    for (size_t i = 0; i < summary->count; i++)
        if (in_cell(m, &summary->cells[i], run))
            return SRNN_OK;
    sr_summary_cell *cell = &summary->cells[summary->count++];
    *cell = (sr_summary_cell){
        .task = r->task, .size = r->size, .learning_rate = r->settings.learning_rate};
    return fill_cell(cell, m);
}

static void count_endings(sr_summary *summary, const maker *m) {
    for (size_t i = 0; i < m->study->run_count; i++)
        switch (m->records[i].result.ending) {
        case SR_ENDING_NONE:
            summary->missing++;
            break;
        case SR_ENDING_FINISHED:
            summary->finished++;
            break;
        case SR_ENDING_DIVERGED:
            summary->diverged++;
            break;
        case SR_ENDING_FAILED:
            summary->failed++;
            break;
        }
}

srnn_status sr_summary_make(sr_summary *summary, const sr_study *study, const sr_record *records) {
    const maker m = {study, records};
    *summary = (sr_summary){0};
    SR_TRY(numbers(&summary->cells, study->run_count, sizeof *summary->cells));
    count_endings(summary, &m);
    for (size_t i = 0; i < study->run_count; i++)
        SR_TRY(add_cell(summary, &m, i));
    return SRNN_OK;
}

void sr_summary_free(sr_summary *summary) {
    for (size_t c = 0; c < summary->count; c++) {
        for (size_t v = 0; v < summary->cells[c].count; v++) {
            sr_summary_variant *variant = &summary->cells[c].variants[v];
            free(variant->seeds);
            free(variant->loss.values);
            free(variant->best_loss.values);
            free(variant->accuracy.values);
            free(variant->difference.seeds);
            free(variant->difference.differences);
        }
        free(summary->cells[c].variants);
    }
    free(summary->cells);
    *summary = (sr_summary){0};
}
