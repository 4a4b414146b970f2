/* study.c: the parts of a study: lists, names, and freeing them. */
#include "study/plan/study.h"

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

static void free_task(sr_study_task *task) {
    free(task->name);
    free(task->title);
    sr_word_list_free(&task->variants);
    sr_pairs_free(&task->settings);
}

void sr_study_free(sr_study *study) {
    for (size_t i = 0; i < study->variant_count; i++) {
        free(study->variants[i].name);
        free(study->variants[i].attention);
        sr_pairs_free(&study->variants[i].settings);
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
    sr_word_list_free(&study->only);
    sr_word_list_free(&study->skip);
    sr_pairs_free(&study->cluster);
    free(study->name);
    free(study->title);
    free(study->text);
    free(study->where);
    free(study->folder);
    free(study->variants);
    free(study->tasks);
    free(study->sizes);
    free(study->rates);
    free(study->seeds);
    free(study->runs);
    *study = (sr_study){0};
}
