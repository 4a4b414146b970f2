/* plan.c: expands a study into runs and computes their cost. */
#include "base/text.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "files/path.h"
#include "model/model.h"
#include "study/plan/study.h"
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

static bool uses(const sr_study_task *task, const char *variant) {
    for (size_t i = 0; i < task->variants.count; i++)
        if (strcmp(task->variants.words[i], variant) == 0)
            return true;
    return task->variants.count == 0;
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
        const char *value = placed(path, study, pairs->names[i], pairs->values[i]);
        const srnn_status status = sr_run_settings_set(settings, pairs->names[i], value);
        if (status != SRNN_OK)
            return name_line(status, study, pairs->lines[i]);
    }
    return SRNN_OK;
}

static srnn_status make_settings(sr_study_run *run, const sr_study *study, double rate,
                                 int64_t seed, const char *text) {
    sr_run_settings *s = &run->settings;
    SR_TRY(sr_run_settings_create(s));
    SR_TRY(set_all(s, study, &study->settings));
    SR_TRY(set_all(s, study, &study->tasks[run->task].settings));
    if (study->size_count)
        SR_TRY(set_all(s, study, &study->sizes[run->size].settings));
    SR_TRY(set_all(s, study, &study->variants[run->variant].settings));
    SR_TRY(sr_run_settings_text(&s->attention, study->variants[run->variant].attention));
    run->text = strcmp(s->data, text_data) == 0;
    if (run->text)
        SR_TRY(sr_run_settings_text(&s->data, text));
    s->learning_rate = rate > 0 ? rate : s->learning_rate;
    if (study->tune_count)
        s->validation_half = SR_HALF_FIRST; /* the other half is used to tune the learning rate */
    s->seed = seed;
    return sr_run_settings_apply_preset(s);
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

/* Value heads; each has a separate state per level. */
static double states_of(const sr_model_config *c, int layer) {
    const sr_layer_sizes *s = &c->sizes[layer];
    const int heads = sr_shares_queries(&c->attention[layer]) ? s->H : s->Hkv;
    return (double)heads * (s->levels ? s->levels : 1);
}

/* Of one layer; 0: it has no state of fixed size. */
static double layer_state_bytes(const sr_model_config *c, int layer) {
    const sr_layer_sizes *s = &c->sizes[layer];
    return (double)srnn_attention_state_numbers(&c->attention[layer], s->D, s->Dv) *
           states_of(c, layer) * (double)sizeof(float);
}

static double state_bytes(const sr_model_config *c) {
    double bytes = 0;
    if (c->is_avey)
        return NAN;
    for (int layer = 0; layer < c->L; layer++) {
        const double own = layer_state_bytes(c, layer);
        if (own == 0)
            return NAN;
        bytes += own;
    }
    return bytes;
}

/* Keys and values of T tokens; of the chunks, where they are pooled, and of a window. In a hybrid,
 * layers that have a state keep that instead. */
static double cache_bytes(const sr_model_config *c, double T) {
    double bytes = 0;
    if (c->is_avey) /* every embedding, which the ranker reads */
        return (double)c->C * T * (double)sizeof(float);
    const bool some_need_caches = isnan(state_bytes(c));
    for (int layer = 0; layer < c->L; layer++) {
        const double state = layer_state_bytes(c, layer);
        if (some_need_caches && state > 0) {
            bytes += state;
            continue;
        }
        const sr_layer_sizes *s = &c->sizes[layer];
        const srnn_attention *a = &c->attention[layer];
        const bool wide = sr_shares_queries(a) && a->pool; /* pooled with gates of each head */
        const int values = sr_shares_queries(a) ? s->H : s->Hkv, keys = wide ? s->H : s->Hkv;
        const double rows = a->pool ? ceil(T / a->pool) : (double)sr_keys_seen(a, (int64_t)T);
        bytes += ((double)keys * s->D + (double)values * s->Dv) * rows * (double)sizeof(float);
    }
    return bytes;
}

/* FLOPs of one layer's forward pass for a token: of the pairs that it sees, or of writing a state
 * and reading it, whichever is less, as form=auto chooses. */
static double attention_flops(const sr_model_config *c, int layer, double T) {
    const sr_layer_sizes *s = &c->sizes[layer];
    const srnn_attention *a = &c->attention[layer];
    const double keys = (a->pool ? T / a->pool : T) / 2;
    const double pairs = 2.0 * s->H * (s->D + s->Dv) * keys;
    const size_t numbers = srnn_attention_state_numbers(a, s->D, s->Dv);
    const double readings = (double)s->H * (s->levels ? s->levels : 1);
    return numbers ? fmin(pairs, 2.0 * (double)numbers * (readings + states_of(c, layer))) : pairs;
}

static double all_attention_flops(const sr_model_config *c, double T) {
    double flops = 0;
    if (c->is_avey) /* as softmax of the same heads */
        return 2.0 * c->L * c->H * c->D * T;
    for (int layer = 0; layer < c->L; layer++)
        flops += attention_flops(c, layer, T);
    return flops;
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
    const double T = s->T; /* the model may have more positions, for tests */
    sr_tensor_table table;
    SR_TRY(sr_model_tensors(&table, c));
    run->parameters = sr_tensor_table_learned(&table);
    sr_tensor_table_free(&table);
    const double multiplying = (double)run->parameters - (c->tied ? 0.0 : (double)c->V * c->C);
    const double tokens_of_a_step = (double)s->B * T * s->accumulate;
    run->steps = steps_of(s, tokens_of_a_step);
    run->tokens = tokens_of_a_step * (double)run->steps;
    run->flops = run->tokens * (6 * multiplying + 3 * all_attention_flops(c, T));
    run->state_bytes = state_bytes(c);
    run->cache_bytes = cache_bytes(c, T);
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
    SR_TRY(sr_run_model_config(&config, s, "", facts->V));
    srnn_status status = sr_model_config_check(&config);
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
                if (uses(&study->tasks[task], study->variants[v].name))
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
