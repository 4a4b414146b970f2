/* record.c: reads the records of one run. */
#include "study/results/record.h"

#include "base/statistics.h"
#include "base/text.h"
#include "files/json.h"
#include "files/path.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sr_ending_name(sr_ending ending) {
    switch (ending) {
    case SR_ENDING_NONE:
        return "";
    case SR_ENDING_FINISHED:
        return "finished";
    case SR_ENDING_DIVERGED:
        return "diverged";
    case SR_ENDING_FAILED:
        return "failed";
    }
    return "";
}

/* ---- result.json */

static sr_ending ending_of(const json_t *object) {
    const char *name = json_string_value(json_object_get(object, "status"));
    for (sr_ending e = SR_ENDING_FINISHED; name && e <= SR_ENDING_FAILED; e++)
        if (strcmp(name, sr_ending_name(e)) == 0)
            return e;
    return SR_ENDING_NONE;
}

srnn_status sr_result_read(sr_result *result, const char *folder) {
    char path[SR_PATH_BYTES];
    json_t *object;
    *result = (sr_result){0};
    SR_TRY(sr_path_join(path, folder, "result.json"));
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_json_load(&object, path, JSON_REJECT_DUPLICATES));
    const char *message = json_string_value(json_object_get(object, "message"));
    *result = (sr_result){.ending = ending_of(object),
                          .step = sr_json_integer_of(object, "step"),
                          .tokens = sr_json_integer_of(object, "tokens"),
                          .skipped = sr_json_integer_of(object, "skipped"),
                          .parameters = sr_json_number_of(object, "parameters"),
                          .memory_bytes = sr_json_number_of(object, "memory_bytes"),
                          .seconds = sr_json_number_of(object, "seconds"),
                          .cpu_seconds = sr_json_number_of(object, "cpu_seconds"),
                          .threads = (int)sr_json_integer_of(object, "threads"),
                          .started = sr_json_number_of(object, "started"),
                          .ended = sr_json_number_of(object, "ended")};
    sr_text_escape(result->host, sizeof result->host, sr_json_text_of(object, "host"));
    sr_text_escape(result->message, sizeof result->message, message ? message : "");
    json_decref(object);
    if (result->ending == SR_ENDING_NONE)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: it does not say how the run ended", path);
    return SRNN_OK;
}

/* A message may quote a file name that is not UTF-8, which JSON requires. */
static json_t *text_of(const char *text) {
    json_t *string = json_string(text);
    return string ? string : json_string("(a message that is not text)");
}

srnn_status sr_result_write(const sr_result *r, const char *folder) {
    json_t *object =
        json_pack("{s:s, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:i, s:o, s:f, s:f}", "status",
                  sr_ending_name(r->ending), "message", text_of(r->message), "step",
                  (json_int_t)r->step, "tokens", (json_int_t)r->tokens, "skipped",
                  (json_int_t)r->skipped, "parameters", r->parameters, "memory_bytes",
                  r->memory_bytes, "seconds", r->seconds, "cpu_seconds", r->cpu_seconds, "threads",
                  r->threads, "host", text_of(r->host), "started", r->started, "ended", r->ended);
    return sr_json_replace(object, folder, "result.json", JSON_INDENT(2) | JSON_REAL_PRECISION(13));
}

/* ---- lines of JSON */

/* A file of a run being read. */
typedef struct line_file {
    char path[SR_PATH_BYTES];
    srnn_status (*read)(void *context, const json_t *object);
    void *context;
} line_file;

static srnn_status visit_line(void *context, const json_t *object, size_t line) {
    const line_file *file = context;
    return object ? file->read(file->context, object)
                  : SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu is not a JSON object", file->path, line);
}

/* Visits every complete line of a file, if it exists. */
static srnn_status read_lines(const char *folder, const char *name,
                              srnn_status (*read)(void *, const json_t *), void *context) {
    line_file file = {.read = read, .context = context};
    SR_TRY(sr_path_join(file.path, folder, name));
    return sr_json_lines_read(file.path, visit_line, &file);
}

