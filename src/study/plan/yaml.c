/* yaml.c: reads a study from YAML. */
#include "base/text.h"
#include "model/config/config.h"
#include "model/mixers.h"
#include "study/plan/students.h"
#include "study/plan/study.h"
#include "train/run/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* A document being read. */
typedef struct reader {
    const char *where;
    yaml_document_t *document;
    sr_study *study;
} reader;

/* Reads the value of a key. */
typedef srnn_status key_reader(reader *r, yaml_node_t *value, void *to);

typedef struct key {
    const char *name;
    key_reader *read;
    void *to;
} key;

static srnn_status fail(const reader *r, const yaml_node_t *node, const char *what) {
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu: %s", r->where, node->start_mark.line + 1, what);
}

static yaml_node_t *node_at(const reader *r, int index) {
    return yaml_document_get_node(r->document, index);
}

static srnn_status scalar(const char **text, const reader *r, const yaml_node_t *node) {
    if (node->type != YAML_SCALAR_NODE)
        return fail(r, node, "a single word or number is wanted here");
    if (strlen((const char *)node->data.scalar.value) != node->data.scalar.length)
        return fail(r, node, "a text with a zero byte");
    *text = (const char *)node->data.scalar.value;
    return SRNN_OK;
}

static srnn_status wrong_key(const reader *r, const yaml_node_t *node, const char *name,
                             const key *keys, size_t count) {
    enum { MOST_KEYS = 24 };
    const char *names[MOST_KEYS];
    for (size_t i = 0; i < count && i < MOST_KEYS; i++)
        names[i] = keys[i].name;
    const char *near = sr_nearest_word(name, names, count < MOST_KEYS ? count : MOST_KEYS);
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu: \"%s\" means nothing here%s%s%s", r->where,
                   node->start_mark.line + 1, name, near ? "; did you mean \"" : "",
                   near ? near : "", near ? "\"?" : "");
}

/* A mapping whose keys (at most 32) are all known, each given at most once. */
static srnn_status read_keys(reader *r, yaml_node_t *node, const key *keys, size_t count) {
    uint32_t seen = 0;
    if (node->type != YAML_MAPPING_NODE)
        return fail(r, node, "\"name: value\" lines are wanted here");
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        const char *name = "";
        size_t i = 0;
        SR_TRY(scalar(&name, r, node_at(r, p->key)));
        while (i < count && strcmp(keys[i].name, name) != 0)
            i++;
        if (i == count)
            return wrong_key(r, node_at(r, p->key), name, keys, count);
        if (seen & UINT32_C(1) << i)
            return fail(r, node_at(r, p->key), "given twice");
        seen |= UINT32_C(1) << i;
        SR_TRY(keys[i].read(r, node_at(r, p->value), keys[i].to));
    }
    return SRNN_OK;
}

static srnn_status copy(char **out, const char *text) {
    *out = strdup(text);
    return *out ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
}

static srnn_status read_text(reader *r, yaml_node_t *value, void *to) {
    const char *text = "";
    SR_TRY(scalar(&text, r, value));
    return copy(to, text);
}

static srnn_status read_words(reader *r, yaml_node_t *value, void *to) {
    const char *text = "";
    if (value->type != YAML_SEQUENCE_NODE)
        return fail(r, value, "a list is wanted here, as in [a, b]");
    for (yaml_node_item_t *item = value->data.sequence.items.start;
         item < value->data.sequence.items.top; item++) {
        SR_TRY(scalar(&text, r, node_at(r, *item)));
        SR_TRY(sr_word_list_add(to, text));
    }
    return SRNN_OK;
}

static srnn_status read_pairs(reader *r, yaml_node_t *value, void *to) {
    const char *name = "", *text = "";
    if (value->type != YAML_MAPPING_NODE)
        return fail(r, value, "\"name: value\" lines are wanted here");
    for (yaml_node_pair_t *p = value->data.mapping.pairs.start; p < value->data.mapping.pairs.top;
         p++) {
        SR_TRY(scalar(&name, r, node_at(r, p->key)));
        SR_TRY(scalar(&text, r, node_at(r, p->value)));
        SR_TRY(sr_pairs_add(to, name, text, node_at(r, p->key)->start_mark.line + 1));
    }
    return SRNN_OK;
}

