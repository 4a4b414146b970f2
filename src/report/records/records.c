/* records.c: reads a study's records for the report. */
#include "report/records/records.h"

#include "base/memory.h"
#include "files/json.h"
#include "files/path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The settings that only this variant has; NULL: none. */
static const json_t *own_settings(const json_t *variant) {
    const json_t *settings = sr_json_object_of(variant, "settings");
    return json_object_size(settings) ? settings : NULL;
}

bool sr_variant_same_settings(const sr_variant_record *a, const sr_variant_record *b) {
    return a->settings == b->settings || json_equal(a->settings, b->settings);
}

static void find_trained_alike(sr_records *records) {
    static const sr_variant_record none = {0};
    const sr_variant_record *baseline = &none;
    for (size_t i = 0; i < records->variant_count; i++)
        if (records->variants[i].style == 0)
            baseline = &records->variants[i];
    for (size_t i = 0; i < records->variant_count; i++)
        records->variants[i].trained_alike =
            sr_variant_same_settings(&records->variants[i], baseline);
}

static srnn_status read_variants(sr_records *records) {
    void *memory;
    const size_t count = sr_json_count_of(records->plan, "variants");
    const char *baseline = sr_json_text_of(records->plan, "baseline");
    SR_TRY(sr_alloc_zero(&memory, count, sizeof *records->variants));
    records->variants = memory;
    records->variant_count = count;
    int style = 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *object = sr_json_element_of(records->plan, "variants", i);
        sr_variant_record *variant = &records->variants[i];
        variant->name = sr_json_text_of(object, "name");
        variant->attention = sr_json_text_of(object, "attention");
        variant->text = sr_json_text_of(object, "text");
        variant->settings = own_settings(object);
        variant->by_layers = json_is_true(json_object_get(object, "by_layers"));
        variant->known = srnn_attention_parse(&variant->descriptor, variant->text) == SRNN_OK;
        variant->style = strcmp(variant->name, baseline) == 0 ? 0 : style++;
    }
    find_trained_alike(records);
    return SRNN_OK;
}

static sr_variant_record *find_variant(const sr_records *records, const char *name) {
    for (size_t i = 0; i < records->variant_count; i++)
        if (strcmp(records->variants[i].name, name) == 0)
            return &records->variants[i];
    return NULL;
}

/* A folder in the plan must be inside the study's folder. */
static srnn_status run_path(char path[SR_PATH_BYTES], const sr_records *records, const char *folder,
                            const char *name) {
    if (!*folder || *folder == '/' || strstr(folder, ".."))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s/study.json: \"%s\" is not a folder of a run",
                       records->folder, folder);
    return sr_path_print(path, "%s/%s/%s", records->folder, folder, name);
}

/* *root = a file that need not exist; NULL also if it is damaged. */
static srnn_status read_optional(json_t **root, const sr_records *records, const char *folder,
                                 const char *name) {
    char path[SR_PATH_BYTES];
    SR_TRY(run_path(path, records, folder, name));
    const srnn_status status = access(path, F_OK) == 0 ? sr_json_load(root, path, 0) : SRNN_OK;
    return status == SRNN_ERR_FORMAT ? SRNN_OK : status;
}

static srnn_status read_run(sr_records *records, sr_run_record *run) {
    char path[SR_PATH_BYTES];
    const char *folder = sr_json_text_of(run->plan, "folder");
    run->variant = find_variant(records, sr_json_text_of(run->plan, "variant"));
    run->task = sr_json_text_of(run->plan, "task");
    run->size = sr_json_text_of(run->plan, "size");
    run->learning_rate = sr_json_number_of(run->plan, "learning_rate");
    SR_TRY(run_path(path, records, folder, "metrics.jsonl"));
    SR_TRY(sr_curve_read(&run->curve, path, sr_json_number_of(run->plan, "steps")));
    SR_TRY(run_path(path, records, folder, "result.json"));
    const srnn_status status =
        access(path, F_OK) == 0 ? sr_json_load(&run->result, path, 0) : SRNN_OK;
    if (status == SRNN_ERR_MEMORY || status == SRNN_ERR_IO)
        return status; /* the file is not damaged */
    run->status = sr_json_text_of(run->result, "status");
    run->broken_result = access(path, F_OK) == 0 && !*run->status;
    SR_TRY(read_optional(&run->tests, records, folder, "tests.json"));
    return read_optional(&run->samples, records, folder, "samples.json");
}

