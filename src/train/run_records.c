/* run_records.c: what a run writes down. */
#include "train/run_records.h"

#include "base/memory.h"
#include "train/log_file.h"
#include "train/tensorboard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct sr_run_records {
    sr_log_file *metrics, *timings, *events;
};

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
    SR_TRY(open_one(&records->metrics, folder, "metrics.jsonl", p->metrics_bytes));
    SR_TRY(open_one(&records->timings, folder, "timings.jsonl", p->timings_bytes));
    SR_TRY(open_one(&records->events, folder, "events.out.tfevents.softrnn", p->events_bytes));
    return p->events_bytes == 0 ? sr_tensorboard_begin(records->events, wall_seconds()) : SRNN_OK;
}

srnn_status sr_run_records_open(sr_run_records **records, const char *folder,
                                const sr_progress *progress) {
    void *memory;
    *records = NULL;
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

static void print_validation(FILE *out, const sr_validation *validation) {
    char loss[32], accuracy[32];
    fprintf(out, ", \"validation_loss\": %s, \"validation_accuracy\": %s, \"validation_losses\": [",
            number(loss, validation->loss), number(accuracy, validation->accuracy));
    for (int64_t i = 0; i < validation->batches; i++)
        fprintf(out, "%s%s", i ? ", " : "", number(loss, validation->losses[i]));
    putc(']', out);
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
    FILE *out = open_memstream(&text, &length);
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

/* The first failure of several attempts, none of which is left out. */
static srnn_status first_failure(srnn_status before, srnn_status now) {
    return before != SRNN_OK ? before : now;
}

static srnn_status write_events(sr_log_file *file, const sr_progress *p, const sr_step *step,
                                const sr_validation *validation) {
    const struct {
        const char *name;
        double value;
    } scalars[] = {{"loss/train", step->loss},
                   {"gradient_norm", step->gradient_norm},
                   {"learning_rate", step->learning_rate},
                   {"loss/validation", validation ? validation->loss : 0},
                   {"accuracy/validation", validation ? validation->accuracy : 0}};
    const double now = wall_seconds();
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < (validation ? 5 : 3); i++)
        status = first_failure(
            status, sr_tensorboard_scalar(file, now, p->step, scalars[i].name, scalars[i].value));
    return status;
}

srnn_status sr_run_records_step(sr_run_records *records, const sr_progress *progress,
                                const sr_step *step, const sr_validation *validation,
                                double seconds) {
    srnn_status status = write_metrics(records->metrics, progress, step, validation);
    status = first_failure(status, write_timings(records->timings, progress, step, seconds));
    return first_failure(status, write_events(records->events, progress, step, validation));
}

srnn_status sr_run_records_sync(sr_run_records *records, sr_progress *progress) {
    SR_TRY(sr_log_file_sync(records->metrics, &progress->metrics_bytes));
    SR_TRY(sr_log_file_sync(records->timings, &progress->timings_bytes));
    return sr_log_file_sync(records->events, &progress->events_bytes);
}