static srnn_status read_measure(reader *r, yaml_node_t *value, void *to) {
    const char *text = "";
    SR_TRY(scalar(&text, r, value));
    for (sr_measure m = SR_MEASURE_LOSS; m <= SR_MEASURE_ACCURACY; m++)
        if (strcmp(text, sr_measure_name(m)) == 0) {
            *(sr_measure *)to = m;
            return SRNN_OK;
        }
    return fail(r, value, "a measure is loss or accuracy");
}

/* Names are printed to terminals, which interpret control characters: below 0x20, 0x7f, and 0x80 to
 * 0x9f, which in UTF-8 follow a byte 0xc2. (Invalid UTF-8 was rejected by the YAML parser.) */
static srnn_status check_name(const reader *r, const yaml_node_t *node, const char *name) {
    if (!*name)
        return fail(r, node, "a name is empty");
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < 0x20 || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f))
            return fail(r, node, "a name holds a control character");
    return SRNN_OK;
}

/* The named entries of a mapping: *list (count, each of `size` zero bytes) begins with a name. */
static srnn_status read_entries(reader *r, yaml_node_t *node, void **list, size_t *count,
                                size_t size, key_reader *read) {
    if (node->type != YAML_MAPPING_NODE)
        return fail(r, node, "\"name: value\" lines are wanted here");
    const yaml_node_pair_t *first = node->data.mapping.pairs.start;
    const size_t entries = (size_t)(node->data.mapping.pairs.top - first);
    *list = calloc(entries ? entries : 1, size);
    if (!*list)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    for (size_t i = 0; i < entries; i++) {
        const char *name = "";
        char *entry = (char *)*list + i * size;
        SR_TRY(scalar(&name, r, node_at(r, first[i].key)));
        SR_TRY(check_name(r, node_at(r, first[i].key), name));
        for (size_t before = 0; before < i; before++)
            if (strcmp(*(char **)(void *)((char *)*list + before * size), name) == 0)
                return fail(r, node_at(r, first[i].key), "a name is given twice");
        (*count)++;
        SR_TRY(copy((char **)(void *)entry, name));
        SR_TRY(read(r, node_at(r, first[i].value), entry));
    }
    return SRNN_OK;
}

static srnn_status read_layers(sr_study_variant *variant) {
    sr_model_config config;
    SR_TRY(sr_attention_by_layers(&config, &variant->by_layers, variant->attention));
    variant->fixed_state = variant->by_layers;
    for (int layer = 0; layer < config.L; layer++)
        variant->fixed_state =
            variant->fixed_state && srnn_attention_has_state(&config.attention[layer]) &&
            (!config.parallel || srnn_attention_has_state(&config.parallel[layer]));
    sr_model_config_free(&config);
    return SRNN_OK;
}

static srnn_status read_attention(sr_study_variant *variant) {
    sr_model_config named = {0};
    bool whole_model;
    SR_TRY(sr_mixer_parse(&named, &whole_model, variant->attention));
    variant->mixer = named.mixer;
    if (whole_model)
        return SRNN_OK;
    SR_TRY(read_layers(variant));
    if (variant->by_layers)
        return SRNN_OK;
    SR_TRY(srnn_attention_parse(&variant->descriptor, variant->attention));
    variant->fixed_state = srnn_attention_has_state(&variant->descriptor);
    return SRNN_OK;
}

static srnn_status read_variant(reader *r, yaml_node_t *value, void *to) {
    sr_study_variant *variant = to;
    const key keys[] = {{"attention", read_text, &variant->attention},
                        {"settings", read_pairs, &variant->settings}};
    if (value->type == YAML_MAPPING_NODE)
        SR_TRY(read_keys(r, value, keys, sizeof keys / sizeof *keys));
    else
        SR_TRY(read_text(r, value, &variant->attention));
    if (!variant->attention)
        return fail(r, value, "a variant needs an attention");
    if (read_attention(variant) != SRNN_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", srnn_error_detail());
        return fail(r, value, why);
    }
    return SRNN_OK;
}

static srnn_status read_variants(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    void *list = study->variants;
    const srnn_status status =
        read_entries(r, value, &list, &study->variant_count, sizeof *study->variants, read_variant);
    study->variants = list;
    return status;
}

static srnn_status read_task(reader *r, yaml_node_t *value, void *to) {
    sr_study_task *task = to;
    const key keys[] = {{"title", read_text, &task->title},
                        {"measure", read_measure, &task->measure},
                        {"variants", read_words, &task->variants},
                        {"settings", read_pairs, &task->settings}};
    return read_keys(r, value, keys, sizeof keys / sizeof *keys);
}

