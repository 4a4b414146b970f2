/* plan.c: expands a study into runs and computes their cost. */
#include "base/text.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "files/path.h"
#include "model/mixers.h"
#include "study/plan/students.h"
#include "study/plan/study.h"
#include "train/run/data.h"
#include "train/run/model.h"

#include <ctype.h>
#include <fnmatch.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTE_TOKENS = 257, ID_BYTES = 200 };
static const char text_data[] = "@text";

/* Facts about the data of the last run, cached because most runs share it. */
typedef struct data_facts {
    char *data;
    int T_requested;
    int V, T;
} data_facts;

static bool asks_for_text(const sr_pairs *settings) {
    for (size_t i = 0; i < settings->count; i++)
        if (strcmp(settings->names[i], "data") == 0 && strcmp(settings->values[i], text_data) == 0)
            return true;
    return false;
}

bool sr_study_needs_text(const sr_study *study) {
    bool needs = asks_for_text(&study->settings);
    for (size_t i = 0; i < study->task_count; i++)
        needs = needs || asks_for_text(&study->tasks[i].settings);
    for (size_t i = 0; i < study->size_count; i++)
        needs = needs || asks_for_text(&study->sizes[i].settings);
    return needs;
}

/* A task that names variants has their students, and always the teacher. */
static bool uses(const sr_study_task *task, const sr_study_variant *variant) {
    const char *name = variant->system ? variant->system : variant->name;
    for (size_t i = 0; i < task->variants.count; i++)
        if (strcmp(task->variants.words[i], name) == 0)
            return true;
    return task->variants.count == 0 || variant->role == SR_ROLE_TEACHER;
}

/* The kind of object that a word of a selection names. */
typedef enum word_kind { TASK, VARIANT, SIZE, RUNS, WORD_KINDS } word_kind;

static word_kind kind_of(const sr_study *study, const char *word) {
    for (size_t i = 0; i < study->task_count; i++)
        if (strcmp(word, study->tasks[i].name) == 0)
            return TASK;
    for (size_t i = 0; i < study->variant_count; i++)
        if (strcmp(word, study->variants[i].name) == 0)
            return VARIANT;
    for (size_t i = 0; i < study->size_count; i++)
        if (strcmp(word, study->sizes[i].name) == 0)
            return SIZE;
    return RUNS;
}

static bool fits(const sr_study *study, const sr_study_run *run, const char *word) {
    switch (kind_of(study, word)) {
    case TASK:
        return strcmp(word, study->tasks[run->task].name) == 0;
    case VARIANT:
        return strcmp(word, study->variants[run->variant].name) == 0;
    case SIZE:
        return strcmp(word, study->sizes[run->size].name) == 0;
    case RUNS:
    case WORD_KINDS:
        break;
    }
    return fnmatch(word, run->id, 0) == 0;
}

/* Words of one kind are alternatives, different kinds are combined: "recall,softmax,gate" are two
 * variants of one task. */
static bool is_selected(const sr_study *study, const sr_study_run *run, const sr_word_list *only) {
    bool named[WORD_KINDS] = {false}, met[WORD_KINDS] = {false};
    for (size_t i = 0; i < only->count; i++) {
        const word_kind kind = kind_of(study, only->words[i]);
        named[kind] = true;
        met[kind] = met[kind] || fits(study, run, only->words[i]);
    }
    for (size_t kind = 0; kind < WORD_KINDS; kind++)
        if (named[kind] && !met[kind])
            return false;
    return true;
}

bool sr_study_run_selected(const sr_study *study, const sr_study_run *run, const sr_word_list *only,
                           const sr_word_list *skip) {
    for (size_t i = 0; i < skip->count; i++)
        if (fits(study, run, skip->words[i]))
            return false;
    return is_selected(study, run, only);
}

