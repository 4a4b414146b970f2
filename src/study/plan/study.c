/* study.c: the parts of a study: lists, names, and freeing them. */
#include "study/plan/study.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sr_measure_name(sr_measure measure) {
    switch (measure) {
    case SR_MEASURE_LOSS:
        return "loss";
    case SR_MEASURE_ACCURACY:
        return "accuracy";
    }
    return "";
}

const char *sr_study_role_name(sr_study_role role) {
    switch (role) {
    case SR_ROLE_VARIANT:
        return "variant";
    case SR_ROLE_TEACHER:
        return "teacher";
    case SR_ROLE_STUDENT:
        return "student";
    case SR_ROLE_SCRATCH:
        return "scratch";
    }
    return "";
}

static srnn_status no_memory(void) {
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
}

/* Appends a copy of a string to a list. */
static srnn_status push(char ***list, size_t count, const char *text) {
    char **grown = realloc(*list, (count + 1) * sizeof *grown);
    if (!grown)
        return no_memory();
    *list = grown;
    grown[count] = strdup(text);
    return grown[count] ? SRNN_OK : no_memory();
}

srnn_status sr_word_list_add(sr_word_list *words, const char *word) {
    SR_TRY(push(&words->words, words->count, word));
    words->count++;
    return SRNN_OK;
}

srnn_status sr_word_list_split(sr_word_list *words, const char *text) {
    char *copy = strdup(text), *rest = copy;
    srnn_status status = copy ? SRNN_OK : no_memory();
    while (status == SRNN_OK && rest) {
        const char *word = strsep(&rest, ",");
        if (*word)
            status = sr_word_list_add(words, word);
    }
    free(copy);
    return status;
}

void sr_word_list_free(sr_word_list *words) {
    for (size_t i = 0; i < words->count; i++)
        free(words->words[i]);
    free(words->words);
    *words = (sr_word_list){0};
}

srnn_status sr_pairs_add(sr_pairs *pairs, const char *name, const char *value, size_t line) {
    size_t *lines = realloc(pairs->lines, (pairs->count + 1) * sizeof *lines);
    if (!lines)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
    pairs->lines = lines;
    lines[pairs->count] = line;
    SR_TRY(push(&pairs->names, pairs->count, name));
    const srnn_status status = push(&pairs->values, pairs->count, value);
    if (status != SRNN_OK) {
        free(pairs->names[pairs->count]);
        return status;
    }
    pairs->count++;
    return SRNN_OK;
}

void sr_pairs_free(sr_pairs *pairs) {
    for (size_t i = 0; i < pairs->count; i++) {
        free(pairs->names[i]);
        free(pairs->values[i]);
    }
    free(pairs->names);
    free(pairs->values);
    free(pairs->lines);
    *pairs = (sr_pairs){0};
}

/* ---- optimizers */

static srnn_status copy_variant(sr_study_variant *to, const sr_study_variant *from,
                                const char *optimizer) {
    char name[256];
    snprintf(name, sizeof name, "%.200s %.40s", from->name, optimizer);
    *to = (sr_study_variant){.descriptor = from->descriptor,
                             .mixer = from->mixer,
                             .by_layers = from->by_layers,
                             .fixed_state = from->fixed_state};
    to->name = strdup(name);
    to->attention = strdup(from->attention);
    if (!to->name || !to->attention)
        return no_memory();
    for (size_t i = 0; i < from->settings.count; i++)
        SR_TRY(sr_pairs_add(&to->settings, from->settings.names[i], from->settings.values[i],
                            from->settings.lines[i]));
    return sr_pairs_add(&to->settings, "optimizer", optimizer, 0);
}

/* Tasks that name the variant also get the copy. */
static srnn_status add_to_tasks(sr_study *study, const char *variant, const char *copy) {
    for (size_t t = 0; t < study->task_count; t++) {
        sr_word_list *names = &study->tasks[t].variants;
        for (size_t i = 0, count = names->count; i < count; i++)
            if (strcmp(names->words[i], variant) == 0)
                SR_TRY(sr_word_list_add(names, copy));
    }
    return SRNN_OK;
}

static srnn_status check_new_name(const sr_study *study, const char *name) {
    for (size_t i = 0; i < study->variant_count; i++)
        if (strcmp(study->variants[i].name, name) == 0)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: optimizers: there is a variant \"%s\" already; give it another "
                           "name",
                           study->where, name);
    return SRNN_OK;
}

srnn_status sr_study_add_optimizers(sr_study *study) {
    const size_t variants = study->variant_count, optimizers = study->optimizers.count;
    if (optimizers == 0)
        return SRNN_OK;
    sr_study_variant *grown =
        realloc(study->variants, variants * optimizers * sizeof *study->variants);
    if (!grown)
        return no_memory();
    study->variants = grown;
    for (size_t o = 1; o < optimizers; o++)
        for (size_t v = 0; v < variants; v++) {
            sr_study_variant copy;
            const srnn_status status = copy_variant(&copy, &grown[v], study->optimizers.words[o]);
            if (status == SRNN_OK && check_new_name(study, copy.name) == SRNN_OK) {
                grown[study->variant_count++] = copy;
                SR_TRY(add_to_tasks(study, grown[v].name, copy.name));
                continue;
            }
            free(copy.name);
            free(copy.attention);
            sr_pairs_free(&copy.settings);
            return status == SRNN_OK ? SRNN_ERR_FORMAT : status;
        }
    for (size_t v = 0; v < variants; v++)
        SR_TRY(sr_pairs_add(&grown[v].settings, "optimizer", study->optimizers.words[0], 0));
    return SRNN_OK;
}

void sr_study_variant_free(sr_study_variant *variant) {
    free(variant->name);
    free(variant->attention);
    free(variant->system);
    sr_pairs_free(&variant->settings);
}

static void free_task(sr_study_task *task) {
    free(task->name);
    free(task->title);
    sr_word_list_free(&task->variants);
    sr_pairs_free(&task->settings);
}

void sr_study_free(sr_study *study) {
    for (size_t i = 0; i < study->variant_count; i++)
        sr_study_variant_free(&study->variants[i]);
    for (size_t i = 0; i < study->budget_count; i++) {
        free(study->budgets[i].name);
        free(study->budgets[i].keep);
    }
    for (size_t i = 0; i < study->task_count; i++)
        free_task(&study->tasks[i]);
    for (size_t i = 0; i < study->size_count; i++) {
        free(study->sizes[i].name);
        sr_pairs_free(&study->sizes[i].settings);
    }
    for (size_t i = 0; i < study->run_count; i++) {
        free(study->runs[i].id);
        sr_run_settings_free(&study->runs[i].settings);
    }
    sr_pairs_free(&study->settings);
    sr_word_list_free(&study->optimizers);
    sr_word_list_free(&study->only);
    sr_word_list_free(&study->skip);
    sr_pairs_free(&study->cluster);
    sr_pairs_free(&study->teacher.settings);
    sr_pairs_free(&study->student_settings);
    sr_pairs_free(&study->again_settings);
    sr_pairs_free(&study->scratch_settings);
    free(study->teacher.attention);
    free(study->teacher.model);
    free(study->budgets);
    free(study->name);
    free(study->title);
    free(study->text);
    free(study->where);
    free(study->folder);
    free(study->out);
    free(study->variants);
    free(study->tasks);
    free(study->sizes);
    free(study->rates);
    free(study->tune_rates);
    free(study->seeds);
    free(study->runs);
    *study = (sr_study){0};
}
