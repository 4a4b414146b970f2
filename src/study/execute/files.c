/* files.c: writes study.json and summary.json. */
#include "study/execute/files.h"

#include "equation/facts.h"
#include "files/file.h"
#include "files/json.h"
#include "files/origin.h"
#include "model/mixers.h"
#include "study/execute/folder.h"
#include "study/results/students.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYOUT = JSON_INDENT(1) | JSON_REAL_PRECISION(12) };

/* ---- JSON values; NULL means no memory, which json_pack and sr_json_replace detect */

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* ---- study.json */

static const char *feature_name(srnn_feature feature) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
        return "identity";
    case SRNN_FEATURE_RELU:
        return "relu";
    case SRNN_FEATURE_ELU1:
        return "elu1";
    case SRNN_FEATURE_UNIT:
        return "unit";
    case SRNN_FEATURE_UNIT_HEADS:
        return "unit_heads";
    case SRNN_FEATURE_UNIT_SMOOTH:
        return "unit_smooth";
    case SRNN_FEATURE_NORM_SPLIT:
        return "norm_split";
    case SRNN_FEATURE_NORM_COSINE:
        return "norm_cosine";
    }
    return "";
}

json_t *sr_study_settings_json(const sr_pairs *settings) {
    json_t *object = json_object();
    for (size_t i = 0; i < settings->count; i++)
        if (json_object_set_new(object, settings->names[i],
                                sr_json_plain_text(settings->values[i])) != 0) {
            json_decref(object);
            return NULL;
        }
    return object;
}

static json_t *variant_json(const sr_study_variant *variant) {
    const srnn_attention *a = &variant->descriptor;
    char form[1024];
    const bool one = sr_mixer_row_at(variant->mixer)->attends && !variant->by_layers;
    const int order = one ? sr_highest_order(a) : 0;
    if (one)
        srnn_attention_print(form, sizeof form, a);
    else
        snprintf(form, sizeof form, "%s", variant->attention);
    return json_pack("{s:o, s:o, s:s, s:o, s:s, s:b, s:b, s:o}", "name",
                     sr_json_plain_text(variant->name), "attention",
                     sr_json_plain_text(variant->attention), "text", form, "order",
                     order ? json_integer(order) : json_null(), "feature", feature_name(a->feature),
                     "by_layers", variant->by_layers, "fixed_state", variant->fixed_state,
                     "settings", sr_study_settings_json(&variant->settings));
}

/* A variant of a study with a teacher also says what it is. */
static json_t *role_json(const sr_study *study, const sr_study_variant *variant) {
    json_t *object = variant_json(variant);
    if (variant->role == SR_ROLE_VARIANT)
        return object;
    sr_json_set(object, "role", json_string(sr_study_role_name(variant->role)));
    sr_json_set(object, "system", sr_json_plain_text(variant->system));
    if (variant->role != SR_ROLE_TEACHER)
        sr_json_set(object, "budget", sr_json_plain_text(study->budgets[variant->budget].name));
    return object;
}

static json_t *teacher_json(const sr_study *study) {
    json_t *budgets = json_array();
    for (size_t b = 0; b < study->budget_count; b++)
        sr_json_append(budgets,
                       json_pack("{s:o, s:o}", "name", sr_json_plain_text(study->budgets[b].name),
                                 "keep", sr_json_plain_text(study->budgets[b].keep)));
    return json_pack("{s:o, s:o, s:o}", "model",
                     study->teacher.model ? sr_json_plain_text(study->teacher.model) : json_null(),
                     "students", sr_study_settings_json(&study->student_settings), "budgets",
                     budgets);
}

/* The data as written in the study's file: a task's comes before that of the study. */
static const char *data_of(const sr_study *study, const sr_study_task *task) {
    for (size_t i = task->settings.count; i-- > 0;)
        if (strcmp(task->settings.names[i], "data") == 0)
            return task->settings.values[i];
    for (size_t i = study->settings.count; i-- > 0;)
        if (strcmp(study->settings.names[i], "data") == 0)
            return study->settings.values[i];
    return "";
}

static json_t *task_json(const sr_study *study, const sr_study_task *task) {
    return json_pack("{s:o, s:o, s:o, s:s}", "name", sr_json_plain_text(task->name), "title",
                     sr_json_plain_text(task->title ? task->title : task->name), "data",
                     sr_json_plain_text(data_of(study, task)), "measure",
                     sr_measure_name(task->measure));
}