static srnn_status wrong_word(const sr_study *study, const char *word, const char *where) {
    const size_t most = study->task_count + study->variant_count + study->size_count;
    const char **names = calloc(most + study->run_count, sizeof *names);
    size_t count = 0;
    if (!names)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    for (size_t i = 0; i < study->task_count; i++)
        names[count++] = study->tasks[i].name;
    for (size_t i = 0; i < study->variant_count; i++)
        names[count++] = study->variants[i].name;
    for (size_t i = 0; i < study->size_count; i++)
        names[count++] = study->sizes[i].name;
    for (size_t i = 0; i < study->run_count; i++)
        names[count++] = study->runs[i].id;
    const char *near = sr_nearest_word(word, names, count);
    const srnn_status status =
        SR_FAIL(SRNN_ERR_ARGUMENT, "%s: no task, variant, size or run of the study is \"%s\"%s%s%s",
                where, word, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    free(names);
    return status;
}

srnn_status sr_study_words_check(const sr_study *study, const sr_word_list *words,
                                 const char *where) {
    for (size_t w = 0; w < words->count; w++) {
        size_t i = 0;
        while (i < study->run_count && !fits(study, &study->runs[i], words->words[w]))
            i++;
        if (i == study->run_count)
            return wrong_word(study, words->words[w], where);
    }
    return SRNN_OK;
}

/* ---- one run */

/* Appends a part of an id, restricted to characters that are safe in a folder's name. */
static void add_part(char *id, const char *part) {
    size_t length = strlen(id);
    if (length && length + 1 < ID_BYTES)
        id[length++] = '.';
    for (; *part && length + 1 < ID_BYTES; part++)
        id[length++] = isalnum((unsigned char)*part) || strchr("-_+=", *part) ? *part : '_';
    id[length] = '\0';
}

static srnn_status make_id(sr_study_run *run, const sr_study *study) {
    char id[ID_BYTES] = "", rate[40], seed[24];
    add_part(id, study->tasks[run->task].name);
    add_part(id, study->variants[run->variant].name);
    if (study->size_count)
        add_part(id, study->sizes[run->size].name);
    snprintf(rate, sizeof rate, ".lr%g", run->settings.learning_rate);
    if (study->rate_count && strlen(id) + strlen(rate) < sizeof id)
        strcat(id, rate);
    snprintf(seed, sizeof seed, "%lld", (long long)run->settings.seed);
    add_part(id, seed);
    run->id = strdup(id);
    return run->id ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
}

/* Extends the last error by a line of the study's file. */
static srnn_status name_line(srnn_status status, const sr_study *study, size_t line) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s: line %zu: %s", study->where, line, why);
}

/* A path in a study is relative to its file. A name without such a file is a task or a built-in
 * name, or missing, which is reported when it is opened. */
static const char *placed(char path[SR_PATH_BYTES], const sr_study *study, const char *name,
                          const char *value) {
    static const char *const paths[] = {"data", "validation", "batches", "model", "tokenizer"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(name, paths[i]) == 0 && study->folder && *value && *value != '/' &&
            !sr_synthetic_is(value) && sr_path_join(path, study->folder, value) == SRNN_OK &&
            access(path, F_OK) == 0)
            return path;
    return value;
}

static srnn_status set_all(sr_run_settings *settings, const sr_study *study,
                           const sr_pairs *pairs) {
    char path[SR_PATH_BYTES];
    for (size_t i = 0; i < pairs->count; i++) {
        if (study->teacher.wanted && sr_study_is_stage_setting(pairs->names[i]))
            continue;
        const char *value = placed(path, study, pairs->names[i], pairs->values[i]);
        const srnn_status status = sr_run_settings_set(settings, pairs->names[i], value);
        if (status != SRNN_OK)
            return name_line(status, study, pairs->lines[i]);
    }
    return SRNN_OK;
}

/* The settings that a run of this role has beyond those of study and task. */
static srnn_status set_role(sr_run_settings *s, const sr_study *study, sr_study_role role) {
    switch (role) {
    case SR_ROLE_VARIANT:
        return SRNN_OK;
    case SR_ROLE_TEACHER:
        SR_TRY(set_all(s, study, &study->student_settings));
        return set_all(s, study, &study->again_settings);
    case SR_ROLE_STUDENT:
        return set_all(s, study, &study->student_settings);
    case SR_ROLE_SCRATCH:
        SR_TRY(set_all(s, study, &study->student_settings));
        return set_all(s, study, &study->scratch_settings);
    }
    return SRNN_OK;
}

/* The folder of the teacher of a task: a model, or a run of the study of teachers. */
static srnn_status teacher_path(char path[SR_PATH_BYTES], const sr_study *study, size_t task) {
    char id[ID_BYTES] = "";
    if (study->teacher.model)
        return sr_path_print(path, "%s", study->teacher.model);
    add_part(id, study->tasks[task].name);
    add_part(id, study->variants[0].name);
    return sr_path_print(path, "%s%s%s/runs/%s.%lld", study->out ? study->out : "",
                         study->out ? "/" : "", SR_STUDY_TEACHERS, id, (long long)study->seeds[0]);
}

