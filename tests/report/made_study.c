/* made_study.c: made-up records of a study, to test and inspect reports. */
#include "made_study.h"

#include "softrnn.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { SEEDS = 3, STEPS = 600, VALIDATE_EVERY = 50, PATH = 512 };

typedef struct made_variant {
    const char *name, *text;
    double loss;     /* of the text task at the end; 0: not in it */
    double accuracy; /* of the recall task at the end; 0: not in it */
    double state_bytes, tokens_per_second;
} made_variant;

static const made_variant variants[] = {
    {"softmax", "softmax", 1.581, 1.0, NAN, 91000},
    {"norm", "norm", 1.572, 1.0, NAN, 93000},
    {"gate", "gate", 1.667, 0.99, NAN, 94000},
    {"no denominator", "softmax,normaliser=none", 1.95, 0.31, NAN, 95000},
    {"gated", "gated_softmax", 1.612, 0, NAN, 82000},
    {"gated, no value gate", "gated_softmax_no_in_gate", 1.64, 0, NAN, 85000},
    {"gated, no output gate", "gated_softmax_no_out_gate", 1.622, 0, NAN, 86000},
    {"gated, no norm", "gated_softmax_no_norm", 1.671, 0, NAN, 88000},
    {"order 1", "order:1", 0, 0.76, 16896, 101000},
    {"order 2", "order:2", 1.597, 1.0, 153 * 1088.0, 64000},
    {"order 4", "order:4", 1.575, 1.0, 4845 * 1088.0, 21000},
    {"order 8", "order:8", 1.579, 1.0, 735471 * 1088.0, 9000},
    {"linear elu", "linear_elu", 1.933, 0.27, 16896, 110000},
    {"linear relu", "linear_relu", 1.838, 0.28, 16896, 112000},
    {"linear cosine", "linear_cosine_intended", 1.705, 0.85, 16384, 104000},
};

enum { VARIANTS = sizeof variants / sizeof *variants };

typedef struct made_task {
    const char *name, *title, *measure, *data;
    double learning_rate, noise, half_width;
    int length;
} made_task;

static const made_task tasks[] = {
    {"recall", "Associative recall", "accuracy", "recall:pairs=8,length=48", 3e-3, 0.012, 0.03, 48},
    {"kjv", "Language model on the King James Bible", "loss", "@text", 2e-3, 0.014, 0.031, 128},
    {"long", "Associative recall, twice as long", "accuracy", "recall:pairs=8,length=96", 3e-3,
     0.012, 0.03, 96},
};

enum { TASKS = sizeof tasks / sizeof *tasks };

static const char *const systems[VARIANTS] = {"softmax",
                                              "power",
                                              "forget",
                                              "mamba2",
                                              "gla",
                                              "delta_net",
                                              "gated_delta_net",
                                              "log_linear",
                                              "log_linear_mamba2",
                                              "log_linear_gated_delta_net",
                                              "rat",
                                              "grela",
                                              "nala",
                                              "avey",
                                              "avey_causal"};

static const char *variant_text(int v, made_kind kind) {
    return kind == MADE_SYSTEMS ? systems[v] : variants[v].text;
}

static const char *variant_name(int v, made_kind kind) {
    if (kind == MADE_SYSTEMS)
        return systems[v];
    return kind == MADE_HOSTILE && v == 2 ? HOSTILE_NAME : variants[v].name;
}

static int seeds_of(made_kind kind) {
    return kind == MADE_ONE_SEED ? 1 : SEEDS;
}

/* How a run ended. */
typedef enum ending { FINISHED = 0, DIVERGED, NOT_FINITE } ending;

static ending ending_of(made_kind kind, int t, int v, int seed) {
    if (kind != MADE_BROKEN)
        return FINISHED;
    if (t == 1 && (v == 12 || (v == 2 && seed > 1)))
        return DIVERGED;
    return t == 0 && v == 9 && seed == 2 ? NOT_FINITE : FINISHED;
}

/* The final measure of variant v in task t; 0: it is not in the task. */
static double goal(int t, int v) {
    if (t == 2)
        return v == 0 || v == 1 || v == 12 ? 0.9 * variants[v].accuracy : 0;
    return t == 0 ? variants[v].accuracy : variants[v].loss;
}

static bool is_recall(int t) {
    return t != 1;
}

