/* summary.c: the records of a study's runs -> statistics. */
#include "study/summary.h"

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

static bool in_cell(const maker *m, const sr_cell *cell, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    return r->task == cell->task && (!m->study->size_count || r->size == cell->size) &&
           r->settings.learning_rate == cell->learning_rate;
}

static bool finished(const maker *m, size_t run) {
    return m->records[run].result.ending == SR_ENDING_FINISHED;
}

static double measure_of(const sr_cell *cell, const sr_record *record) {
    switch (cell->measure) {
    case SR_MEASURE_LOSS:
        return record->last_loss;
    case SR_MEASURE_ACCURACY:
        return record->last_accuracy;
    }
    return NAN;
}

/* The finished run of a variant and seed in a cell; NULL if there is none. */
static const sr_record *record_of(const maker *m, const sr_cell *cell, size_t variant,
                                  int64_t seed) {
    for (size_t i = 0; i < m->study->run_count; i++)
        if (in_cell(m, cell, i) && m->study->runs[i].variant == variant &&
            m->study->runs[i].settings.seed == seed && finished(m, i))
            return &m->records[i];
    return NULL;
}

/* ---- spreads */

static void finish_spread(sr_spread *spread, size_t count) {
    spread->mean = sr_mean(spread->values, count);
    spread->standard_deviation = sr_standard_deviation(spread->values, count);
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

static srnn_status fill_variant(sr_summary_variant *v, const maker *m, const sr_cell *cell) {
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
        if (finished(m, i))
            add_finished(v, run, record);
    }
    if (!v->finished)
        v->tokens_per_second = v->memory_bytes = NAN;
    finish_spread(&v->loss, v->finished);
    finish_spread(&v->best_loss, v->finished);
    finish_spread(&v->accuracy, v->finished);
    return SRNN_OK;
}

/* ---- differences */

/* Marks the seeds at which at least half as many variants finished as at the best one: a study that
 * was stopped has few or none at its last seed. Returns how many there are. */
static size_t block_seeds(bool *chosen, const maker *m, const sr_cell *cell) {
    size_t most = 0, count = 0;
    for (int round = 0; round < 2; round++)
        for (size_t s = 0; s < m->study->seed_count; s++) {
            size_t there = 0;
            for (size_t v = 0; v < cell->count; v++)
                there += record_of(m, cell, cell->variants[v].variant, m->study->seeds[s]) != NULL;
            if (round == 0)
                most = there > most ? there : most;
            else
                count += chosen[s] = there > 0 && 2 * there >= most;
        }
    return count;
}

/* The scatter that seeds leave, over the variants that finished at all those seeds. */
static srnn_status residual(double *deviation, double *degrees, const maker *m,
                            const sr_cell *cell) {
    bool *chosen = NULL;
    double *table = NULL;
    size_t rows = 0;
    SR_TRY(numbers(&chosen, m->study->seed_count, sizeof *chosen));
    const size_t seeds = block_seeds(chosen, m, cell);
    const srnn_status status = numbers(&table, cell->count * seeds, sizeof *table);
    for (size_t v = 0; v < cell->count && status == SRNN_OK; v++) {
        bool whole = true;
        double *at = table + rows * seeds;
        for (size_t s = 0; s < m->study->seed_count; s++) {
            const sr_record *record =
                record_of(m, cell, cell->variants[v].variant, m->study->seeds[s]);
            if (!chosen[s])
                continue;
            *at = record ? measure_of(cell, record) : NAN;
            whole = whole && isfinite(*at++);
        }
        rows += whole;
    }
    if (status == SRNN_OK)
        *deviation = sr_block_residual(degrees, table, rows, seeds);
    free(chosen);
    free(table);
    return status;
}