static srnn_status plan_role(sr_study_run *run, const sr_study *study) {
    char path[SR_PATH_BYTES], own[SR_PATH_BYTES];
    SR_TRY(teacher_path(path, study, run->task));
    return sr_study_plan_role(run, study,
                              study->teacher.model ? placed(own, study, "model", path) : path);
}

static srnn_status make_settings(sr_study_run *run, const sr_study *study, double rate,
                                 int64_t seed, const char *text) {
    sr_run_settings *s = &run->settings;
    const sr_study_variant *variant = &study->variants[run->variant];
    SR_TRY(sr_run_settings_create(s));
    if (variant->role == SR_ROLE_STUDENT || variant->role == SR_ROLE_TEACHER)
        s->weight_decay = 0; /* it would pull what the teacher has learned towards 0 */
    SR_TRY(set_all(s, study, &study->settings));
    SR_TRY(set_all(s, study, &study->tasks[run->task].settings));
    if (study->size_count)
        SR_TRY(set_all(s, study, &study->sizes[run->size].settings));
    SR_TRY(set_role(s, study, variant->role));
    SR_TRY(set_all(s, study, &variant->settings));
    SR_TRY(sr_run_settings_text(&s->attention, variant->attention ? variant->attention : ""));
    run->home = study->folder;
    run->text = strcmp(s->data, text_data) == 0;
    if (run->text)
        SR_TRY(sr_run_settings_text(&s->data, text));
    s->learning_rate = rate > 0 ? rate : s->learning_rate;
    if (study->tune_count)
        s->validation_half = SR_HALF_FIRST; /* the other half is used to tune the learning rate */
    s->seed = seed;
    return variant->role == SR_ROLE_VARIANT ? sr_run_settings_apply_preset(s)
                                            : plan_role(run, study);
}

/* Vocabulary and row length of the data; the study's own text counts as bytes while it does not
 * exist yet. */
static srnn_status look_at_data(data_facts *facts, const sr_run_settings *s, bool own_text) {
    if (facts->data && strcmp(facts->data, s->data) == 0 && facts->T_requested == s->T)
        return SRNN_OK;
    SR_TRY(sr_run_settings_text(&facts->data, s->data));
    *facts = (data_facts){facts->data, s->T, BYTE_TOKENS, s->T};
    if (own_text && access(s->data, F_OK) != 0)
        return SRNN_OK;
    sr_source *source;
    const sr_source_settings settings = {.seed = (uint64_t)s->seed,
                                         .T = s->T,
                                         .layout = (sr_token_layout)s->layout,
                                         .validation = *s->validation ? s->validation : NULL,
                                         .validation_share = s->validation_share,
                                         .validation_half = (sr_half)s->validation_half};
    SR_TRY(sr_source_open(&source, s->data, &settings));
    facts->V = source->vocab;
    facts->T = source->T;
    sr_source_free(source);
    return SRNN_OK;
}

/* A run ends with its schedule, or earlier at a stop condition. */
static int64_t steps_of(const sr_run_settings *s, double tokens_of_a_step) {
    int64_t steps = s->steps;
    if (s->stop_step && s->stop_step < steps)
        steps = s->stop_step;
    if (s->stop_tokens && (double)s->stop_tokens < tokens_of_a_step * (double)steps)
        steps = (int64_t)ceil((double)s->stop_tokens / tokens_of_a_step);
    return steps;
}