static srnn_status read_runs(sr_records *records) {
    void *memory;
    const size_t count = sr_json_count_of(records->plan, "runs");
    SR_TRY(sr_alloc_zero(&memory, count, sizeof *records->runs));
    records->runs = memory;
    records->run_count = count;
    for (size_t i = 0; i < count; i++) {
        records->runs[i].plan = sr_json_element_of(records->plan, "runs", i);
        SR_TRY(read_run(records, &records->runs[i]));
    }
    return SRNN_OK;
}

static const char *task_title(const sr_records *records, const char *task) {
    for (size_t i = 0; i < sr_json_count_of(records->plan, "tasks"); i++) {
        const json_t *object = sr_json_element_of(records->plan, "tasks", i);
        if (strcmp(sr_json_text_of(object, "name"), task) == 0 && *sr_json_text_of(object, "title"))
            return sr_json_text_of(object, "title");
    }
    return task;
}

static const char *task_data(const sr_records *records, const char *task) {
    for (size_t i = 0; i < sr_json_count_of(records->plan, "tasks"); i++) {
        const json_t *object = sr_json_element_of(records->plan, "tasks", i);
        if (strcmp(sr_json_text_of(object, "name"), task) == 0)
            return sr_json_text_of(object, "data");
    }
    return "";
}

/* "recall:pairs=8,vocab=32": the number of pairs, or NAN; a mixture has no one number. */
static double pairs_of(const char *data) {
    const char *pairs = strstr(data, "pairs=");
    return pairs && !strstr(data, " + ") ? strtod(pairs + strlen("pairs="), NULL) : NAN;
}

/* Variants with a difference come first, then those with only a result, unstable ones, and those
 * without a result. */
static int class_of(const sr_entry *entry) {
    if (!isfinite(entry->mean) && !isfinite(entry->difference))
        return 3;
    if (entry->effect == SR_EFFECT_UNSTABLE)
        return 2;
    return entry->effect != SR_EFFECT_BASELINE && !isfinite(entry->difference);
}

/* The sort key within a class: lower is better; the baseline's cost is zero. */
static double rank_of(const sr_entry *entry, bool accuracy) {
    if (class_of(entry) == 1)
        return accuracy ? -entry->mean : entry->mean;
    return entry->effect == SR_EFFECT_BASELINE ? 0 : sr_entry_cost(entry).mean;
}

static int by_rank(const void *a, const void *b, void *accuracy) {
    const sr_entry *left = *(const sr_entry *const *)a, *right = *(const sr_entry *const *)b;
    if (class_of(left) != class_of(right))
        return class_of(left) - class_of(right);
    const double first = rank_of(left, *(bool *)accuracy);
    const double second = rank_of(right, *(bool *)accuracy);
    if (isnan(first) != isnan(second))
        return isnan(first) - isnan(second);
    return first > second ? 1 : first < second ? -1 : (left > right) - (left < right);
}

static srnn_status rank_entries(sr_cell_record *cell) {
    void *memory;
    SR_TRY(sr_alloc(&memory, cell->count, sizeof *cell->ranked));
    cell->ranked = memory;
    for (size_t i = 0; i < cell->count; i++)
        cell->ranked[i] = &cell->entries[i];
    qsort_r(cell->ranked, cell->count, sizeof *cell->ranked, by_rank, &cell->accuracy);
    return SRNN_OK;
}

static bool same_number(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

/* True if the run has the cell's task and size, at any learning rate. */
static bool run_fits(const sr_run_record *run, const sr_cell_record *cell) {
    return strcmp(run->task, cell->task) == 0 && strcmp(run->size, cell->size) == 0;
}

static srnn_status add_member(sr_entry *entry, const sr_run_record *run) {
    if ((entry->member_count & (entry->member_count - 1)) == 0) {
        const size_t capacity = entry->member_count ? 2 * entry->member_count : 1;
        const sr_run_record **grown = realloc(entry->members, capacity * sizeof *grown);
        if (!grown)
            return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the runs of a variant");
        entry->members = grown;
    }
    entry->members[entry->member_count++] = run;
    return SRNN_OK;
}

static sr_entry *entry_of(sr_cell_record *cell, const sr_variant_record *variant) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].variant == variant)
            return &cell->entries[i];
    return NULL;
}