static json_t *run_json(const sr_study *study, const sr_study_run *run) {
    const sr_run_settings *s = &run->settings;
    char folder[SR_PATH_BYTES];
    snprintf(folder, sizeof folder, "runs/%s", run->id);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:f, s:I, s:I, s:i, s:i, s:I, s:f, s:f, s:o, s:f}",
                     "id", run->id, "folder", folder, "task",
                     sr_json_plain_text(study->tasks[run->task].name), "variant",
                     sr_json_plain_text(study->variants[run->variant].name), "size",
                     sr_json_plain_text(study->size_count ? study->sizes[run->size].name : ""),
                     "learning_rate", s->learning_rate, "seed", (json_int_t)s->seed, "steps",
                     (json_int_t)s->steps, "batch", s->B, "length", s->T, "parameters",
                     (json_int_t)run->parameters, "tokens", run->tokens, "flops", run->flops,
                     "state_bytes", number(run->state_bytes), "cache_bytes", run->cache_bytes);
}

static json_t *plan_json(const sr_study *study) {
    json_t *variants = json_array(), *tasks = json_array(), *runs = json_array();
    for (size_t i = 0; i < study->variant_count; i++)
        sr_json_append(variants, role_json(study, &study->variants[i]));
    for (size_t i = 0; i < study->task_count; i++)
        sr_json_append(tasks, task_json(study, &study->tasks[i]));
    for (size_t i = 0; i < study->run_count; i++)
        sr_json_append(runs, run_json(study, &study->runs[i]));
    json_t *plan = json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "format", "softrnn-study",
                             "version", 1, "name", sr_json_plain_text(study->name), "title",
                             sr_json_plain_text(study->title), "baseline",
                             sr_json_plain_text(study->variants[study->baseline].name), "variants",
                             variants, "tasks", tasks, "runs", runs);
    if (study->teacher.wanted)
        sr_json_set(plan, "teacher", teacher_json(study));
    return plan;
}

srnn_status sr_study_write(const sr_study *study, const char *folder, const char *command) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, "study.yaml"));
    SR_TRY(sr_file_replace(path, study->text, strlen(study->text)));
    json_t *plan = plan_json(study), *origin = sr_origin_json(command);
    if (!origin || json_object_update(plan, origin) != 0) {
        json_decref(plan);
        plan = NULL;
    }
    json_decref(origin);
    return sr_json_replace(plan, folder, "study.json", LAYOUT);
}

/* ---- summary.json */

static json_t *spread_json(const sr_spread *spread, size_t count) {
    json_t *values = json_array();
    for (size_t i = 0; i < count; i++)
        sr_json_append(values, number(spread->values[i]));
    return json_pack("{s:o, s:o, s:I, s:o}", "mean", number(spread->mean), "standard_deviation",
                     number(spread->standard_deviation), "count", (json_int_t)spread->count,
                     "values", values);
}

static json_t *own_json(const sr_interval *own) {
    if (!(own->degrees > 0))
        return json_null();
    return json_pack("{s:o, s:o, s:f}", "low", number(own->low), "high", number(own->high),
                     "degrees", own->degrees);
}

static json_t *difference_json(const sr_difference *d) {
    json_t *pairs = json_array();
    for (size_t i = 0; i < d->pairs; i++)
        sr_json_append(pairs, json_pack("{s:I, s:o}", "seed", (json_int_t)d->seeds[i], "difference",
                                        number(d->differences[i])));
    return json_pack("{s:s, s:o, s:o, s:o, s:s, s:f, s:o, s:s, s:o}", "of", sr_measure_name(d->of),
                     "mean", number(d->interval.mean), "low", number(d->interval.low), "high",
                     number(d->interval.high), "method", d->method, "degrees", d->interval.degrees,
                     "pairs", pairs, "verdict", sr_verdict_name(d->verdict), "own",
                     own_json(&d->own));
}

