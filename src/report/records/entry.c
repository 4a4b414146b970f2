/* entry.c: one variant in one cell of a study, from summary.json. */
#include "report/records/entry.h"

#include "base/memory.h"
#include "files/json.h"
#include "report/draw/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sr_effect_word(sr_effect effect) {
    switch (effect) {
    case SR_EFFECT_UNKNOWN:
        break;
    case SR_EFFECT_BASELINE:
        return "baseline";
    case SR_EFFECT_TOO_FEW:
        return "too few";
    case SR_EFFECT_UNCLEAR:
        return "unclear";
    case SR_EFFECT_BETTER:
        return "better";
    case SR_EFFECT_WORSE:
        return "worse";
    case SR_EFFECT_UNSTABLE:
        return "unstable";
    }
    return "not known";
}

static sr_effect effect_of(const char *verdict) {
    static const sr_effect effects[] = {SR_EFFECT_TOO_FEW, SR_EFFECT_UNCLEAR, SR_EFFECT_BETTER,
                                        SR_EFFECT_WORSE, SR_EFFECT_UNSTABLE};
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        if (strcmp(verdict, sr_effect_word(effects[i])) == 0)
            return effects[i];
    return SR_EFFECT_UNKNOWN;
}

static srnn_status read_seeds(sr_entry *entry, const json_t *difference) {
    void *memory;
    const size_t count = sr_json_count_of(difference, "pairs");
    SR_TRY(sr_alloc(&memory, count, sizeof *entry->seeds));
    entry->seeds = memory;
    for (size_t i = 0; i < count; i++) {
        const double value =
            sr_json_number_of(sr_json_element_of(difference, "pairs", i), "difference");
        if (isfinite(value))
            entry->seeds[entry->seed_count++] = value;
    }
    return SRNN_OK;
}

/* Older summaries also said "unclear" for a difference without an interval. */
static sr_effect without_interval(sr_effect effect, const sr_entry *entry) {
    const bool bounded = isfinite(entry->low) && isfinite(entry->high);
    if (effect == SR_EFFECT_UNCLEAR && !bounded)
        effect = SR_EFFECT_TOO_FEW;
    return effect == SR_EFFECT_TOO_FEW && !isfinite(entry->difference) ? SR_EFFECT_UNKNOWN : effect;
}

/* The verdict is the summary's, unless its own interval contradicts it. */
static srnn_status read_difference(sr_entry *entry, const json_t *difference, bool accuracy) {
    entry->of_accuracy = accuracy && strcmp(sr_json_text_of(difference, "of"), "loss") != 0;
    entry->difference = sr_json_number_of(difference, "mean");
    entry->low = sr_json_number_of(difference, "low");
    entry->high = sr_json_number_of(difference, "high");
    entry->method = sr_json_text_of(difference, "method");
    entry->effect = entry->variant->style == 0 ? SR_EFFECT_BASELINE
                                               : effect_of(sr_json_text_of(difference, "verdict"));
    const bool claims = entry->effect == SR_EFFECT_BETTER || entry->effect == SR_EFFECT_WORSE;
    entry->contradicts = claims && !(entry->low > 0) && !(entry->high < 0);
    entry->effect = entry->contradicts ? SR_EFFECT_UNKNOWN : without_interval(entry->effect, entry);
    return read_seeds(entry, difference);
}

srnn_status sr_entry_read(sr_entry *entry, const sr_variant_record *variant, const json_t *object,
                          bool accuracy) {
    const json_t *measure = sr_json_object_of(object, accuracy ? "accuracy" : "loss");
    *entry = (sr_entry){.variant = variant};
    entry->learning_rate = sr_json_number_of(object, "learning_rate");
    entry->mean = sr_json_number_of(measure, "mean");
    entry->deviation = sr_json_number_of(measure, "standard_deviation");
    entry->loss = sr_json_number_of(sr_json_object_of(object, "loss"), "mean");
    entry->best_loss = sr_json_number_of(sr_json_object_of(object, "best_loss"), "mean");
    entry->runs = sr_json_number_of(object, "runs");
    entry->finished = sr_json_number_of(object, "finished");
    entry->diverged = sr_json_number_of(object, "diverged");
    entry->failed = sr_json_number_of(object, "failed");
    entry->not_finite = sr_json_number_of(object, "not_finite");
    entry->skipped = sr_json_number_of(object, "skipped");
    entry->tokens_per_second = sr_json_number_of(object, "tokens_per_second");
    entry->memory_bytes = sr_json_number_of(object, "memory_bytes");
    entry->parameters = sr_json_number_of(object, "parameters");
    entry->apart = json_is_true(json_object_get(object, "apart"));
    entry->more_parameters = sr_json_number_of(object, "more_parameters");
    entry->state_bytes = sr_json_number_of(object, "state_bytes");
    entry->cache_bytes = sr_json_number_of(object, "cache_bytes");
    return read_difference(entry, sr_json_object_of(object, "difference"), accuracy);
}

void sr_entry_free(sr_entry *entry) {
    free(entry->seeds);
    free(entry->members);
    entry->seeds = NULL;
    entry->members = NULL;
}

sr_cost sr_entry_cost(const sr_entry *entry) {
    if (entry->of_accuracy)
        return (sr_cost){-entry->difference, -entry->high, -entry->low};
    return (sr_cost){entry->difference, entry->low, entry->high};
}

bool sr_entry_falls_short(const sr_entry *entry) {
    return entry->effect == SR_EFFECT_WORSE || entry->effect == SR_EFFECT_UNSTABLE;
}

double sr_entry_memory(const sr_entry *entry) {
    return isfinite(entry->state_bytes) ? entry->state_bytes : entry->cache_bytes;
}

bool sr_entry_compared(const sr_entry *entry) {
    return sr_entry_judged(entry) || entry->effect == SR_EFFECT_TOO_FEW;
}

bool sr_entry_judged(const sr_entry *entry) {
    return sr_entry_falls_short(entry) || entry->effect == SR_EFFECT_BETTER ||
           entry->effect == SR_EFFECT_UNCLEAR;
}

void sr_entry_write_broken(char *words, size_t size, const sr_entry *entry) {
    const struct {
        double count;
        const char *what;
    } ways[] = {{entry->diverged, "diverged"},
                {entry->not_finite, "ended without a finite number"},
                {entry->failed, "failed"}};
    size_t used = 0;
    *words = '\0';
    for (size_t i = 0; i < sizeof ways / sizeof *ways && used < size; i++)
        if (ways[i].count > 0) {
            used += (size_t)snprintf(words + used, size - used, "%s%s in %s", used ? ", " : "",
                                     ways[i].what, sr_format_count(ways[i].count).text);
            if (used < size)
                used += (size_t)snprintf(words + used, size - used, " of %s seed%s",
                                         sr_format_count(entry->runs).text,
                                         entry->runs == 1 ? "" : "s");
        }
    if (!*words)
        snprintf(words, size, "not all seeds ended with a number");
}

void sr_entry_write_parameters(char words[48], const sr_entry *entry) {
    const double percent = 100 * fabs(entry->more_parameters);
    *words = '\0';
    if (percent < 1e6)
        snprintf(words, 48, "%.*f\u202f%% %s parameters", percent < 10 ? 1 : 0, percent,
                 entry->more_parameters > 0 ? "more" : "fewer");
}
