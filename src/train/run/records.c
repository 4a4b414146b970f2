/* records.c: the records of a run. */
#include "train/run/records.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/memory_stream.h"
#include "train/run/log_file.h"
#include "train/run/tensorboard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define METRICS "metrics.jsonl"
#define TIMINGS "timings.jsonl"
#define EVENTS  "events.out.tfevents.softrnn"

struct sr_run_records {
    sr_log_file *metrics, *timings, *events;
};

/* The retained part must end with the record of the last step. */
static bool ends_with_step(const char *text, size_t bytes, int64_t step) {
    char begin[64];
    const int length = snprintf(begin, sizeof begin, "{\"step\": %" PRId64 ",", step);
    if (bytes == 0 || text[bytes - 1] != '\n')
        return bytes == 0 && step == 0;
    const char *before = memrchr(text, '\n', bytes - 1);
    const char *line = before ? before + 1 : text;
    return (size_t)(text + bytes - line) > (size_t)length &&
           memcmp(line, begin, (size_t)length) == 0;
}

static bool ends_right(const sr_mapping *file, int64_t keep, int64_t step) {
    return (size_t)keep <= file->bytes &&
           (step < 0 ? sr_tensorboard_ends(file->data, (size_t)keep)
                     : ends_with_step((const char *)file->data, (size_t)keep, step));
}

/* Of a resumed run; step -1: events. */
static srnn_status check_record(const char *folder, const char *name, int64_t keep, int64_t step) {
    char path[SR_PATH_BYTES];
    sr_mapping file;
    SR_TRY(sr_path_join(path, folder, name));
    if (access(path, F_OK) != 0)
        return SR_FAIL(SRNN_ERR_IO,
                       "%s: the record of the steps before the checkpoint is missing: put it "
                       "back, or begin a new run from the checkpoint with --model %s --out NEW",
                       path, folder);
    SR_TRY(sr_mapping_open(&file, path));
    const bool right = ends_right(&file, keep, step);
    sr_mapping_close(&file);
    return right ? SRNN_OK
                 : SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: has no record that ends where the checkpoint says the last one "
                           "does: the file or the checkpoint is damaged",
                           path);
}

static srnn_status check_records(const char *folder, const sr_progress *p) {
    SR_TRY(check_record(folder, METRICS, p->metrics_bytes, p->step));
    SR_TRY(check_record(folder, TIMINGS, p->timings_bytes, p->step));
    return check_record(folder, EVENTS, p->events_bytes, -1);
}

static srnn_status open_one(sr_log_file **file, const char *folder, const char *name,
                            int64_t keep) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    return sr_log_file_open(file, path, keep);
}

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static srnn_status open_all(sr_run_records *records, const char *folder, const sr_progress *p) {
    SR_TRY(open_one(&records->metrics, folder, METRICS, p->metrics_bytes));
    SR_TRY(open_one(&records->timings, folder, TIMINGS, p->timings_bytes));
    SR_TRY(open_one(&records->events, folder, EVENTS, p->events_bytes));
    return p->events_bytes == 0 ? sr_tensorboard_begin(records->events, wall_seconds()) : SRNN_OK;
}

srnn_status sr_run_records_open(sr_run_records **records, const char *folder,
                                const sr_progress *progress) {
    void *memory;
    *records = NULL;
    if (progress->step > 0)
        SR_TRY(check_records(folder, progress));
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **records));
    const srnn_status status = open_all(memory, folder, progress);
    if (status != SRNN_OK) {
        sr_run_records_free(memory);
        return status;
    }
    *records = memory;
    return SRNN_OK;
}

void sr_run_records_free(sr_run_records *records) {
    if (!records)
        return;
    sr_log_file_free(records->metrics);
    sr_log_file_free(records->timings);
    sr_log_file_free(records->events);
    free(records);
}

/* JSON has no NaN and no infinity. */
static const char *number(char text[32], double value) {
    if (isfinite(value))
        snprintf(text, 32, "%.9g", value);
    else
        snprintf(text, 32, "null");
    return text;
}

/* How far the student is from its teacher. */
static void print_lesson(FILE *out, const sr_validation *validation) {
    char text[32];
    if (isfinite(validation->kl))
        fprintf(out, ", \"validation_kl\": %s", number(text, validation->kl));
    if (!validation->layers)
        return;
    fputs(", \"layer_errors\": [", out);
    for (int i = 0; i < validation->layers; i++)
        fprintf(out, "%s%s", i ? ", " : "", number(text, validation->errors[i].error));
    fputs("], \"layer_sizes\": [", out);
    for (int i = 0; i < validation->layers; i++)
        fprintf(out, "%s%s", i ? ", " : "", number(text, validation->errors[i].size));
    putc(']', out);
}