static srnn_status count(sr_study_run *run, const sr_model_config *c) {
    const sr_run_settings *s = &run->settings;
    const sr_mixer_row *mixer = sr_mixer_row_of(c);
    const double T = s->T; /* the model may have more positions, for tests */
    sr_tensor_table table;
    SR_TRY(sr_model_tensors(&table, c));
    run->parameters = sr_tensor_table_learned(&table);
    sr_tensor_table_free(&table);
    const double multiplying = (double)run->parameters - (c->tied ? 0.0 : (double)c->V * c->C);
    const double tokens_of_a_step = (double)s->B * T * s->accumulate;
    run->steps = steps_of(s, tokens_of_a_step);
    if (run->steps == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a run of no steps learns nothing: steps is 1 or more");
    run->tokens = tokens_of_a_step * (double)run->steps;
    run->flops = run->tokens * (6 * multiplying + 3 * mixer->flops(c, T));
    run->state_bytes = mixer->state_bytes(c);
    run->cache_bytes = mixer->cache_bytes(c, T);
    return SRNN_OK;
}

/* The line of a setting; 0: there is none. */
static size_t line_of(const sr_pairs *settings, const char *name) {
    for (size_t i = settings->count; i-- > 0;)
        if (strcmp(settings->names[i], name) == 0)
            return settings->lines[i];
    return 0;
}

/* The settings that define a run's data: of its size, its task, or else of the study. */
static const sr_pairs *data_settings(const sr_study *study, const sr_study_run *run) {
    if (study->size_count && line_of(&study->sizes[run->size].settings, "data"))
        return &study->sizes[run->size].settings;
    const sr_pairs *task = &study->tasks[run->task].settings;
    return line_of(task, "data") ? task : &study->settings;
}

/* A length given next to data with its own length, such as a task, would have no effect; one in the
 * study's settings may be meant for other runs. */
static srnn_status check_length(const sr_study *study, const sr_study_run *run,
                                const data_facts *facts) {
    const sr_pairs *settings = data_settings(study, run);
    const size_t line = line_of(settings, "data") ? line_of(settings, "length") : 0;
    if (!line || facts->T == facts->T_requested)
        return SRNN_OK;
    return name_line(SR_FAIL(SRNN_ERR_ARGUMENT,
                             "length %d does nothing: rows of %s have %d tokens, which its own "
                             "length=N sets",
                             facts->T_requested, facts->data, facts->T),
                     study, line);
}

/* The settings and the shape of a teacher that the study trains, for data of `vocab` tokens. */
static srnn_status teacher_shape(sr_model_config *config, sr_run_settings *t, const sr_study *study,
                                 const sr_study_run *run, int vocab) {
    SR_TRY(set_all(t, study, &study->settings));
    SR_TRY(set_all(t, study, &study->tasks[run->task].settings));
    SR_TRY(set_all(t, study, &study->teacher.settings));
    SR_TRY(sr_run_settings_text(&t->attention, study->teacher.attention));
    t->T = run->settings.T;
    return sr_run_model_config(config, t, "", vocab);
}

/* What a run sets in its settings when it opens the teacher. */
static srnn_status take_shape(sr_run_settings *s, const sr_run_settings *t,
                              const sr_model_config *config) {
    char *text;
    s->V = t->V, s->C = t->C, s->F = t->F, s->L = t->L;
    s->H = t->H, s->Hkv = t->Hkv, s->D = t->D;
    s->mlp = t->mlp;
    s->tied = t->tied;
    s->rope_theta = t->rope_theta;
    s->norm_epsilon = t->norm_epsilon;
    SR_TRY(sr_model_config_attention_text(&text, config));
    const srnn_status status = sr_run_settings_text(&s->attention, text);
    free(text);
    return status;
}

/* The control that trains a given teacher again reads the rows that the students read: a text must
 * be in the teacher's tokens for both. */
static srnn_status check_tokens(const sr_run_settings *s) {
    sr_run_settings own;
    SR_TRY(sr_run_settings_create(&own));
    srnn_status status = sr_run_settings_copy(&own, s);
    if (status == SRNN_OK)
        status = sr_run_data_tokenizer(&own);
    sr_run_settings_free(&own);
    return status;
}

/* The teacher of the run, of which the study may have trained nothing yet. */
static srnn_status teacher_config(sr_model_config *config, const sr_study *study, sr_study_run *run,
                                  int vocab) {
    sr_run_settings *s = &run->settings, t;
    const bool again = study->variants[run->variant].role == SR_ROLE_TEACHER;
    if (again && study->teacher.model) {
        SR_TRY(sr_run_model_config(config, s, "", vocab));
        return check_tokens(s);
    }
    SR_TRY(sr_run_settings_create(&t));
    srnn_status status;
    if (study->teacher.model) {
        status = sr_run_settings_text(&t.model, s->teacher);
        if (status == SRNN_OK)
            status = sr_run_model_config(config, &t, "", vocab);
    } else {
        status = teacher_shape(config, &t, study, run, vocab);
        if (status == SRNN_OK && again)
            status = take_shape(s, &t, config);
    }
    sr_run_settings_free(&t);
    return status;
}

/* *config = the shape of the run's model; free it also on failure. */
static srnn_status shape_of(sr_model_config *config, const sr_study *study, sr_study_run *run,
                            int vocab) {
    const sr_study_role role = study->variants[run->variant].role;
    sr_model_config teacher = {0};
    *config = (sr_model_config){0};
    if (role == SR_ROLE_VARIANT)
        return sr_run_model_config(config, &run->settings, "", vocab);
    if (role == SR_ROLE_TEACHER)
        return teacher_config(config, study, run, vocab);
    srnn_status status = teacher_config(&teacher, study, run, vocab);
    if (status == SRNN_OK)
        status = sr_study_student_config(config, &teacher, study, run);
    sr_model_config_free(&teacher);
    return status;
}

/* Sets what the run's data determines, so that settings can be compared. */
static srnn_status work_out_cost(const sr_study *study, sr_study_run *run, data_facts *facts) {
    sr_run_settings *s = &run->settings;
    const size_t line = line_of(data_settings(study, run), "data");
    const srnn_status opened = look_at_data(facts, s, run->text);
    if (opened != SRNN_OK)
        return line ? name_line(opened, study, line) : opened;
    SR_TRY(check_length(study, run, facts));
    s->T = facts->T;
    sr_model_config config;
    srnn_status status = shape_of(&config, study, run, facts->V);
    if (status == SRNN_OK)
        status = sr_model_config_check(&config);
    if (status == SRNN_OK)
        status = count(run, &config);
    sr_model_config_free(&config);
    return status;
}

/* ---- all runs */

static srnn_status name_run(srnn_status status, const sr_study_run *run) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "run %s: %s", run->id ? run->id : "", why);
}