/* From -1 to 1, the same every time. */
static double noise(int a, int b, int c) {
    unsigned hash = (unsigned)(a * 7919 + b * 104729 + c * 1299709 + 17);
    hash ^= hash >> 13;
    hash *= 0x5bd1e995u;
    hash ^= hash >> 15;
    hash *= 0x27d4eb2du;
    hash ^= hash >> 13;
    return (double)(hash % 20001) / 10000 - 1;
}

static double final_measure(int t, int v, int seed) {
    const double value = goal(t, v) + tasks[t].noise * noise(t, v, seed);
    return is_recall(t) ? fmin(1, value) : value;
}

static double accuracy_at(int t, int v, int seed, int step) {
    const double end = final_measure(t, v, seed);
    const double rise = 1 / (1 + exp(-(step - 250.0 - 20 * v) / 40));
    const double last = 1 / (1 + exp(-(STEPS - 250.0 - 20 * v) / 40));
    return fmin(1, 0.06 + (end - 0.06) * rise / last);
}

static double loss_at(int t, int v, int seed, int step) {
    if (is_recall(t))
        return 2.8 * (1.03 - accuracy_at(t, v, seed, step));
    return final_measure(t, v, seed) + 4 * (exp(-step / 60.0) - exp(-STEPS / 60.0)) +
           0.5 * (exp(-step / 300.0) - exp(-STEPS / 300.0));
}

static void run_id(char id[64], int t, int v, int seed) {
    snprintf(id, 64, "%s.v%d.%d", tasks[t].name, v, seed);
}

/* A run that diverged stops before its first validation. */
static int write_metrics(FILE *out, int t, int v, int seed, ending end) {
    for (int step = 1; step <= (end == DIVERGED ? VALIDATE_EVERY - 1 : STEPS); step++) {
        fprintf(out,
                "{\"step\": %d, \"tokens\": %d, \"loss\": %.9g, \"gradient_norm\": 0.8, "
                "\"learning_rate\": 0.001, \"skipped\": 0",
                step, step * 3072, loss_at(t, v, seed, step) + 0.08 * noise(step, v, seed));
        if (step == STEPS && end == NOT_FINITE)
            fprintf(out, ", \"validation_loss\": null, \"validation_accuracy\": null");
        else if (step % VALIDATE_EVERY == 0)
            fprintf(out, ", \"validation_loss\": %.9g, \"validation_accuracy\": %.9g",
                    loss_at(t, v, seed, step), is_recall(t) ? accuracy_at(t, v, seed, step) : 0.5);
        fprintf(out, "}\n");
    }
    return ferror(out);
}

static int write_run(const char *folder, int t, int v, int seed, made_kind kind) {
    char id[64], path[PATH];
    const ending end = ending_of(kind, t, v, seed);
    run_id(id, t, v, seed);
    snprintf(path, sizeof path, "%s/runs/%s", folder, id);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/runs/%s/metrics.jsonl", folder, id);
    FILE *out = fopen(path, "w");
    if (!out || write_metrics(out, t, v, seed, end) || fclose(out) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/runs/%s/run.yaml", folder, id);
    out = fopen(path, "w");
    if (!out ||
        fprintf(out, "attention: \"%s\"\nsteps: %d\n%s\n", variant_text(v, kind), STEPS,
                kind == MADE_HOSTILE ? HOSTILE_NAME : "seed: 1") < 0 ||
        fclose(out) != 0)
        return -1;
    json_t *result =
        json_pack("{s:s, s:s, s:i, s:f, s:i}", "status", end == DIVERGED ? "diverged" : "finished",
                  "message", "", "step", STEPS, "seconds", 14.2 + noise(t, v, seed), "threads", 1);
    snprintf(path, sizeof path, "%s/runs/%s/result.json", folder, id);
    const int failed = json_dump_file(result, path, 0);
    json_decref(result);
    return failed;
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *plan_run(int t, int v, int seed, made_kind kind) {
    char id[64], path[80];
    run_id(id, t, v, seed);
    snprintf(path, sizeof path, "runs/%s", id);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:i, s:i, s:i, s:i, s:f, s:f, s:o}", "id", id,
                     "folder", path, "task", tasks[t].name, "variant", variant_name(v, kind),
                     "size", "", "learning_rate", tasks[t].learning_rate, "seed", seed, "steps",
                     STEPS, "batch", 64, "length", tasks[t].length, "tokens",
                     64.0 * STEPS * tasks[t].length, "flops", 2e11 * (1 + 0.01 * v), "state_bytes",
                     number(variants[v].state_bytes));
}