static srnn_status read_tasks(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    void *list = study->tasks;
    const srnn_status status =
        read_entries(r, value, &list, &study->task_count, sizeof *study->tasks, read_task);
    study->tasks = list;
    return status;
}

static srnn_status read_size(reader *r, yaml_node_t *value, void *to) {
    return read_pairs(r, value, &((sr_study_size *)to)->settings);
}

static srnn_status read_sizes(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    void *list = study->sizes;
    const srnn_status status =
        read_entries(r, value, &list, &study->size_count, sizeof *study->sizes, read_size);
    study->sizes = list;
    return status;
}

static srnn_status read_numbers(double **numbers, size_t *count, reader *r, yaml_node_t *value) {
    sr_word_list words = {0};
    srnn_status status = read_words(r, value, &words);
    if (status == SRNN_OK && !(*numbers = calloc(words.count ? words.count : 1, sizeof **numbers)))
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    for (size_t i = 0; status == SRNN_OK && i < words.count; i++) {
        char *end;
        (*numbers)[i] = strtod(words.words[i], &end);
        if (end == words.words[i] || *end || !((*numbers)[i] >= 0) || !isfinite((*numbers)[i]))
            status = fail(r, value, "a list of numbers is wanted here");
        for (size_t before = 0; status == SRNN_OK && before < i; before++)
            if ((*numbers)[before] == (*numbers)[i])
                status = fail(r, value, "a number is given twice");
    }
    *count = status == SRNN_OK ? words.count : 0;
    sr_word_list_free(&words);
    return status;
}

static srnn_status read_rate_list(double **rates, size_t *count, reader *r, yaml_node_t *value) {
    SR_TRY(read_numbers(rates, count, r, value));
    for (size_t i = 0; i < *count; i++)
        if ((*rates)[i] > SR_LEARNING_RATE_MAX)
            return fail(r, value, "a learning rate is at most 1000");
    return SRNN_OK;
}

static srnn_status read_rates(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    return read_rate_list(&study->rates, &study->rate_count, r, value);
}

/* `tune: {learning-rate: [..], per: variant, share: 0.5}` */
static srnn_status read_tune_rates(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    SR_TRY(read_rate_list(&study->tune_rates, &study->tune_count, r, value));
    for (size_t i = 0; i < study->tune_count; i++)
        if (!(study->tune_rates[i] > 0))
            return fail(r, value, "a learning rate to try is above 0");
    return study->tune_count > 1 ? SRNN_OK
                                 : fail(r, value, "tuning needs two learning rates or more");
}

static srnn_status read_tune_scope(reader *r, yaml_node_t *value, void *to) {
    const char *text = "";
    (void)to;
    SR_TRY(scalar(&text, r, value));
    return strcmp(text, "variant") == 0 ? SRNN_OK : fail(r, value, "rates are tuned per: variant");
}

static srnn_status read_tune_share(reader *r, yaml_node_t *value, void *to) {
    double *share = to;
    const char *text = "";
    char *end;
    SR_TRY(scalar(&text, r, value));
    *share = strtod(text, &end);
    return end != text && !*end && *share > 0 && *share <= 1
               ? SRNN_OK
               : fail(r, value, "share is a part of the steps: above 0, at most 1");
}

static srnn_status read_tune(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    const key keys[] = {{"learning-rate", read_tune_rates, study},
                        {"per", read_tune_scope, NULL},
                        {"share", read_tune_share, &study->tune_share}};
    SR_TRY(read_keys(r, value, keys, sizeof keys / sizeof *keys));
    return study->tune_count ? SRNN_OK
                             : fail(r, value, "tune needs learning-rate: [0.001, 0.002, ..]");
}

static srnn_status read_settle(reader *r, yaml_node_t *value, void *to) {
    const char *text = "";
    char *end;
    SR_TRY(scalar(&text, r, value));
    *(double *)to = strtod(text, &end);
    return end > text && !*end && *(double *)to > 0 && isfinite(*(double *)to)
               ? SRNN_OK
               : fail(r, value, "settle is a difference above 0 that matters, as in 0.01");
}

/* ---- a study of students */

static srnn_status read_teacher(reader *r, yaml_node_t *value, void *to) {
    sr_study_teacher *teacher = to;
    const key keys[] = {{"attention", read_text, &teacher->attention},
                        {"model", read_text, &teacher->model},
                        {"settings", read_pairs, &teacher->settings}};
    teacher->wanted = true;
    SR_TRY(read_keys(r, value, keys, sizeof keys / sizeof *keys));
    if (teacher->model && (teacher->attention || teacher->settings.count))
        return fail(r, value,
                    "a teacher that is a model has its attention and is not trained: "
                    "leave attention and settings out");
    return teacher->attention || teacher->model ? SRNN_OK : copy(&teacher->attention, "softmax");
}