/* Collects the runs of every entry once, so that sections need not search all runs. */
static srnn_status find_members(const sr_records *records, sr_cell_record *cell) {
    cell->length = NAN;
    for (size_t i = 0; i < records->run_count; i++) {
        const sr_run_record *run = &records->runs[i];
        sr_entry *entry = run_fits(run, cell) ? entry_of(cell, run->variant) : NULL;
        if (!entry || !same_number(run->learning_rate, entry->learning_rate))
            continue;
        if (isnan(cell->length))
            cell->length = sr_json_number_of(run->plan, "length");
        SR_TRY(add_member(entry, run));
    }
    return SRNN_OK;
}

static srnn_status read_entries(sr_records *records, sr_cell_record *cell, const json_t *object) {
    void *memory;
    const size_t count = sr_json_count_of(object, "variants");
    SR_TRY(sr_alloc_zero(&memory, count, sizeof *cell->entries));
    cell->entries = memory;
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = sr_json_element_of(object, "variants", i);
        sr_variant_record *variant = find_variant(records, sr_json_text_of(entry, "variant"));
        if (!variant)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s/summary.json: variant \"%s\" is not in study.json",
                           records->folder, sr_json_text_of(entry, "variant"));
        sr_entry *read = &cell->entries[cell->count++];
        SR_TRY(sr_entry_read(read, variant, entry, cell->accuracy));
        variant->used = true;
        if (isfinite(cell->learning_rate)) /* else each variant has its own */
            read->learning_rate = cell->learning_rate;
        if (variant->style == 0)
            cell->baseline = read;
    }
    return SRNN_OK;
}

static srnn_status read_cell(sr_records *records, sr_cell_record *cell, const json_t *object) {
    const json_t *noise = sr_json_object_of(object, "noise");
    cell->task = sr_json_text_of(object, "task");
    cell->size = sr_json_text_of(object, "size");
    cell->learning_rate = sr_json_number_of(object, "learning_rate");
    cell->tuned = records->tuning && isnan(cell->learning_rate) && !cell->at_best;
    cell->accuracy = strcmp(sr_json_text_of(object, "measure"), "accuracy") == 0;
    cell->noise_deviation = sr_json_number_of(noise, "standard_deviation");
    cell->noise_floor = sr_json_number_of(noise, "floor");
    cell->noise_seeds = sr_json_number_of(noise, "seeds");
    cell->data = task_data(records, cell->task);
    cell->pairs = pairs_of(cell->data);
    SR_TRY(read_entries(records, cell, object));
    SR_TRY(find_members(records, cell));
    return rank_entries(cell);
}

static bool are_alike(const sr_cell_record *a, const sr_cell_record *b) {
    return strcmp(a->task, b->task) == 0 && strcmp(a->size, b->size) == 0;
}

/* The baseline's result in a cell; lower is better. */
static double baseline_rank(const sr_cell_record *cell) {
    const double mean = cell->baseline ? cell->baseline->mean : NAN;
    return isnan(mean) ? INFINITY : cell->accuracy ? -mean : mean;
}

/* True if a leads: the cell at best rates, or in a summary without one the cell where the baseline
 * is best. */
static bool comes_before(const sr_cell_record *a, const sr_cell_record *b) {
    if (a->at_best != b->at_best)
        return a->at_best;
    return baseline_rank(a) < baseline_rank(b) || (baseline_rank(a) == baseline_rank(b) && a < b);
}

static srnn_status name_cell(const sr_records *records, sr_cell_record *cell) {
    char rate[64] = "";
    bool others = false;
    cell->leads = true;
    for (size_t i = 0; i < records->cell_count; i++) {
        const sr_cell_record *other = &records->cells[i];
        if (other == cell || !are_alike(other, cell))
            continue;
        others = true;
        cell->leads = cell->leads && comes_before(cell, other);
    }
    if (cell->at_best)
        snprintf(rate, sizeof rate, ", each variant at its best learning rate");
    else if (cell->tuned)
        snprintf(rate, sizeof rate, ", learning rates tuned");
    else if (others)
        snprintf(rate, sizeof rate, ", learning rate %g", cell->learning_rate);
    if (asprintf(&cell->title, "%s%s%s%s", task_title(records, cell->task), *cell->size ? ", " : "",
                 cell->size, rate) < 0) {
        cell->title = NULL;
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    }
    return SRNN_OK;
}