static void print_validation(FILE *out, const sr_validation *validation) {
    char loss[32], accuracy[32];
    fprintf(out, ", \"validation_loss\": %s, \"validation_accuracy\": %s, \"validation_losses\": [",
            number(loss, validation->loss), number(accuracy, validation->accuracy));
    for (int64_t i = 0; i < validation->batches; i++)
        fprintf(out, "%s%s", i ? ", " : "", number(loss, validation->losses[i]));
    putc(']', out);
    print_lesson(out, validation);
}

static void print_metrics(FILE *out, const sr_progress *p, const sr_step *step,
                          const sr_validation *validation) {
    char loss[32], norm[32], rate[32];
    fprintf(out,
            "{\"step\": %" PRId64 ", \"tokens\": %" PRId64
            ", \"loss\": %s, \"gradient_norm\": %s, \"learning_rate\": %s, \"skipped\": %" PRId64,
            p->step, p->tokens, number(loss, step->loss), number(norm, step->gradient_norm),
            number(rate, step->learning_rate), p->skipped);
    if (validation)
        print_validation(out, validation);
    fputs("}\n", out);
}

static srnn_status write_metrics(sr_log_file *file, const sr_progress *p, const sr_step *step,
                                 const sr_validation *validation) {
    char *text = NULL;
    size_t length;
    FILE *out = sr_memory_stream(&text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a record");
    print_metrics(out, p, step, validation);
    srnn_status status = SRNN_OK;
    if (fclose(out) != 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for a record");
    if (status == SRNN_OK)
        status = sr_log_file_append(file, text, length);
    free(text);
    return status;
}

static srnn_status write_timings(sr_log_file *file, const sr_progress *p, const sr_step *step,
                                 double seconds) {
    char line[256];
    const int length =
        snprintf(line, sizeof line,
                 "{\"step\": %" PRId64 ", \"seconds\": %.6f, \"targets_per_second\": %.1f}\n",
                 p->step, seconds, seconds > 0 ? (double)step->targets / seconds : 0.0);
    return sr_log_file_append(file, line, (size_t)length);
}

/* The first failure of several attempts, all of which are made. */
static srnn_status first_failure(srnn_status before, srnn_status now) {
    return before != SRNN_OK ? before : now;
}

/* Each line of the file becomes a line of code in Markdown. */
srnn_status sr_run_records_settings(sr_run_records *records, const char *yaml) {
    sr_mapping file;
    char *text = NULL;
    size_t bytes = 0;
    SR_TRY(sr_mapping_open(&file, yaml));
    FILE *out = sr_memory_stream(&text, &bytes);
    for (size_t i = 0; out && i < file.bytes; i++) {
        if (i == 0 || file.data[i - 1] == '\n')
            fputs("    ", out);
        putc(file.data[i], out);
    }
    sr_mapping_close(&file);
    const bool whole = out && fclose(out) == 0;
    const srnn_status status =
        whole ? sr_tensorboard_text(records->events, wall_seconds(), "settings", text, bytes)
              : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to show it", yaml);
    free(text);
    return status;
}

static srnn_status write_events(sr_log_file *file, const sr_progress *p, const sr_step *step,
                                const sr_validation *validation, double seconds) {
    const struct {
        const char *name;
        double value;
    } scalars[] = {{"loss/train", step->loss},
                   {"gradient_norm", step->gradient_norm},
                   {"learning_rate", step->learning_rate},
                   {"tokens_per_second", seconds > 0 ? (double)step->targets / seconds : 0},
                   {"loss/validation", validation ? validation->loss : 0},
                   {"accuracy/validation", validation ? validation->accuracy : 0}};
    const double now = wall_seconds();
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < (validation ? 6 : 4); i++)
        status = first_failure(status, sr_tensorboard_scalar(file, now, p->step, scalars[i].name,
                                                             scalars[i].value));
    return status;
}

srnn_status sr_run_records_step(sr_run_records *records, const sr_progress *progress,
                                const sr_step *step, const sr_validation *validation,
                                double seconds) {
    srnn_status status = write_metrics(records->metrics, progress, step, validation);
    status = first_failure(status, write_timings(records->timings, progress, step, seconds));
    return first_failure(status,
                         write_events(records->events, progress, step, validation, seconds));
}

srnn_status sr_run_records_sync(sr_run_records *records, sr_progress *progress) {
    SR_TRY(sr_log_file_sync(records->metrics, &progress->metrics_bytes));
    SR_TRY(sr_log_file_sync(records->timings, &progress->timings_bytes));
    return sr_log_file_sync(records->events, &progress->events_bytes);
}
