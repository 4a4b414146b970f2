/* summary.c: computes statistics from the records of a study's runs. */
#include "study/results/summary.h"

#include "study/results/shrinkage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *sr_verdict_name(sr_verdict verdict) {
    switch (verdict) {
    case SR_VERDICT_TOO_FEW:
        return "too few";
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

/* The inputs of a summary. */
typedef struct maker {
    const sr_study *study;
    const sr_record *records; /* (study->run_count) */
    const bool *requested;    /* (study->run_count); NULL: all of them */
} maker;

static srnn_status numbers(void *out, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the statistics");
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

/* A run that was not requested counts once it has ended. */
static bool counts(const maker *m, size_t run) {
    return !m->requested || m->requested[run] || m->records[run].result.ending != SR_ENDING_NONE;
}

/* With tuned rates each variant has its own, within one cell; so have students and their
 * controls. */
static bool own_rates(const sr_study *study) {
    return study->tune_count || study->teacher.wanted;
}

/* True if the run has the cell's task and size, and the learning rate. */
static bool in_cell(const maker *m, const sr_summary_cell *cell, double rate, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    return r->task == cell->task && (!m->study->size_count || r->size == cell->size) &&
           (own_rates(m->study) || r->settings.learning_rate == rate) && counts(m, run);
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

/* The finished run of a seed; NULL if there is none, or no such variant. */
static const sr_record *record_of(const maker *m, const sr_summary_cell *cell,
                                  const sr_summary_variant *v, int64_t seed) {
    for (size_t i = 0; v && i < m->study->run_count; i++)
        if (m->study->runs[i].variant == v->variant && in_cell(m, cell, v->learning_rate, i) &&
            m->study->runs[i].settings.seed == seed && finished(m, i))
            return &m->records[i];
    return NULL;
}

/* ---- spreads */

/* Over the finite values: a run may end without a result. */
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
        if (run->variant != v->variant || !in_cell(m, cell, v->learning_rate, i))
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

static const sr_summary_variant *baseline_of(const maker *m, const sr_summary_cell *cell) {
    for (size_t v = 0; v < cell->count; v++)
        if (cell->variants[v].variant == m->study->baseline)
            return &cell->variants[v];
    return NULL;
}

/* With one seed there is no scatter over seeds, and losses are compared batch by batch. Decided for
 * the whole cell: differences of loss and of accuracy cannot be ranked together. */
static bool plans_one_seed(const sr_summary_cell *cell) {
    for (size_t v = 0; v < cell->count; v++)
        if (cell->variants[v].runs > 1)
            return false;
    return true;
}

static srnn_status find_pairs(sr_summary_variant *v, const maker *m, const sr_summary_cell *cell) {
    sr_difference *d = &v->difference;
    const size_t seeds = m->study->seed_count;
    const sr_summary_variant *baseline = baseline_of(m, cell);
    d->of = plans_one_seed(cell) ? SR_MEASURE_LOSS : cell->measure;
    SR_TRY(numbers(&d->seeds, seeds, sizeof *d->seeds));
    SR_TRY(numbers(&d->differences, seeds, sizeof *d->differences));
    for (size_t s = 0; s < seeds; s++) {
        const int64_t seed = m->study->seeds[s];
        const sr_record *own = record_of(m, cell, v, seed);
        const sr_record *base = record_of(m, cell, baseline, seed);
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

/* The prior of a variant's variance, from the pairs of all variants. */
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

/* If an interval is examined after every seed from the second on and may end the comparison, it
 * must hold at all of them: the error probability is divided among them. */
static double confidence_of(const sr_study *study) {
    const double looks = study->settle > 0 ? (double)study->seed_count - 1 : 1;
    return 1 - (1 - SR_CONFIDENCE) / looks;
}

bool sr_difference_settled(const sr_difference *d, double margin) {
    switch (d->verdict) {
    case SR_VERDICT_TOO_FEW:
        return false;
    case SR_VERDICT_UNCLEAR:
        return d->interval.low > -margin && d->interval.high < margin;
    case SR_VERDICT_BETTER:
    case SR_VERDICT_WORSE:
    case SR_VERDICT_UNSTABLE:
        return true;
    }
    return false;
}

static srnn_status find_interval(sr_summary_variant *v, const maker *m, const sr_summary_cell *cell,
                                 const sr_prior *prior) {
    sr_difference *d = &v->difference;
    const double confidence = confidence_of(m->study);
    d->own = sr_interval_of(d->differences, d->pairs, confidence);
    d->interval = d->own;
    d->method = d->pairs > 1 ? "seeds" : "none";
    if (d->pairs > 1 && m->study->settle > 0) {
        /* only its own scatter: a shrunk variance is right only on average */
        d->interval = sr_interval_shrunk(d->differences, d->pairs, &(sr_prior){0}, confidence);
        d->method = "sequential";
    } else if (d->pairs > 1 && prior->degrees > 0) {
        d->interval = sr_interval_shrunk(d->differences, d->pairs, prior, confidence);
        d->method = "moderated";
    } else if (d->pairs == 1 && plans_one_seed(cell)) {
        SR_TRY(compare_batches(&d->interval, record_of(m, cell, v, d->seeds[0]),
                               record_of(m, cell, baseline_of(m, cell), d->seeds[0])));
        d->method = d->interval.degrees > 0 ? "batches" : "none";
    }
    return SRNN_OK;
}

/* The only place that derives a verdict from a difference. */
static sr_verdict judge(const sr_summary_variant *v) {
    const sr_difference *d = &v->difference;
    if (v->diverged || v->not_finite)
        return SR_VERDICT_UNSTABLE;
    if (!(d->interval.degrees > 0))
        return SR_VERDICT_TOO_FEW;
    if (!sr_interval_decides(&d->interval))
        return SR_VERDICT_UNCLEAR;
    return (d->interval.mean > 0) == (d->of == SR_MEASURE_ACCURACY) ? SR_VERDICT_BETTER
                                                                    : SR_VERDICT_WORSE;
}

/* ---- speeds */

/* The average number of other runs of the study on the same machine while a run was running. */
static double company_of(const maker *m, size_t run) {
    const sr_result *own = &m->records[run].result;
    double shared = 0;
    for (size_t i = 0; i < m->study->run_count; i++) {
        const sr_result *other = &m->records[i].result;
        if (i != run && other->ended > other->started && strcmp(other->host, own->host) == 0)
            shared += fmax(0, fmin(own->ended, other->ended) - fmax(own->started, other->started));
    }
    return shared / (own->ended - own->started);
}

/* The conditions under which the finished runs of a variant ran. */
typedef struct conditions {
    const char *host; /* NULL: unknown; "": several */
    int threads;      /* 0: different numbers */
    double company;   /* mean */
} conditions;

static conditions conditions_of(const maker *m, const sr_summary_cell *cell,
                                const sr_summary_variant *v) {
    conditions c = {0};
    double count = 0;
    for (size_t i = 0; i < m->study->run_count; i++) {
        const sr_result *r = &m->records[i].result;
        if (m->study->runs[i].variant != v->variant || !in_cell(m, cell, v->learning_rate, i) ||
            !finished(m, i) || !*r->host || !(r->ended > r->started))
            continue;
        c.threads = !c.host || c.threads == r->threads ? r->threads : 0;
        c.host = !c.host || strcmp(c.host, r->host) == 0 ? r->host : "";
        c.company = (count * c.company + company_of(m, i)) / (count + 1);
        count++;
    }
    return c;
}

/* Tolerated difference in concurrent runs, which share cores, caches and memory. */
static const double company_margin = 0.5;

static bool is_apart(const maker *m, const sr_summary_cell *cell, const sr_summary_variant *v,
                     const sr_summary_variant *baseline) {
    if (!baseline || baseline == v)
        return false;
    const conditions own = conditions_of(m, cell, v), base = conditions_of(m, cell, baseline);
    if (!own.host || !base.host)
        return false;
    return strcmp(own.host, base.host) != 0 || !*own.host || own.threads != base.threads ||
           !own.threads || fabs(own.company - base.company) > company_margin;
}

static double more_parameters(const sr_summary_variant *v, const sr_summary_variant *baseline) {
    const double share = baseline ? v->parameters / baseline->parameters - 1 : NAN;
    return fabs(share) > SR_PARAMETER_MARGIN ? share : NAN;
}

static srnn_status fill_differences(sr_summary_cell *cell, const maker *m) {
    sr_prior prior;
    for (size_t v = 0; v < cell->count; v++)
        SR_TRY(find_pairs(&cell->variants[v], m, cell));
    SR_TRY(find_prior(&prior, m, cell));
    for (size_t v = 0; v < cell->count; v++) {
        SR_TRY(find_interval(&cell->variants[v], m, cell, &prior));
        cell->variants[v].difference.verdict = judge(&cell->variants[v]);
        cell->variants[v].apart = is_apart(m, cell, &cell->variants[v], baseline_of(m, cell));
        cell->variants[v].more_parameters =
            more_parameters(&cell->variants[v], baseline_of(m, cell));
    }
    return SRNN_OK;
}

/* ---- cells */

static const sr_spread *spread_of(const sr_summary_cell *cell, const sr_summary_variant *v) {
    return cell->measure == SR_MEASURE_LOSS ? &v->loss : &v->accuracy;
}

static srnn_status add_variant(sr_summary_cell *cell, const maker *m, size_t variant, double rate) {
    sr_summary_variant *added = &cell->variants[cell->count++];
    added->variant = variant;
    added->learning_rate = rate;
    SR_TRY(fill_variant(added, m, cell));
    if (variant == m->study->baseline) {
        cell->noise = spread_of(cell, added)->standard_deviation;
        cell->noise_seeds = spread_of(cell, added)->count;
    }
    return SRNN_OK;
}

static srnn_status begin_cell(sr_summary_cell *cell, const maker *m, const sr_summary_cell *like) {
    *cell = (sr_summary_cell){.task = like->task,
                              .size = like->size,
                              .learning_rate = like->learning_rate,
                              .measure = m->study->tasks[like->task].measure,
                              .noise = NAN};
    return numbers(&cell->variants, m->study->variant_count, sizeof *cell->variants);
}

static srnn_status fill_cell(sr_summary_cell *cell, const maker *m) {
    for (size_t v = 0; v < m->study->variant_count; v++) {
        const sr_study_run *there = NULL;
        for (size_t i = 0; i < m->study->run_count && !there; i++)
            if (m->study->runs[i].variant == v && in_cell(m, cell, cell->learning_rate, i))
                there = &m->study->runs[i];
        if (there)
            SR_TRY(add_variant(cell, m, v, there->settings.learning_rate));
    }
    return fill_differences(cell, m);
}

static srnn_status add_cell(sr_summary *summary, const maker *m, size_t run) {
    const sr_study_run *r = &m->study->runs[run];
    if (!counts(m, run))
        return SRNN_OK;
    for (size_t i = 0; i < summary->count; i++)
        if (in_cell(m, &summary->cells[i], summary->cells[i].learning_rate, run))
            return SRNN_OK;
    sr_summary_cell *cell = &summary->cells[summary->count++];
    const double rate = own_rates(m->study) ? NAN : r->settings.learning_rate;
    const sr_summary_cell of = {.task = r->task, .size = r->size, .learning_rate = rate};
    SR_TRY(begin_cell(cell, m, &of));
    return fill_cell(cell, m);
}

/* ---- every variant at its best learning rate */

static bool same_place(const maker *m, const sr_summary_cell *a, const sr_summary_cell *b) {
    return a->task == b->task && (!m->study->size_count || a->size == b->size);
}

static const sr_summary_variant *find(const sr_summary_cell *cell, size_t variant) {
    for (size_t v = 0; v < cell->count; v++)
        if (cell->variants[v].variant == variant)
            return &cell->variants[v];
    return NULL;
}

/* The sort key of variants, lower is better; unstable ones come last. */
static double rank_of(const sr_summary_cell *cell, const sr_summary_variant *v) {
    const double mean = spread_of(cell, v)->mean;
    const double rank = cell->measure == SR_MEASURE_LOSS ? mean : -mean;
    return isnan(rank) || v->diverged || v->not_finite ? INFINITY : rank;
}

/* The learning rate, among cells that differ only in it, at which the variant ends best,
 * considering only rates at which most of its seeds finished; NaN: there is none. */
static double best_rate(const sr_summary *summary, const maker *m, const sr_summary_cell *like,
                        size_t variant) {
    double rate = NAN, best = INFINITY;
    size_t most = 0;
    for (size_t i = 0; i < summary->count; i++) {
        const sr_summary_cell *cell = &summary->cells[i];
        const sr_summary_variant *v = same_place(m, cell, like) ? find(cell, variant) : NULL;
        if (!v)
            continue;
        const double rank = rank_of(cell, v);
        const size_t values = isfinite(rank) ? spread_of(cell, v)->count : 0;
        if (isnan(rate) || values > most || (values == most && rank < best)) {
            rate = cell->learning_rate;
            best = rank;
            most = values;
        }
    }
    return rate;
}

/* True if the cell is the first of several that differ only in the learning rate. */
static bool leads(const sr_summary *summary, const maker *m, size_t cell) {
    size_t others = 0;
    for (size_t i = 0; i < summary->count; i++)
        if (i != cell && same_place(m, &summary->cells[i], &summary->cells[cell])) {
            if (i < cell)
                return false;
            others++;
        }
    return others > 0;
}

static srnn_status add_best(sr_summary *summary, const maker *m, const sr_summary_cell *like) {
    sr_summary_cell *cell = &summary->best[summary->best_count++];
    SR_TRY(begin_cell(cell, m, like));
    cell->learning_rate = NAN;
    for (size_t v = 0; v < m->study->variant_count; v++) {
        const double rate = best_rate(summary, m, like, v);
        if (!isnan(rate))
            SR_TRY(add_variant(cell, m, v, rate));
    }
    return fill_differences(cell, m);
}

static void count_endings(sr_summary *summary, const maker *m) {
    for (size_t i = 0; i < m->study->run_count; i++)
        switch (m->records[i].result.ending) {
        case SR_ENDING_NONE:
            summary->missing += counts(m, i);
            summary->left_out += !counts(m, i);
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

srnn_status sr_summary_make(sr_summary *summary, const sr_study *study, const sr_record *records,
                            const bool *requested) {
    const maker m = {study, records, requested};
    *summary = (sr_summary){0};
    SR_TRY(numbers(&summary->cells, study->run_count, sizeof *summary->cells));
    SR_TRY(numbers(&summary->best, study->run_count, sizeof *summary->best));
    count_endings(summary, &m);
    for (size_t i = 0; i < study->run_count; i++)
        SR_TRY(add_cell(summary, &m, i));
    for (size_t i = 0; i < summary->count; i++)
        if (leads(summary, &m, i))
            SR_TRY(add_best(summary, &m, &summary->cells[i]));
    return SRNN_OK;
}

static void free_cells(sr_summary_cell *cells, size_t count) {
    for (size_t c = 0; c < count; c++) {
        for (size_t v = 0; v < cells[c].count; v++) {
            sr_summary_variant *variant = &cells[c].variants[v];
            free(variant->seeds);
            free(variant->loss.values);
            free(variant->best_loss.values);
            free(variant->accuracy.values);
            free(variant->difference.seeds);
            free(variant->difference.differences);
        }
        free(cells[c].variants);
    }
    free(cells);
}

void sr_summary_free(sr_summary *summary) {
    free_cells(summary->cells, summary->count);
    free_cells(summary->best, summary->best_count);
    *summary = (sr_summary){0};
}
