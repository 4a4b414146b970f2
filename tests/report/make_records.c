/* make_records.c: writes the records of a study from a list of its runs' results, without training,
 * with the statistics of `softrnn study`: make_records STUDY.yaml ENDINGS FOLDER
 *
 * A line of the list: a run's id, how it ended ("finished", "diverged", "failed", "running"), its
 * last validation loss and accuracy ("nan": none), skipped steps. Runs that are not in it have not
 * begun; those marked "unrequested" were not requested. */
#include "files/file.h"
#include "files/folder.h"
#include "files/path.h"
#include "study/execute/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ending {
    char id[200], status[16];
    double loss, accuracy, skipped;
} ending;

static void print_number(FILE *out, const char *key, double value) {
    if (isfinite(value))
        fprintf(out, ", \"%s\": %.9g", key, value);
    else
        fprintf(out, ", \"%s\": null", key);
}

/* Four validations, the last with the numbers of the list; batches scatter equally in every run. */
static int write_metrics(FILE *out, const ending *e, int64_t steps) {
    enum { VALIDATIONS = 4, BATCHES = 6 };
    const int count = strcmp(e->status, "finished") == 0 ? VALIDATIONS : 2;
    for (int i = 1; i <= count; i++) {
        const double above = 0.5 * (VALIDATIONS - i);
        fprintf(out, "{\"step\": %lld, \"tokens\": %d", (long long)(steps * i / VALIDATIONS),
                64 * i);
        print_number(out, "loss", e->loss + above);
        fprintf(out, ", \"gradient_norm\": %.3g, \"learning_rate\": 0.001, \"skipped\": %.0f",
                0.5 + above, e->skipped);
        print_number(out, "validation_loss", e->loss + above);
        print_number(out, "validation_accuracy", e->accuracy);
        fputs(", \"validation_losses\": [", out);
        for (int b = 0; b < BATCHES; b++)
            fprintf(out, "%s%.9g", b ? ", " : "",
                    (isfinite(e->loss) ? e->loss : 0) + above +
                        0.001 * (b * (int)strlen(e->id) % 5));
        fputs("]}\n", out);
    }
    return ferror(out) || fclose(out) != 0;
}

static int write_result(FILE *out, const ending *e, int64_t steps) {
    fprintf(out,
            "{\"status\": \"%s\", \"message\": \"\", \"step\": %lld, \"tokens\": 256, \"skipped\": "
            "%.0f, "
            "\"parameters\": 100, \"memory_bytes\": 1000, \"seconds\": 1, \"cpu_seconds\": 1, "
            "\"threads\": 1}\n",
            e->status, (long long)steps, e->skipped);
    return ferror(out) || fclose(out) != 0;
}

static FILE *open_in(const char *folder, const char *id, const char *name) {
    char path[SR_PATH_BYTES];
    if (sr_path_print(path, "%s/runs/%s", folder, id) != SRNN_OK ||
        sr_folders_make(path) != SRNN_OK ||
        sr_path_print(path, "%s/runs/%s/%s", folder, id, name) != SRNN_OK)
        return NULL;
    return fopen(path, "w");
}

static int write_run(const char *folder, const ending *e, int64_t steps) {
    FILE *metrics = open_in(folder, e->id, "metrics.jsonl");
    if (!metrics || write_metrics(metrics, e, steps) != 0)
        return -1;
    if (strcmp(e->status, "running") == 0)
        return 0;
    FILE *result = open_in(folder, e->id, "result.json");
    return result ? write_result(result, e, steps) : -1;
}

static const sr_study_run *run_of(const sr_study *study, const char *id) {
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0)
            return &study->runs[i];
    return NULL;
}

/* Writes the runs of the list; requested[i]: run i of the study was requested. */
static int write_runs(const sr_study *study, const char *list, const char *folder,
                      bool *requested) {
    FILE *in = fopen(list, "r");
    ending e;
    int failed = in ? 0 : -1;
    while (!failed && fscanf(in, "%199s %15s %lf %lf %lf", e.id, e.status, &e.loss, &e.accuracy,
                             &e.skipped) == 5) {
        const sr_study_run *run = run_of(study, e.id);
        if (run && strcmp(e.status, "unrequested") == 0)
            requested[run - study->runs] = false;
        else
            failed = run ? write_run(folder, &e, run->steps) : -1;
        if (failed)
            fprintf(stderr, "%s: not a run of the study, or not to be written\n", e.id);
    }
    if (in)
        fclose(in);
    return failed;
}

static srnn_status make(sr_study *study, sr_summary *summary, char **argv) {
    sr_mapping file;
    SR_TRY(sr_mapping_open(&file, argv[1]));
    const srnn_status status = sr_study_read(study, argv[1], (const char *)file.data, file.bytes);
    sr_mapping_close(&file);
    SR_TRY(status);
    SR_TRY(sr_study_expand(study, "@text"));
    SR_TRY(sr_folders_make(argv[3]));
    SR_TRY(sr_study_write(study, argv[3], "softrnn study"));
    bool *requested = malloc(study->run_count * sizeof *requested);
    if (!requested)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory");
    for (size_t i = 0; i < study->run_count; i++)
        requested[i] = true;
    const srnn_status summed = write_runs(study, argv[2], argv[3], requested) == 0
                                   ? sr_study_summarise(summary, study, argv[3], requested)
                                   : SR_FAIL(SRNN_ERR_IO, "%s: no records made", argv[3]);
    free(requested);
    return summed;
}

int main(int argc, char **argv) {
    sr_study study = {0};
    sr_summary summary = {0};
    if (argc != 4) {
        fprintf(stderr, "usage: make_records STUDY.yaml ENDINGS FOLDER\n");
        return 2;
    }
    const srnn_status status = make(&study, &summary, argv);
    if (status != SRNN_OK)
        fprintf(stderr, "make_records: %s\n", srnn_error_detail());
    sr_summary_free(&summary);
    sr_study_free(&study);
    return status == SRNN_OK ? 0 : 1;
}