static srnn_status add_run(sr_study *study, sr_study_run run, double rate, int64_t seed,
                           const char *text) {
    sr_study_run *grown = realloc(study->runs, (study->run_count + 1) * sizeof *grown);
    if (!grown)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    study->runs = grown;
    sr_study_run *added = &grown[study->run_count++];
    *added = run;
    SR_TRY(make_settings(added, study, rate, seed, text));
    const sr_run_settings *s = &added->settings; /* the data may still change T */
    added->steps = steps_of(s, (double)s->B * s->T * s->accumulate);
    return make_id(added, study);
}

/* Drops the runs that were not requested. */
static srnn_status select_runs(sr_study *study) {
    size_t selected = 0;
    SR_TRY(sr_study_words_check(study, &study->only, "only"));
    SR_TRY(sr_study_words_check(study, &study->skip, "skip"));
    for (size_t i = 0; i < study->run_count; i++) {
        sr_study_run *run = &study->runs[i];
        if (sr_study_run_selected(study, run, &study->only, &study->skip)) {
            study->runs[selected++] = *run;
        } else {
            free(run->id);
            sr_run_settings_free(&run->settings);
        }
    }
    study->run_count = selected;
    return selected ? SRNN_OK : SR_FAIL(SRNN_ERR_FORMAT, "%s: nothing is left to run", study->name);
}

static srnn_status check_names(const sr_study *study) {
    for (size_t i = 0; i < study->run_count; i++)
        for (size_t before = 0; before < i; before++)
            if (strcmp(study->runs[i].id, study->runs[before].id) == 0)
                return SR_FAIL(SRNN_ERR_FORMAT,
                               "two runs would be called %s: give their variants other names",
                               study->runs[i].id);
    return SRNN_OK;
}

/* Seeds outermost, so that after an early stop all variants have the same number of seeds. */
static srnn_status add_task(sr_study *study, size_t task, int64_t seed, const char *text) {
    for (size_t size = 0; size < (study->size_count ? study->size_count : 1); size++)
        for (size_t rate = 0; rate < (study->rate_count ? study->rate_count : 1); rate++)
            for (size_t v = 0; v < study->variant_count; v++)
                if (uses(&study->tasks[task], &study->variants[v]))
                    SR_TRY(add_run(study, (sr_study_run){.task = task, .variant = v, .size = size},
                                   study->rate_count ? study->rates[rate] : 0, seed, text));
    return SRNN_OK;
}

srnn_status sr_study_price(sr_study *study) {
    data_facts facts = {0};
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < study->run_count && status == SRNN_OK; i++) {
        status = work_out_cost(study, &study->runs[i], &facts);
        if (status != SRNN_OK)
            status = name_run(status, &study->runs[i]);
    }
    free(facts.data);
    return status;
}

srnn_status sr_study_list_runs(sr_study *study, const char *text) {
    for (size_t seed = 0; seed < study->seed_count; seed++)
        for (size_t task = 0; task < study->task_count; task++)
            SR_TRY(add_task(study, task, study->seeds[seed], text));
    SR_TRY(select_runs(study));
    return check_names(study);
}

srnn_status sr_study_expand(sr_study *study, const char *text) {
    SR_TRY(sr_study_list_runs(study, text));
    return sr_study_price(study);
}
