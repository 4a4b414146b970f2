/* synthetic.c: the text form of synthetic tasks. */
#include "data/rows/synthetic.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "data/rows/mixture.h"
#include "data/rows/tasks/task.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORD = 32, MOST_TASKS = 32, MOST_LIST = 512 };
/* Separates the tasks' random numbers from other uses of the same seed. */
static const uint64_t seed_stream = 0x73796e746865;

const sr_synthetic_entry *sr_synthetic_at(size_t index) {
    const sr_synthetic_task *task = sr_synthetic_task_at(index);
    return task ? &task->entry : NULL;
}

static const sr_synthetic_task *find_task(const char *text) {
    size_t length = strcspn(text, ":");
    const sr_synthetic_task *task;
    for (size_t i = 0; (task = sr_synthetic_task_at(i)); i++)
        if (strlen(task->entry.name) == length && memcmp(text, task->entry.name, length) == 0)
            return task;
    return NULL;
}

bool sr_synthetic_is(const char *text) {
    return find_task(text) != NULL || sr_mixture_is(text);
}

/* Fails for the word of `length` bytes at `at`, expected to be one of `words`. */
static srnn_status wrong_word(const char *text, const char *at, size_t length, const char *what,
                              const char *const *words, size_t count) {
    char word[MOST_WORD];
    snprintf(word, sizeof word, "%.*s", (int)(length < MOST_WORD ? length : MOST_WORD), at);
    const char *nearest = sr_nearest_word(word, words, count);
    char list[MOST_LIST] = "";
    for (size_t i = 0; i < count; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    return SR_FAIL(SRNN_ERR_FORMAT, "%s: there is no %s \"%s\" (position %d)%s%s%s; there are: %s",
                   text, what, word, (int)(at - text) + 1, nearest ? "; did you mean \"" : "",
                   nearest ? nearest : "", nearest ? "\"?" : "", list);
}

static srnn_status wrong_task(const char *text) {
    const char *names[MOST_TASKS];
    size_t count = 0;
    while (count < MOST_TASKS && sr_synthetic_at(count)) {
        names[count] = sr_synthetic_at(count)->name;
        count++;
    }
    return wrong_word(text, text, strcspn(text, ":"), "task", names, count);
}

static srnn_status find_setting(int *which, const sr_synthetic_task *task, const char *text,
                                const char *at) {
    size_t length = strcspn(at, "=,"), count = 0;
    const char *names[SR_SYNTHETIC_SETTINGS];
    for (; count < SR_SYNTHETIC_SETTINGS && task->settings[count].name; count++) {
        names[count] = task->settings[count].name;
        if (strlen(names[count]) == length && memcmp(at, names[count], length) == 0) {
            *which = (int)count;
            return SRNN_OK;
        }
    }
    return wrong_word(text, at, length, "setting", names, count);
}

/* Reads the number at *at and moves past it. */
static srnn_status read_value(double *value, const sr_synthetic_setting *setting, const char *text,
                              const char **at) {
    char *end = (char *)(uintptr_t)*at;
    bool starts_well = isdigit((unsigned char)**at) || **at == '.' || **at == '-';
    if (starts_well)
        *value = strtod(*at, &end);
    bool well = end > *at && (*end == ',' || *end == 0) && isfinite(*value);
    if (!well || *value < setting->least || *value > setting->most ||
        (!setting->fraction && *value != floor(*value)))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s must be %s from %.10g to %.10g (position %d)", text,
                       setting->name, setting->fraction ? "a number" : "an integer", setting->least,
                       setting->most, (int)(*at - text) + 1);
    *at = end;
    return SRNN_OK;
}

/* "name=value,name=value"; may be empty. */
static srnn_status read_settings(sr_synthetic *self, const char *text, const char *at) {
    unsigned seen = 0;
    while (*at) {
        int which = 0;
        const char *name = at;
        SR_TRY(find_setting(&which, self->task, text, at));
        if (seen & 1u << which)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is given twice (position %d)", text,
                           self->task->settings[which].name, (int)(name - text) + 1);
        seen |= 1u << which;
        at += strlen(self->task->settings[which].name);
        if (*at != '=')
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s needs a value, as in %s=%g (position %d)", text,
                           self->task->settings[which].name, self->task->settings[which].name,
                           self->task->settings[which].standard, (int)(at - text) + 1);
        at++;
        SR_TRY(read_value(&self->values[which], &self->task->settings[which], text, &at));
        if (*at == ',' && at[1] == 0)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: a setting is missing after the comma (position %d)", text,
                           (int)(at - text) + 1);
        at += *at == ',';
    }
    return SRNN_OK;
}

static void synthetic_free(sr_source *source) {
    sr_synthetic *self = (sr_synthetic *)source;
    free(self->weights);
    free(self);
}

static srnn_status create_task(sr_source **source, const char *text, uint64_t seed) {
    const sr_synthetic_task *task = find_task(text);
    if (!task)
        return wrong_task(text);
    sr_synthetic *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    created->task = task;
    created->seed = sr_random_bits(seed, seed_stream, 0);
    created->source.fill = task->fill;
    created->source.free = synthetic_free;
    for (int split = 0; split < SR_SPLITS; split++)
        created->source.rows[split] = INT64_MAX;
    for (int i = 0; i < SR_SYNTHETIC_SETTINGS; i++)
        created->values[i] = task->settings[i].standard;
    const char *settings = text + strlen(task->entry.name);
    srnn_status status = read_settings(created, text, settings + (*settings == ':'));
    if (status == SRNN_OK)
        status = task->prepare(created);
    if (status != SRNN_OK) {
        synthetic_free(&created->source);
        return status;
    }
    *source = &created->source;
    return SRNN_OK;
}

srnn_status sr_synthetic_create(sr_source **source, const char *text, uint64_t seed) {
    return sr_mixture_is(text) ? sr_mixture_create(source, text, seed, create_task)
                               : create_task(source, text, seed);
}

double sr_synthetic_chance(const sr_source *source) {
    return source->free == synthetic_free ? 1.0 / ((const sr_synthetic *)source)->answers
                                          : sr_mixture_chance(source);
}

/* The shortest text that parses to the same number. */
static void print_number(char text[MOST_WORD], double number) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, MOST_WORD, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
}

size_t sr_synthetic_print(char *text, size_t size, const sr_source *source) {
    const sr_synthetic *self = (const sr_synthetic *)source;
    size_t length = (size_t)snprintf(text, size, "%s", self->task->entry.name);
    for (int i = 0; i < SR_SYNTHETIC_SETTINGS && self->task->settings[i].name; i++) {
        char *rest = length < size ? text + length : NULL;
        char value[MOST_WORD];
        print_number(value, self->values[i]);
        length += (size_t)snprintf(rest, rest ? size - length : 0, "%c%s=%s", i ? ',' : ':',
                                   self->task->settings[i].name, value);
    }
    return length;
}
