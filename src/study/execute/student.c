/* student.c: a student of a study, stage by stage. */
#include "study/execute/student.h"

#include "distil/measurement.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/memory_stream.h"
#include "files/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sr_is_student(const sr_study_run *run) {
    return run->request.keep != NULL;
}

bool sr_student_has_run(const char *folder) {
    return sr_path_has(folder, "plan/copy.yaml");
}

static sr_distil_request request_of(const sr_study_run *run, const sr_run_settings *common) {
    sr_distil_request request = run->request;
    request.common = common;
    return request;
}

/* ---- whether a plan in the folder is that of the run */

/* SRNN_OK if the plan in the folder is that of the run. *moved: but with paths of a study's folder
 * that was elsewhere. */
static srnn_status compare(const sr_study_run *run, const char *folder, bool *moved) {
    sr_run_settings planned, common;
    *moved = false;
    SR_TRY(sr_distil_plan(&planned, folder, SR_STAGE_COPY));
    srnn_status status = sr_run_settings_create(&common);
    if (status == SRNN_OK)
        status = sr_run_settings_copy(&common, &run->settings);
    if (status == SRNN_OK)
        status =
            sr_worker_follow(&common.teacher, moved, planned.teacher, "/" SR_STUDY_TEACHERS "/");
    if (status == SRNN_OK && run->text)
        status = sr_worker_follow(&common.data, moved, planned.data, "/" SR_STUDY_TEXT);
    const sr_distil_request request = request_of(run, &common);
    if (status == SRNN_OK)
        status = sr_distil_check(folder, &request);
    sr_run_settings_free(&common);
    sr_run_settings_free(&planned);
    return status;
}

srnn_status sr_student_check(const sr_study_run *run, const char *folder) {
    bool moved;
    return sr_student_has_run(folder) ? compare(run, folder, &moved) : SRNN_OK;
}

/* ---- the records of all stages as those of one run */

/* A file being put together. */
typedef struct joiner {
    FILE *out;
    const char *stage, *path;
    int64_t steps, tokens, skipped;             /* of the stages before */
    int64_t last_step, last_tokens, last_skips; /* of this one */
} joiner;

static void shift(json_t *line, const char *name, int64_t before, int64_t *last) {
    const json_t *own = json_object_get(line, name);
    if (!own)
        return;
    *last = before + json_integer_value(own);
    sr_json_set(line, name, json_integer((json_int_t)*last));
}

static srnn_status add_line(void *context, const json_t *object, size_t number) {
    joiner *j = context;
    char *text;
    if (!object)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu is not a JSON object", j->path, number);
    json_t *line = json_copy((json_t *)(uintptr_t)object);
    shift(line, "step", j->steps, &j->last_step);
    shift(line, "tokens", j->tokens, &j->last_tokens);
    shift(line, "skipped", j->skipped, &j->last_skips);
    sr_json_set(line, "stage", json_string(j->stage));
    const srnn_status status = sr_json_dump(&text, line, JSON_REAL_PRECISION(9), "a record");
    json_decref(line);
    SR_TRY(status);
    fprintf(j->out, "%s\n", text);
    free(text);
    return SRNN_OK;
}

static srnn_status join_stages(joiner *j, const char *folder, const char *name) {
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        char path[SR_PATH_BYTES];
        j->stage = sr_stage_name((sr_stage)stage);
        j->path = path;
        SR_TRY(sr_path_print(path, "%s/%s/%s", folder, j->stage, name));
        SR_TRY(sr_json_lines_read(path, add_line, j));
        j->steps = j->last_step;
        j->tokens = j->last_tokens;
        j->skipped = j->last_skips;
    }
    return SRNN_OK;
}

static srnn_status join(const char *folder, const char *name) {
    char path[SR_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    joiner j = {.out = sr_memory_stream(&text, &bytes)};
    if (!j.out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the records of %s", folder);
    srnn_status status = join_stages(&j, folder, name);
    if (fclose(j.out) != 0 && status == SRNN_OK)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the records of %s", folder);
    if (status == SRNN_OK)
        status = sr_path_join(path, folder, name);
    if (status == SRNN_OK)
        status = sr_file_replace(path, text, bytes);
    free(text);
    return status;
}

/* ---- the stages */

/* Everything that distil has made; the plan last, because it says that the rest may be there. */
static srnn_status forget(const char *folder) {
    static const char *const names[] = {"align", "distil", "tune", "copy", "tokens", "plan"};
    char path[SR_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SR_TRY(sr_path_join(path, folder, names[i]));
        SR_TRY(sr_folder_remove(path));
    }
    return SRNN_OK;
}

/* A plan whose paths have moved is begun again: its runs would not find their teacher. */
static srnn_status begin(const sr_study_run *run, const char *folder) {
    const sr_distil_request request = request_of(run, &run->settings);
    sr_student_parts parts;
    bool moved = false;
    if (sr_student_has_run(folder)) {
        SR_TRY(compare(run, folder, &moved));
        if (!moved)
            return sr_distil_continue(folder);
        SR_TRY(forget(folder));
    }
    return sr_distil_begin(folder, &request, &parts);
}

/* A student at work. */
typedef struct worker {
    const char *folder;
    int threads;
    sr_worker_board *board;
    int64_t before; /* steps of the stages before */
    double bytes;   /* of the memory of the stage */
} worker;

static srnn_status run_stage(worker *w, sr_stage stage, bool *ended) {
    sr_run *run;
    *ended = true;
    SR_TRY(sr_distil_open(&run, w->folder, stage, &(sr_run_ends){.threads = w->threads}));
    if (!run)
        return SRNN_OK;
    w->bytes = (double)sr_run_bytes(run);
    const srnn_status status = sr_worker_steps(run, w->board, w->before);
    *ended = sr_run_done(run);
    sr_run_free(run);
    return status;
}

static srnn_status measure(const char *folder, int threads) {
    json_t *record;
    SR_TRY(join(folder, "metrics.jsonl"));
    SR_TRY(join(folder, "timings.jsonl"));
    SR_TRY(sr_measurement_make(&record,
                               &(sr_measurement_request){.folder = folder, .threads = threads}));
    return sr_json_replace(record, folder, "student.json", JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

srnn_status sr_student_work(const sr_study_run *run, const char *folder, int threads,
                            sr_worker_board *board, bool *ended, double *bytes) {
    worker w = {.folder = folder, .threads = threads, .board = board};
    SR_TRY(begin(run, folder));
    *ended = true;
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES && *ended; stage++) {
        if (!run->request.stages[stage])
            continue;
        const srnn_status status = run_stage(&w, (sr_stage)stage, ended);
        *bytes = w.bytes > 0 ? w.bytes : *bytes;
        SR_TRY(status);
        w.before += run->request.steps[stage];
    }
    return *ended ? measure(folder, threads) : SRNN_OK;
}