static srnn_status read_budget(reader *r, yaml_node_t *value, void *to) {
    return read_text(r, value, &((sr_study_budget *)to)->keep);
}

static srnn_status read_budgets(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    void *list = study->budgets;
    const srnn_status status =
        read_entries(r, value, &list, &study->budget_count, sizeof *study->budgets, read_budget);
    study->budgets = list;
    return status;
}

/* Stages and settings: wrong values of stages are found here, with their line. */
static srnn_status read_students(reader *r, yaml_node_t *value, void *to) {
    sr_pairs *pairs = to;
    sr_distil_request request = {0};
    bool known;
    SR_TRY(read_pairs(r, value, pairs));
    for (size_t i = 0; i < pairs->count; i++)
        if (sr_distil_request_set(&request, &known, pairs->names[i], pairs->values[i]) != SRNN_OK) {
            char why[512];
            snprintf(why, sizeof why, "%s", srnn_error_detail());
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu: %s", r->where, pairs->lines[i], why);
        }
    return SRNN_OK;
}

static srnn_status read_controls(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    const key keys[] = {{"teacher", read_pairs, &study->again_settings},
                        {"scratch", read_pairs, &study->scratch_settings}};
    return read_keys(r, value, keys, sizeof keys / sizeof *keys);
}

static srnn_status read_optimizers(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    sr_run_settings settings = {0};
    SR_TRY(read_words(r, value, &study->optimizers));
    srnn_status status = sr_run_settings_create(&settings);
    for (size_t i = 0; status == SRNN_OK && i < study->optimizers.count; i++)
        if (sr_run_settings_set(&settings, "optimizer", study->optimizers.words[i]) != SRNN_OK)
            status = fail(r, value, "optimizers are adamw and muon");
    sr_run_settings_free(&settings);
    return status;
}

static srnn_status read_seeds(reader *r, yaml_node_t *value, void *to) {
    sr_study *study = to;
    double *numbers = NULL;
    size_t count = 0;
    srnn_status status = read_numbers(&numbers, &count, r, value);
    study->seeds = calloc(count ? count : 1, sizeof *study->seeds);
    if (status == SRNN_OK && !study->seeds)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    for (size_t i = 0; status == SRNN_OK && i < count; i++) {
        if (numbers[i] != floor(numbers[i]) || numbers[i] > 9e15)
            status = fail(r, value, "a seed is an integer, 0 or more");
        else
            study->seeds[i] = (int64_t)numbers[i];
    }
    study->seed_count = status == SRNN_OK ? count : 0;
    free(numbers);
    return status;
}

/* The value of a key in a mapping whose keys were read already; NULL: no such key. */
static yaml_node_t *member(const reader *r, const yaml_node_t *mapping, const char *name) {
    for (yaml_node_pair_t *p = mapping->data.mapping.pairs.start;
         p < mapping->data.mapping.pairs.top; p++)
        if (strcmp((const char *)node_at(r, p->key)->data.scalar.value, name) == 0)
            return node_at(r, p->value);
    return NULL;
}

/* The variant of this name. */
static srnn_status find_variant(size_t *index, const reader *r, const yaml_node_t *node) {
    const sr_study *study = r->study;
    const char *name = (const char *)node->data.scalar.value;
    char why[256];
    for (size_t i = 0; i < study->variant_count; i++)
        if (strcmp(study->variants[i].name, name) == 0) {
            *index = i;
            return SRNN_OK;
        }
    snprintf(why, sizeof why, "no variant of the study is called \"%.200s\"", name);
    return fail(r, node, why);
}

static srnn_status check_task(const reader *r, const yaml_node_t *task) {
    const yaml_node_t *names = member(r, task, "variants");
    size_t found;
    for (yaml_node_item_t *item = names ? names->data.sequence.items.start : NULL;
         names && item < names->data.sequence.items.top; item++)
        SR_TRY(find_variant(&found, r, node_at(r, *item)));
    return SRNN_OK;
}