static srnn_status add_cell(sr_records *records, const json_t *object, bool at_best) {
    sr_cell_record *cell = &records->cells[records->cell_count++];
    cell->at_best = at_best;
    return read_cell(records, cell, object);
}

static bool same_text(const json_t *a, const json_t *b, const char *key) {
    return strcmp(sr_json_text_of(a, key), sr_json_text_of(b, key)) == 0;
}

/* Adds, before the first cell of a task and size, the cell at best rates, if there is one. */
static srnn_status add_best(sr_records *records, const json_t *before) {
    for (size_t i = 0; i < sr_json_count_of(records->summary, "best"); i++) {
        const json_t *best = sr_json_element_of(records->summary, "best", i);
        if (!same_text(best, before, "task") || !same_text(best, before, "size"))
            continue;
        for (size_t c = 0; c < records->cell_count; c++)
            if (strcmp(records->cells[c].task, sr_json_text_of(before, "task")) == 0 &&
                strcmp(records->cells[c].size, sr_json_text_of(before, "size")) == 0)
                return SRNN_OK;
        return add_cell(records, best, true);
    }
    return SRNN_OK;
}

static srnn_status read_cells(sr_records *records) {
    void *memory;
    const size_t count = sr_json_count_of(records->summary, "cells");
    records->confidence = sr_json_number_of(records->summary, "confidence");
    SR_TRY(sr_alloc_zero(&memory, 2 * count, sizeof *records->cells));
    records->cells = memory;
    for (size_t i = 0; i < count; i++) {
        const json_t *object = sr_json_element_of(records->summary, "cells", i);
        SR_TRY(add_best(records, object));
        SR_TRY(add_cell(records, object, false));
    }
    for (size_t i = 0; i < records->cell_count; i++)
        SR_TRY(name_cell(records, &records->cells[i]));
    return SRNN_OK;
}

static srnn_status check_summary(const char *folder) {
    return sr_path_has(folder, "summary.json")
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_IO,
                         "%s/summary.json: not there yet; `softrnn study` writes it when it ends "
                         "or is interrupted",
                         folder);
}

static srnn_status read_all(sr_records *records) {
    SR_TRY(sr_json_read(&records->plan, records->folder, "study.json", "softrnn-study"));
    SR_TRY(check_summary(records->folder));
    SR_TRY(sr_json_read(&records->summary, records->folder, "summary.json", "softrnn-summary"));
    if (json_is_true(json_object_get(records->summary, "tuned")))
        SR_TRY(sr_json_read(&records->tuning, records->folder, "tuning.json", "softrnn-tuning"));
    SR_TRY(read_variants(records));
    SR_TRY(read_runs(records));
    return read_cells(records);
}

srnn_status sr_records_read(sr_records *records, const char *folder) {
    *records = (sr_records){.folder = folder};
    const srnn_status status = read_all(records);
    if (status != SRNN_OK)
        sr_records_free(records);
    return status;
}

void sr_records_free(sr_records *records) {
    for (size_t i = 0; i < records->run_count; i++) {
        json_decref(records->runs[i].result);
        json_decref(records->runs[i].tests);
        json_decref(records->runs[i].samples);
    }
    for (size_t i = 0; i < records->cell_count; i++) {
        for (size_t e = 0; e < records->cells[i].count; e++)
            sr_entry_free(&records->cells[i].entries[e]);
        free(records->cells[i].entries);
        free(records->cells[i].ranked);
        free(records->cells[i].title);
    }
    free(records->variants);
    free(records->runs);
    free(records->cells);
    json_decref(records->plan);
    json_decref(records->summary);
    json_decref(records->tuning);
    *records = (sr_records){0};
}

const sr_entry *sr_cell_entry(const sr_cell_record *cell, const sr_variant_record *variant) {
    for (size_t i = 0; i < cell->count; i++)
        if (cell->entries[i].variant == variant)
            return &cell->entries[i];
    return NULL;
}

double sr_cell_margin(const sr_cell_record *cell, const sr_entry *entry) {
    if (!cell->baseline)
        return NAN;
    return SR_MARGIN * fabs(entry->of_accuracy ? cell->baseline->mean : cell->baseline->loss);
}

bool sr_cell_keeps_up(const sr_cell_record *cell, const sr_entry *entry) {
    return sr_entry_compared(entry) && entry->effect != SR_EFFECT_UNSTABLE &&
           sr_entry_cost(entry).high <= sr_cell_margin(cell, entry);
}
