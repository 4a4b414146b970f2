/* progress.c: the progress of a run besides weights and moments: run.json in a checkpoint. */
#include "train/run/progress.h"

#include "files/json.h"
#include "files/path.h"

#include <stddef.h>
#include <string.h>

#define NAME "run.json"

static const struct {
    const char *key;
    size_t offset;
} numbers[] = {
    {"step", offsetof(sr_progress, step)},
    {"updates", offsetof(sr_progress, updates)},
    {"tokens", offsetof(sr_progress, tokens)},
    {"skipped", offsetof(sr_progress, skipped)},
    {"skipped_in_row", offsetof(sr_progress, skipped_in_row)},
    {"metrics_bytes", offsetof(sr_progress, metrics_bytes)},
    {"timings_bytes", offsetof(sr_progress, timings_bytes)},
    {"events_bytes", offsetof(sr_progress, events_bytes)},
    {"data_sum", offsetof(sr_progress, data_sum)},
    {"data_stamp", offsetof(sr_progress, data_stamp)},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

srnn_status sr_progress_write(const sr_progress *progress, const char *identity, const char *folder,
                              const sr_file_sum *known, size_t count) {
    json_t *files;
    SR_TRY(sr_file_sums_make(&files, folder, known, count));
    json_t *root = json_object();
    sr_json_set(root, "run", json_string(identity));
    for (size_t i = 0; i < NUMBERS; i++) {
        int64_t value;
        memcpy(&value, (const char *)progress + numbers[i].offset, sizeof value);
        sr_json_set(root, numbers[i].key, json_integer(value));
    }
    sr_json_set(root, "files", files);
    return sr_json_replace(root, folder, NAME, JSON_INDENT(1));
}

static srnn_status wrong(const char *folder, const char *why) {
    return SR_FAIL(SRNN_ERR_FORMAT, "%s/" NAME ": %s", folder, why);
}

static srnn_status read_numbers(sr_progress *progress, const json_t *root, const char *folder) {
    for (size_t i = 0; i < NUMBERS; i++) {
        const json_t *value = json_object_get(root, numbers[i].key);
        const int64_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0)
            return SR_FAIL(SRNN_ERR_FORMAT, "%s/" NAME ": %s is not a count", folder,
                           numbers[i].key);
        memcpy((char *)progress + numbers[i].offset, &number, sizeof number);
    }
    return SRNN_OK;
}

/* The numbers follow from each other and from the settings; a contradiction means damage. */
static srnn_status check(const sr_progress *p, const sr_run_settings *s, int64_t step,
                         const char *folder) {
    int64_t tokens;
    if (p->step != step || p->step < 1 || p->step > s->steps)
        return wrong(folder, "is of another step than its folder's name says");
    if (p->skipped > p->step || p->skipped_in_row > p->skipped ||
        p->updates != p->step - p->skipped)
        return wrong(folder, "counts steps, updates and skipped steps that do not add up");
    if (__builtin_mul_overflow((int64_t)s->B * s->T, p->step, &tokens) ||
        __builtin_mul_overflow(tokens, s->accumulate, &tokens) || p->tokens != tokens)
        return wrong(folder, "counts other tokens than the steps of this run have");
    return SRNN_OK;
}

static srnn_status read_root(sr_progress *progress, const sr_run_settings *settings, int64_t step,
                             const char *folder, const json_t *root) {
    if (strcmp(sr_json_text_of(root, "run"), settings->identity) != 0)
        return wrong(folder, "the checkpoint is of another run than run.yaml");
    SR_TRY(read_numbers(progress, root, folder));
    return check(progress, settings, step, folder);
}

static srnn_status load(json_t **root, const char *folder) {
    char path[SR_PATH_BYTES];
    *root = NULL;
    SR_TRY(sr_path_join(path, folder, NAME));
    return sr_json_load(root, path, JSON_REJECT_DUPLICATES);
}

srnn_status sr_progress_read(sr_progress *progress, const sr_run_settings *settings, int64_t step,
                             const char *folder) {
    json_t *root;
    *progress = (sr_progress){0};
    SR_TRY(load(&root, folder));
    const srnn_status status = read_root(progress, settings, step, folder, root);
    json_decref(root);
    return status;
}

bool sr_progress_is_optimizer(const char *name) {
    return strncmp(name, SR_OPTIMIZER_STEM, strlen(SR_OPTIMIZER_STEM)) == 0;
}

bool sr_progress_is_there(const char *folder) {
    return sr_path_has(folder, NAME);
}

srnn_status sr_progress_check_files(const char *folder, const sr_file_sums_part *part) {
    json_t *root;
    SR_TRY(load(&root, folder));
    const json_t *files = sr_json_object_of(root, "files");
    const srnn_status status = files ? sr_file_sums_check(files, folder, part)
                                     : wrong(folder, "does not list the files of the checkpoint");
    json_decref(root);
    return status;
}

bool sr_progress_is_of(const char *folder, const char *identity) {
    json_t *root;
    const bool is =
        load(&root, folder) == SRNN_OK && strcmp(sr_json_text_of(root, "run"), identity) == 0;
    json_decref(root);
    return is;
}