static int write_plan(const char *folder, made_kind kind) {
    char path[PATH];
    json_t *variant_list = json_array(), *task_list = json_array(), *runs = json_array();
    for (int v = 0; v < VARIANTS; v++) {
        srnn_attention attention;
        char text[256];
        if (srnn_attention_parse(&attention, variant_text(v, kind)) == SRNN_OK)
            srnn_attention_print(text, sizeof text, &attention);
        else if (kind == MADE_SYSTEMS) /* Avey is not an attention */
            snprintf(text, sizeof text, "%s", systems[v]);
        else
            return -1;
        json_array_append_new(variant_list,
                              json_pack("{s:s, s:s, s:s}", "name", variant_name(v, kind),
                                        "attention", variant_text(v, kind), "text", text));
    }
    for (int t = 0; t < TASKS; t++) {
        json_array_append_new(task_list,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", tasks[t].name, "title",
                                        kind == MADE_HOSTILE ? HOSTILE_NAME : tasks[t].title,
                                        "data", tasks[t].data, "measure", tasks[t].measure));
        for (int v = 0; v < VARIANTS; v++)
            for (int seed = 1; seed <= seeds_of(kind) && goal(t, v) > 0; seed++)
                json_array_append_new(runs, plan_run(t, v, seed, kind));
    }
    json_t *machine =
        json_pack("{s:s, s:s, s:s, s:i, s:f}", "system", "Linux", "machine", "x86_64", "processor",
                  "a made-up processor", "processors", 2, "memory_bytes", 8e9);
    json_t *plan = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}",
                             "format", "softrnn-study", "version", 1, "name", "made", "title",
                             kind == MADE_HOSTILE ? HOSTILE_NAME : "Which part of softmax matters?",
                             "baseline", "softmax", "command", "softrnn study --out runs/study",
                             "softrnn", "0.1.0", "revision", "0000000", "machine", machine,
                             "variants", variant_list, "tasks", task_list, "runs", runs);
    snprintf(path, sizeof path, "%s/study.json", folder);
    const int failed = json_dump_file(plan, path, JSON_INDENT(1));
    json_decref(plan);
    return failed;
}

/* Results of the seeds that have one. */
typedef struct sample {
    double values[SEEDS];
    int seeds[SEEDS], count;
} sample;

static double end_of(int t, int v, int seed, bool accuracy) {
    return accuracy ? accuracy_at(t, v, seed, STEPS) : loss_at(t, v, seed, STEPS);
}

/* Results of variant v, minus those of variant `minus` (-1: none). */
static sample ends_of(made_kind kind, int t, int v, int minus, bool accuracy) {
    sample s = {.count = 0};
    for (int seed = 1; seed <= seeds_of(kind); seed++)
        if (ending_of(kind, t, v, seed) == FINISHED) {
            const double other = minus < 0 ? 0 : end_of(t, minus, seed, accuracy);
            s.values[s.count] = end_of(t, v, seed, accuracy) - other;
            s.seeds[s.count++] = seed;
        }
    return s;
}

static double mean_of(const sample *s) {
    double sum = 0;
    for (int i = 0; i < s->count; i++)
        sum += s->values[i];
    return s->count ? sum / s->count : NAN;
}

static double deviation_of(const sample *s) {
    double squares = 0;
    for (int i = 0; i < s->count; i++)
        squares += (s->values[i] - mean_of(s)) * (s->values[i] - mean_of(s));
    return s->count > 1 ? sqrt(squares / (s->count - 1)) : NAN;
}

static json_t *spread(made_kind kind, int t, int v, bool accuracy) {
    const sample s = ends_of(kind, t, v, -1, accuracy);
    return json_pack("{s:o, s:o, s:i}", "mean", number(mean_of(&s)), "standard_deviation",
                     number(deviation_of(&s)), "count", s.count);
}

static int count_endings(made_kind kind, int t, int v, ending end) {
    int count = 0;
    for (int seed = 1; seed <= seeds_of(kind); seed++)
        count += ending_of(kind, t, v, seed) == end;
    return count;
}