static srnn_status keep_batches(sr_record *record, const json_t *list) {
    const size_t count = json_array_size(list);
    double *losses = realloc(record->batch_losses, (count ? count : 1) * sizeof *losses);
    if (!losses)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %zu losses", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *loss = json_array_get(list, i);
        losses[i] = json_is_number(loss) ? json_number_value(loss) : NAN;
    }
    record->batch_losses = losses;
    record->batches = count;
    return SRNN_OK;
}

static srnn_status read_metrics(void *context, const json_t *object) {
    sr_record *record = context;
    if ((record->count & (record->count - 1)) == 0) {
        const size_t capacity = record->count ? 2 * record->count : 1;
        sr_point *grown = realloc(record->points, capacity * sizeof *grown);
        if (!grown)
            return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %zu records", capacity);
        record->points = grown;
    }
    sr_point *point = &record->points[record->count++];
    *point = (sr_point){sr_json_integer_of(object, "step"), sr_json_number_of(object, "loss"),
                        sr_json_number_of(object, "validation_loss"),
                        sr_json_number_of(object, "validation_accuracy")};
    record->tokens = sr_json_integer_of(object, "tokens");
    record->skipped = sr_json_integer_of(object, "skipped");
    if (!json_object_get(object, "validation_loss"))
        return SRNN_OK;
    record->last_loss = point->validation;
    record->last_accuracy = point->accuracy;
    record->best_loss = fmin(record->best_loss, point->validation); /* fmin ignores NaN */
    return keep_batches(record, json_object_get(object, "validation_losses"));
}

typedef struct seconds_list {
    double *seconds;
    size_t count, capacity;
} seconds_list;

static srnn_status read_timing(void *context, const json_t *object) {
    seconds_list *list = context;
    if (list->count < list->capacity)
        list->seconds[list->count++] = sr_json_number_of(object, "seconds");
    return SRNN_OK;
}

static srnn_status read_rate(sr_record *record, const char *folder) {
    seconds_list list = {calloc(record->count + 1, sizeof(double)), 0, record->count};
    if (!list.seconds)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the times of %zu steps", record->count);
    const srnn_status status = read_lines(folder, "timings.jsonl", read_timing, &list);
    for (size_t i = 0; i < list.count; i++)
        record->seconds += list.seconds[i];
    if (status == SRNN_OK && record->count && list.count)
        record->tokens_per_second = (double)record->tokens /
                                    (double)record->points[record->count - 1].step /
                                    sr_median(list.seconds, list.count);
    free(list.seconds);
    return status;
}

srnn_status sr_record_read(sr_record *record, const char *folder) {
    *record = (sr_record){.last_loss = NAN,
                          .best_loss = NAN,
                          .last_accuracy = NAN,
                          .tokens_per_second = NAN};
    SR_TRY(sr_result_read(&record->result, folder));
    SR_TRY(read_lines(folder, "metrics.jsonl", read_metrics, record));
    SR_TRY(read_rate(record, folder));
    if (record->result.ending != SR_ENDING_NONE)
        record->seconds = record->result.seconds; /* not all steps may be there */
    return SRNN_OK;
}

void sr_record_free(sr_record *record) {
    free(record->points);
    free(record->batch_losses);
    *record = (sr_record){0};
}

int64_t sr_record_last_step(const char *folder) {
    enum { LAST_BYTES = 1 << 16 };
    char path[SR_PATH_BYTES], text[LAST_BYTES + 1];
    if (sr_path_join(path, folder, "metrics.jsonl") != SRNN_OK)
        return 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    if (fseek(file, -LAST_BYTES, SEEK_END) != 0)
        rewind(file);
    const size_t bytes = fread(text, 1, LAST_BYTES, file);
    fclose(file);
    text[bytes] = '\0';
    char *end = strrchr(text, '\n'); /* the rest is an incomplete line */
    if (!end)
        return 0;
    *end = '\0';
    const char *line = strrchr(text, '\n');
    const char *step = strstr(line ? line : text, "\"step\": ");
    return step ? strtoll(step + strlen("\"step\": "), NULL, 10) : 0;
}