static json_t *summary_variant_json(const sr_study *study, const sr_summary_variant *v) {
    json_t *seeds = json_array();
    for (size_t i = 0; i < v->finished; i++)
        sr_json_append(seeds, json_integer((json_int_t)v->seeds[i]));
    const bool baseline = v->variant == study->baseline;
    return json_pack("{s:o, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:o, s:o, s:o, s:b}",
                     "variant", sr_json_plain_text(study->variants[v->variant].name),
                     "learning_rate", v->learning_rate, "runs", (json_int_t)v->runs, "finished",
                     (json_int_t)v->finished, "diverged", (json_int_t)v->diverged, "failed",
                     (json_int_t)v->failed, "not_finite", (json_int_t)v->not_finite, "skipped",
                     (json_int_t)v->skipped, "seeds", seeds, "loss",
                     spread_json(&v->loss, v->finished), "best_loss",
                     spread_json(&v->best_loss, v->finished), "accuracy",
                     spread_json(&v->accuracy, v->finished), "difference",
                     baseline ? json_null() : difference_json(&v->difference), "tokens_per_second",
                     number(v->tokens_per_second), "memory_bytes", number(v->memory_bytes),
                     "parameters", number(v->parameters), "state_bytes", number(v->state_bytes),
                     "cache_bytes", number(v->cache_bytes), "more_parameters",
                     number(v->more_parameters), "apart", v->apart);
}

static json_t *cell_json(const sr_study *study, const sr_summary_cell *cell) {
    json_t *variants = json_array();
    for (size_t v = 0; v < cell->count; v++)
        sr_json_append(variants, summary_variant_json(study, &cell->variants[v]));
    return json_pack("{s:o, s:o, s:o, s:s, s:{s:I, s:o, s:o}, s:o}", "task",
                     sr_json_plain_text(study->tasks[cell->task].name), "size",
                     sr_json_plain_text(study->size_count ? study->sizes[cell->size].name : ""),
                     "learning_rate", number(cell->learning_rate), "measure",
                     sr_measure_name(cell->measure), "noise", "seeds",
                     (json_int_t)cell->noise_seeds, "standard_deviation", number(cell->noise),
                     "floor", number(sqrt(2.0) * cell->noise), "variants", variants);
}

/* `students`: NULL for a study without a teacher; taken over. */
static json_t *summary_json(const sr_study *study, const sr_summary *summary, json_t *students) {
    json_t *cells = json_array(), *best = json_array();
    for (size_t i = 0; i < summary->count; i++)
        sr_json_append(cells, cell_json(study, &summary->cells[i]));
    for (size_t i = 0; i < summary->best_count; i++)
        sr_json_append(best, cell_json(study, &summary->best[i]));
    return json_pack("{s:s, s:i, s:o, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:b, s:o*}",
                     "format", "softrnn-summary", "version", 1, "baseline",
                     sr_json_plain_text(study->variants[study->baseline].name), "confidence",
                     SR_CONFIDENCE, "runs", (json_int_t)study->run_count, "finished",
                     (json_int_t)summary->finished, "diverged", (json_int_t)summary->diverged,
                     "failed", (json_int_t)summary->failed, "missing", (json_int_t)summary->missing,
                     "left_out", (json_int_t)summary->left_out, "cells", cells, "best", best,
                     "tuned", study->tune_count > 0, "students", students);
}

static srnn_status read_records(sr_record *records, json_t **measured, const sr_study *study,
                                const char *folder) {
    for (size_t i = 0; i < study->run_count; i++) {
        char path[SR_PATH_BYTES];
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(sr_record_read(&records[i], path));
        if (sr_path_has(path, "student.json"))
            SR_TRY(sr_json_read(&measured[i], path, "student.json", "softrnn-student"));
    }
    return SRNN_OK;
}

static srnn_status summarise(sr_summary *summary, const sr_study *study, const char *folder,
                             const bool *requested, sr_record *records, json_t **measured) {
    json_t *students;
    SR_TRY(read_records(records, measured, study, folder));
    SR_TRY(sr_summary_make(summary, study, records, requested));
    SR_TRY(sr_students_summarise(&students, study, records, measured));
    return sr_json_replace(summary_json(study, summary, students), folder, "summary.json", LAYOUT);
}

srnn_status sr_study_summarise(sr_summary *summary, const sr_study *study, const char *folder,
                               const bool *requested) {
    sr_record *records = calloc(study->run_count, sizeof *records);
    json_t **measured = calloc(study->run_count, sizeof *measured);
    *summary = (sr_summary){0};
    const srnn_status status =
        records && measured
            ? summarise(summary, study, folder, requested, records, measured)
            : SR_FAIL(SRNN_ERR_MEMORY, "no memory for the records of %zu runs", study->run_count);
    for (size_t i = 0; i < study->run_count; i++) {
        if (records)
            sr_record_free(&records[i]);
        if (measured)
            json_decref(measured[i]);
    }
    free(records);
    free(measured);
    return status;
}