static const char *verdict_of(made_kind kind, int t, int v, double low, double high,
                              bool accuracy) {
    if (count_endings(kind, t, v, FINISHED) < seeds_of(kind))
        return "unstable";
    return !(low > 0) && !(high < 0) ? "unclear" : (low > 0) == accuracy ? "better" : "worse";
}

/* With one seed the loss is compared. */
static json_t *difference(made_kind kind, int t, int v) {
    const bool accuracy = is_recall(t) && kind != MADE_ONE_SEED;
    const sample s = ends_of(kind, t, v, 0, accuracy);
    const double mean = mean_of(&s), low = mean - tasks[t].half_width,
                 high = mean + tasks[t].half_width;
    json_t *pairs = json_array();
    for (int i = 0; i < s.count; i++)
        json_array_append_new(pairs, json_pack("{s:i, s:f}", "seed", s.seeds[i], "difference",
                                               s.values[i]));
    return json_pack("{s:s, s:o, s:o, s:o, s:s, s:o, s:s}", "of", accuracy ? "accuracy" : "loss",
                     "mean", number(mean), "low", number(low), "high", number(high), "method",
                     kind == MADE_ONE_SEED ? "batches" : "moderated", "pairs", pairs, "verdict",
                     verdict_of(kind, t, v, low, high, accuracy));
}

static json_t *summary_entry(int t, int v, made_kind kind) {
    const int diverged = count_endings(kind, t, v, DIVERGED);
    json_t *entry =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:f, s:f, s:o, s:f, s:i}",
                  "variant", variant_name(v, kind), "runs", seeds_of(kind), "finished",
                  seeds_of(kind) - diverged, "diverged", diverged, "failed", 0, "not_finite",
                  count_endings(kind, t, v, NOT_FINITE), "skipped", 0, "loss",
                  spread(kind, t, v, false), "best_loss", spread(kind, t, v, false), "accuracy",
                  spread(kind, t, v, true), "tokens_per_second", variants[v].tokens_per_second,
                  "memory_bytes", 9e6, "state_bytes", number(variants[v].state_bytes),
                  "cache_bytes", tasks[t].length * 1024.0, "parameters", 20000 + 8 * v);
    if (v > 0)
        json_object_set_new(entry, "difference", difference(kind, t, v));
    return entry;
}

static int write_summary(const char *folder, made_kind kind) {
    char path[PATH];
    json_t *cells = json_array();
    int runs = 0;
    for (int t = 0; t < TASKS; t++) {
        const sample noise_sample = ends_of(kind, t, 0, -1, is_recall(t));
        const double deviation = deviation_of(&noise_sample);
        json_t *entries = json_array();
        for (int v = 0; v < VARIANTS; v++)
            if (goal(t, v) > 0) {
                json_array_append_new(entries, summary_entry(t, v, kind));
                runs += seeds_of(kind);
            }
        json_array_append_new(cells, json_pack("{s:s, s:s, s:f, s:s, s:{s:i, s:o, s:o}, s:o}",
                                               "task", tasks[t].name, "size", "", "learning_rate",
                                               tasks[t].learning_rate, "measure", tasks[t].measure,
                                               "noise", "seeds", seeds_of(kind),
                                               "standard_deviation", number(deviation), "floor",
                                               number(sqrt(2) * deviation), "variants", entries));
    }
    json_t *summary =
        json_pack("{s:s, s:i, s:s, s:f, s:i, s:i, s:i, s:o}", "format", "softrnn-summary",
                  "version", 1, "baseline", "softmax", "confidence", 0.95, "runs", runs, "finished",
                  runs, "missing", 0, "cells", cells);
    snprintf(path, sizeof path, "%s/summary.json", folder);
    const int failed = json_dump_file(summary, path, JSON_INDENT(1));
    json_decref(summary);
    return failed;
}

int made_study_write(const char *folder, made_kind kind) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/runs", folder);
    mkdir(path, 0777);
    for (int t = 0; t < TASKS; t++)
        for (int v = 0; v < VARIANTS; v++)
            for (int seed = 1; seed <= seeds_of(kind) && goal(t, v) > 0; seed++)
                if (write_run(folder, t, v, seed, kind))
                    return -1;
    return write_plan(folder, kind) || write_summary(folder, kind) ? -1 : 0;
}
