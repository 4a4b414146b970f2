/* power.c: the number of seeds a study needs to detect a difference. */
#include "study/execute/power.h"

#include "files/json.h"
#include "study/execute/folder.h"
#include "study/results/power.h"
#include "study/results/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add(sr_power_row *rows, size_t *count, sr_power_row row, double difference) {
    if (!(row.deviation > 0) || !(row.degrees > 0))
        return;
    row.seeds = sr_seeds_needed(row.deviation, difference, SR_CONFIDENCE, SR_POWER);
    row.seeds_most = sr_seeds_needed(sr_deviation_most(row.deviation, row.degrees), difference,
                                     SR_CONFIDENCE, SR_POWER);
    rows[(*count)++] = row;
}

/* ---- from the runs */

/* The standard deviation behind an interval over seeds. */
static double deviation_of(const sr_difference *d) {
    const double t = sr_student_t(d->interval.degrees, SR_CONFIDENCE);
    return (d->interval.high - d->interval.mean) * sqrt((double)d->pairs) / t;
}

static void add_cell(sr_power_row *rows, size_t *count, const sr_study *study,
                     const sr_summary_cell *cell, double difference) {
    for (size_t v = 0; v < cell->count; v++) {
        const sr_difference *d = &cell->variants[v].difference;
        if (cell->variants[v].variant == study->baseline || d->pairs < 2)
            continue;
        add(rows, count,
            (sr_power_row){.task = cell->task,
                           .size = cell->size,
                           .variant = cell->variants[v].variant,
                           .learning_rate = cell->learning_rate,
                           .pairs = d->pairs,
                           .deviation = deviation_of(d),
                           .degrees = d->interval.degrees,
                           .of = d->of},
            difference);
    }
}

static srnn_status read_records(sr_record *records, const sr_study *study, const char *folder) {
    for (size_t i = 0; i < study->run_count; i++) {
        char path[SR_PATH_BYTES];
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(sr_record_read(&records[i], path));
    }
    return SRNN_OK;
}

/* Intervals are recomputed from all seeds: a study that may end early has wider ones. */
static srnn_status from_runs(sr_power_row *rows, size_t *count, const sr_study *study,
                             const char *folder, double difference) {
    sr_study looked = *study;
    sr_summary summary = {0};
    sr_record *records = calloc(study->run_count, sizeof *records);
    if (!records)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the records of %zu runs", study->run_count);
    looked.settle = 0;
    srnn_status status = read_records(records, study, folder);
    if (status == SRNN_OK)
        status = sr_summary_make(&summary, &looked, records, NULL);
    for (size_t c = 0; status == SRNN_OK && c < summary.count; c++)
        add_cell(rows, count, study, &summary.cells[c], difference);
    sr_summary_free(&summary);
    for (size_t i = 0; i < study->run_count; i++)
        sr_record_free(&records[i]);
    free(records);
    return status;
}

/* ---- from tuning */

/* The losses of the last round at the rate that was chosen; NULL: there are none. */
static const json_t *last_losses(const json_t *found) {
    const json_t *losses = NULL;
    for (size_t i = 0; i < sr_json_count_of(found, "trials"); i++) {
        const json_t *trial = sr_json_element_of(found, "trials", i);
        if (sr_json_number_of(trial, "learning_rate") == sr_json_number_of(found, "learning_rate"))
            losses = json_object_get(trial, "losses");
    }
    return losses;
}

static const json_t *found_for(const json_t *root, const sr_study *study, const sr_study_run *run,
                               size_t variant) {
    const char *size = study->size_count ? study->sizes[run->size].name : "";
    for (size_t i = 0; i < sr_json_count_of(root, "rates"); i++) {
        const json_t *object = sr_json_element_of(root, "rates", i);
        if (strcmp(sr_json_text_of(object, "task"), study->tasks[run->task].name) == 0 &&
            strcmp(sr_json_text_of(object, "size"), size) == 0 &&
            strcmp(sr_json_text_of(object, "variant"), study->variants[variant].name) == 0)
            return object;
    }
    return NULL;
}

/* Rounds have the same seeds for all variants, in the same order. */
static void add_tuned(sr_power_row *rows, size_t *count, const json_t *root, const sr_study *study,
                      const sr_study_run *run, double difference) {
    enum { MOST = 64 };
    double differences[MOST];
    size_t pairs = 0;
    const json_t *own = last_losses(found_for(root, study, run, run->variant));
    const json_t *base = last_losses(found_for(root, study, run, study->baseline));
    for (size_t i = 0; i < json_array_size(own) && i < json_array_size(base) && i < MOST; i++)
        if (json_is_number(json_array_get(own, i)) && json_is_number(json_array_get(base, i)))
            differences[pairs++] = json_number_value(json_array_get(own, i)) -
                                   json_number_value(json_array_get(base, i));
    if (pairs < 2)
        return;
    add(rows, count,
        (sr_power_row){.task = run->task,
                       .size = run->size,
                       .variant = run->variant,
                       .learning_rate = NAN,
                       .pairs = pairs,
                       .deviation = sr_standard_deviation(differences, pairs),
                       .degrees = (double)pairs - 1,
                       .of = SR_MEASURE_LOSS},
        difference);
}

static srnn_status from_tuning(sr_power_row *rows, size_t *count, const sr_study *study,
                               const char *folder, double difference) {
    json_t *root;
    if (!sr_path_has(folder, "tuning.json"))
        return SRNN_OK;
    SR_TRY(sr_json_read(&root, folder, "tuning.json", "softrnn-tuning"));
    for (size_t i = 0; i < study->run_count; i++)
        if (study->runs[i].variant != study->baseline &&
            study->runs[i].settings.seed == study->seeds[0])
            add_tuned(rows, count, root, study, &study->runs[i], difference);
    json_decref(root);
    return SRNN_OK;
}

srnn_status sr_study_power(sr_power_row **rows, size_t *count, const sr_study *study,
                           const char *folder, double difference) {
    *count = 0;
    *rows = calloc(study->run_count, sizeof **rows);
    if (!*rows)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %zu runs", study->run_count);
    SR_TRY(from_runs(*rows, count, study, folder, difference));
    if (*count == 0)
        SR_TRY(from_tuning(*rows, count, study, folder, difference));
    if (*count == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: no variant has finished two of the baseline's seeds, so the scatter of "
                       "differences is unknown; run two seeds first: --only '*.%lld,*.%lld'",
                       folder, (long long)study->seeds[0],
                       (long long)study->seeds[study->seed_count > 1]);
    return SRNN_OK;
}