/* Differences of two runs batch by batch; how many there are. */
static size_t batch_differences(double *out, const sr_record *a, const sr_record *b) {
    if (a->batches != b->batches)
        return 0;
    size_t count = 0;
    for (size_t i = 0; i < a->batches; i++)
        if (isfinite(a->batch_losses[i] - b->batch_losses[i]))
            out[count++] = a->batch_losses[i] - b->batch_losses[i];
    return count;
}

/* The differences of every pair: of the measure, and of the batches. */
typedef struct pairs {
    double *measures, *batches;
    size_t count, batch_count;
} pairs;

static srnn_status find_pairs(pairs *p, const maker *m, const sr_cell *cell, size_t variant) {
    const size_t seeds = m->study->seed_count;
    size_t most = 0;
    for (size_t i = 0; i < m->study->run_count; i++)
        most = m->records[i].batches > most ? m->records[i].batches : most;
    SR_TRY(numbers(&p->measures, seeds, sizeof *p->measures));
    SR_TRY(numbers(&p->batches, seeds * most, sizeof *p->batches));
    for (size_t s = 0; s < seeds; s++) {
        const int64_t seed = m->study->seeds[s];
        const sr_record *own = record_of(m, cell, variant, seed);
        const sr_record *base = record_of(m, cell, m->study->baseline, seed);
        if (!own || !base || !isfinite(measure_of(cell, own) - measure_of(cell, base)))
            continue;
        p->measures[p->count++] = measure_of(cell, own) - measure_of(cell, base);
        p->batch_count += batch_differences(p->batches + p->batch_count, own, base);
    }
    return SRNN_OK;
}

static void judge(sr_difference *d, sr_measure measure) {
    d->used = NULL;
    d->method = "none";
    if (d->pooled.degrees > 0) {
        d->used = &d->pooled;
        d->method = "pooled";
    } else if (d->seeds.degrees > 0) {
        d->used = &d->seeds;
        d->method = "seeds";
    } else if (d->batches.degrees > 0) {
        d->used = &d->batches;
        d->method = "batches";
        measure = SR_MEASURE_LOSS;
    }
    d->verdict = SR_VERDICT_UNCLEAR;
    if (d->used && sr_interval_decides(d->used))
        d->verdict = (d->used->mean > 0) == (measure == SR_MEASURE_ACCURACY) ? SR_VERDICT_BETTER
                                                                             : SR_VERDICT_WORSE;
}

static srnn_status fill_difference(sr_summary_variant *v, const maker *m, const sr_cell *cell,
                                   double deviation, double degrees) {
    sr_difference *d = &v->difference;
    pairs p = {0};
    const srnn_status status = find_pairs(&p, m, cell, v->variant);
    if (status == SRNN_OK) {
        d->pairs = p.count;
        d->seeds = sr_interval_of(p.measures, p.count, SR_CONFIDENCE);
        d->pooled = sr_interval_pooled(p.measures, p.count, deviation, degrees, SR_CONFIDENCE);
        d->batches = sr_interval_of(p.batches, p.batch_count, SR_CONFIDENCE);
        judge(d, cell->measure);
    }
    free(p.measures);
    free(p.batches);
    return status;
}

/* ---- cells */

static srnn_status fill_cell(sr_cell *cell, const maker *m) {
    double deviation = NAN, degrees = 0;
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
            cell->noise_seeds = added->finished;
        }
    }
    SR_TRY(residual(&deviation, &degrees, m, cell));
    for (size_t v = 0; v < cell->count; v++)
        SR_TRY(fill_difference(&cell->variants[v], m, cell, deviation, degrees));
    return SRNN_OK;
}

static srnn_status add_cell(sr_summary *summary, const maker *m, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    for (size_t i = 0; i < summary->count; i++)
        if (in_cell(m, &summary->cells[i], run))
            return SRNN_OK;
    sr_cell *cell = &summary->cells[summary->count++];
    *cell = (sr_cell){.task = r->task, .size = r->size, .learning_rate = r->settings.learning_rate};
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
        }
        free(summary->cells[c].variants);
    }
    free(summary->cells);
    *summary = (sr_summary){0};
}