static srnn_status check(const reader *r, const yaml_node_t *root) {
    sr_study *study = r->study;
    const yaml_node_t *baseline = member(r, root, "baseline"), *tasks = member(r, root, "tasks");
    if (!study->variant_count || !study->task_count || !study->seed_count)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: a study needs variants, tasks and seeds", r->where);
    if (baseline)
        SR_TRY(find_variant(&study->baseline, r, baseline));
    for (yaml_node_pair_t *p = tasks->data.mapping.pairs.start; p < tasks->data.mapping.pairs.top;
         p++)
        SR_TRY(check_task(r, node_at(r, p->value)));
    if (study->tune_count && study->rate_count)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: learning-rates compares variants at every rate, tune chooses one for "
                       "each: give one of the two",
                       r->where);
    if (study->settle > 0 && study->seed_count < 3)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: settle needs three seeds or more: two make the first "
                       "interval",
                       r->where);
    for (size_t i = 0; study->tune_count && i < study->seed_count; i++)
        if (study->seeds[i] >= SR_TUNING_SEED)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: seed %" PRId64 ": with tune, seeds are below %d: those from there "
                           "on are used to tune",
                           r->where, study->seeds[i], SR_TUNING_SEED);
    if (study->settle > 0 && study->rate_count > 1)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: settle ends rates after different numbers of seeds, so that the best "
                       "of several learning-rates cannot be chosen: give one rate, or tune instead",
                       r->where);
    if (study->teacher.wanted && baseline)
        return fail(r, baseline, "the baseline of a study with a teacher is the teacher");
    SR_TRY(sr_study_add_students(study));
    return sr_study_add_optimizers(study);
}

static srnn_status read_root(reader *r, yaml_node_t *root) {
    sr_study *study = r->study;
    char *baseline = NULL;
    const key keys[] = {{"name", read_text, &study->name},
                        {"title", read_text, &study->title},
                        {"baseline", read_text, &baseline},
                        {"seeds", read_seeds, study},
                        {"variants", read_variants, study},
                        {"settings", read_pairs, &study->settings},
                        {"tasks", read_tasks, study},
                        {"sizes", read_sizes, study},
                        {"learning-rates", read_rates, study},
                        {"only", read_words, &study->only},
                        {"skip", read_words, &study->skip},
                        {"cluster", read_pairs, &study->cluster},
                        {"tune", read_tune, study},
                        {"optimizers", read_optimizers, study},
                        {"settle", read_settle, &study->settle},
                        {"teacher", read_teacher, &study->teacher},
                        {"students", read_students, &study->student_settings},
                        {"budgets", read_budgets, study},
                        {"controls", read_controls, study}};
    srnn_status status = read_keys(r, root, keys, sizeof keys / sizeof *keys);
    if (status == SRNN_OK)
        status = check(r, root);
    if (status == SRNN_OK && !study->name)
        status = copy(&study->name, "study");
    if (status == SRNN_OK && !study->title)
        status = copy(&study->title, study->name);
    free(baseline);
    return status;
}

/* Deeper nesting is not a study, and parsing it would take quadratic time. */
static srnn_status check_depth(const char *where, const char *text, size_t bytes) {
    enum { MOST_DEPTH = 16 };
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", where);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    int depth = 0, deepest = 0;
    for (bool done = false; !done && depth <= MOST_DEPTH;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event))
            break; /* the parser below reports the error */
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        deepest = depth > deepest ? depth : deepest;
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return deepest <= MOST_DEPTH
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_FORMAT, "%s: lists within lists, more than %d deep", where,
                         MOST_DEPTH);
}

static srnn_status read_document(sr_study *study, const char *where, yaml_parser_t *parser) {
    yaml_document_t document;
    if (!yaml_parser_load(parser, &document))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu: %s", where, parser->problem_mark.line + 1,
                       parser->problem ? parser->problem : "not YAML");
    reader r = {where, &document, study};
    yaml_node_t *root = yaml_document_get_root_node(&document);
    const srnn_status status =
        root ? read_root(&r, root) : SR_FAIL(SRNN_ERR_FORMAT, "%s: the file is empty", where);
    yaml_document_delete(&document);
    return status;
}

srnn_status sr_study_read(sr_study *study, const char *where, const char *text, size_t bytes) {
    yaml_parser_t parser;
    *study = (sr_study){.tune_share = 0.5};
    SR_TRY(check_depth(where, text, bytes));
    study->text = strndup(text, bytes);
    study->where = strdup(where);
    if (!study->text || !study->where || !yaml_parser_initialize(&parser))
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", where);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    const srnn_status status = read_document(study, where, &parser);
    yaml_parser_delete(&parser);
    return status;
}
