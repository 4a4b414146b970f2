/* execute.c: a study from its file to its summary, in a folder. */
#include "study/execute/execute.h"

#include "files/file.h"
#include "files/folder.h"
#include "files/path.h"
#include "study/execute/files.h"
#include "study/execute/folder.h"
#include "study/execute/launch/ranks.h"
#include "study/execute/launch/slurm.h"
#include "study/execute/settle.h"
#include "study/execute/teachers.h"
#include "study/execute/tune.h"
#include "study/execute/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds to wait for the workers of a killed study, which hold its folder's lock until they
 * end. */
static const double lock_patience = 5;

static srnn_status read_study(sr_study *study, const char *path) {
    sr_mapping file;
    size_t bytes;
    if (!path) {
        const char *text = sr_study_default(&bytes);
        return sr_study_read(study, "the default study", text, bytes);
    }
    SR_TRY(sr_mapping_open(&file, path));
    srnn_status status = sr_study_read(study, path, (const char *)file.data, file.bytes);
    sr_mapping_close(&file);
    const char *slash = strrchr(path, '/');
    study->folder = strndup(slash ? path : ".", slash ? (size_t)(slash - path) + 1 : 1);
    if (status == SRNN_OK && !study->folder)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", path);
    return status;
}

/* The study of the request: its file, or the one in its folder. */
static srnn_status read_present(sr_study *study, const sr_study_request *r) {
    char own[SR_PATH_BYTES];
    if (access(r->out, F_OK) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: there is no such folder; --out names that of a study",
                       r->out);
    if (r->file)
        return read_study(study, r->file);
    if (!sr_path_has(r->out, "study.yaml"))
        return SR_FAIL(SRNN_ERR_IO,
                       "%s: no study was run in this folder, since it has no study.yaml", r->out);
    SR_TRY(sr_path_join(own, r->out, "study.yaml"));
    return read_study(study, own);
}

/* The path of the text, as it appears in the settings of runs. */
static srnn_status find_text(char path[SR_PATH_BYTES], const sr_study *study,
                             const sr_study_request *r) {
    snprintf(path, SR_PATH_BYTES, "@text");
    if (r->text && !sr_study_needs_text(study))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "--text: no task of the study trains on @text");
    if (r->plan_only)
        return SRNN_OK;
    char *absolute = realpath(r->out, NULL);
    const srnn_status status = sr_path_join(path, absolute ? absolute : r->out, SR_STUDY_TEXT);
    free(absolute);
    return status;
}

static srnn_status make_text(sr_study *study, const sr_study_request *r) {
    char folder[SR_PATH_BYTES], path[SR_PATH_BYTES];
    sr_word_list files = {0};
    if (!sr_study_needs_text(study))
        return SRNN_OK;
    SR_TRY(find_text(path, study, r));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    SR_TRY(sr_folder_make(folder));
    const bool made = access(path, F_OK) != 0;
    srnn_status status = r->text ? sr_word_list_split(&files, r->text) : SRNN_OK;
    if (status == SRNN_OK)
        status = sr_study_text(path, &files);
    sr_word_list_free(&files);
    SR_TRY(status);
    status = sr_study_price(study);
    if (status != SRNN_OK && made)
        unlink(path); /* an unusable text must not block the next attempt */
    return status;
}

/* Rejects --only and --skip if a word matches nothing, or if no run is left. */
static srnn_status check_selection(const sr_study *study, const sr_study_options *options) {
    SR_TRY(sr_study_words_check(study, &options->only, "--only"));
    SR_TRY(sr_study_words_check(study, &options->skip, "--skip"));
    for (size_t i = 0; i < study->run_count; i++)
        if (sr_study_selects(study, options, &study->runs[i]))
            return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT, "--only and --skip leave nothing to run");
}

/* sbatch options of the study's file, then those of the request: sbatch uses the last one. */
static srnn_status add_cluster(sr_study_options *options, const sr_study *study,
                               const sr_study_request *r) {
    for (size_t i = 0; i < study->cluster.count; i++) {
        char word[512];
        snprintf(word, sizeof word, "%.120s=%.380s", study->cluster.names[i],
                 study->cluster.values[i]);
        SR_TRY(sr_word_list_add(&options->cluster, word));
    }
    sr_word_list requested = {0};
    srnn_status status = r->cluster ? sr_word_list_split(&requested, r->cluster) : SRNN_OK;
    for (size_t i = 0; status == SRNN_OK && i < requested.count; i++)
        status = sr_word_list_add(&options->cluster, requested.words[i]);
    sr_word_list_free(&requested);
    return status;
}

srnn_status sr_study_prepare(sr_study *study, sr_study_options *options,
                             const sr_study_request *r) {
    char text[SR_PATH_BYTES];
    SR_TRY(r->status_only ? read_present(study, r) : read_study(study, r->file));
    if (r->only)
        SR_TRY(sr_word_list_split(&options->only, r->only));
    if (r->skip)
        SR_TRY(sr_word_list_split(&options->skip, r->skip));
    SR_TRY(add_cluster(options, study, r));
    if (!r->plan_only && !r->status_only)
        SR_TRY(sr_folders_make(r->out));
    SR_TRY(find_text(text, study, r));
    if (!r->plan_only && !(study->out = realpath(r->out, NULL)))
        return SR_FAIL(SRNN_ERR_IO, "%s: has no path from the root", r->out);
    SR_TRY(r->status_only ? sr_study_list_runs(study, text) : sr_study_expand(study, text));
    bool missing;
    if (!r->plan_only)
        SR_TRY(sr_study_take_rates(study, r->out, options, &missing));
    return check_selection(study, options);
}

void sr_study_options_free(sr_study_options *options) {
    sr_word_list_free(&options->only);
    sr_word_list_free(&options->skip);
    sr_word_list_free(&options->cluster);
}

srnn_status sr_study_member(const sr_study *study, const sr_study_request *request,
                            const char *id) {
    SR_TRY(sr_study_check_rate(study, request->out, id));
    return sr_worker_member(study, request->out, id);
}

srnn_status sr_study_status(const sr_study *study, const char *folder,
                            const sr_study_options *options, sr_run_view *views) {
    char path[SR_PATH_BYTES];
    for (size_t i = 0; i < study->run_count; i++) {
        sr_result result;
        views[i] = (sr_run_view){.selected = sr_study_selects(study, options, &study->runs[i])};
        if (!views[i].selected)
            continue;
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(sr_result_read(&result, path));
        views[i].ending = result.ending;
        views[i].step = result.ending == SR_ENDING_NONE ? sr_record_last_step(path) : result.step;
        snprintf(views[i].message, sizeof views[i].message, "%s", result.message);
        if (result.ending == SR_ENDING_NONE)
            sr_worker_where(&views[i], path);
    }
    return SRNN_OK;
}

/* In a locked folder. Writes nothing until the runs and the text there are known to belong to this
 * study. */
static srnn_status take_folder(sr_study *study, const sr_study_request *r, const char *command) {
    SR_TRY(sr_study_check(study, r->out));
    SR_TRY(make_text(study, r));
    return sr_study_write(study, r->out, command);
}

/* Tunes the learning rates of a study that requests it, unless they are known. */
static srnn_status tune(sr_study *study, const sr_study_options *options, const sr_study_request *r,
                        const char *command) {
    char text[SR_PATH_BYTES];
    bool missing;
    SR_TRY(sr_study_take_rates(study, r->out, options, &missing));
    if (!missing)
        return SRNN_OK;
    SR_TRY(find_text(text, study, r));
    SR_TRY(sr_study_tune(study, r->out, text, options));
    SR_TRY(sr_study_check(study, r->out)); /* no run has another rate than the tuned one */
    return sr_study_write(study, r->out, command);
}

static srnn_status teach(const sr_study *study, const sr_study_options *options,
                         const sr_study_request *r) {
    char text[SR_PATH_BYTES];
    SR_TRY(find_text(text, study, r));
    return sr_study_teach(study, r->out, text, options);
}

static sr_executor *const execute_by[] = {[SR_LAUNCHER_LOCAL] = sr_study_execute,
                                          [SR_LAUNCHER_SLURM] = sr_study_execute_slurm,
                                          [SR_LAUNCHER_MPI] = sr_study_execute_on_ranks};

/* Over the requested runs, and all others that have ended. */
static srnn_status sum_up(sr_summary *summary, const sr_study *study,
                          const sr_study_options *options, const char *folder) {
    bool *requested = calloc(study->run_count, sizeof *requested);
    if (!requested)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %zu runs", study->run_count);
    for (size_t i = 0; i < study->run_count; i++)
        requested[i] = sr_study_selects(study, options, &study->runs[i]);
    const srnn_status status = sr_study_summarise(summary, study, folder, requested);
    free(requested);
    return status;
}

/* A run that failed may have been unable to write that into its record. */
static void count_failures(sr_summary *summary, const sr_study *study, const sr_run_view *views) {
    size_t failed = 0;
    for (size_t i = 0; i < study->run_count; i++)
        failed += views[i].ending == SR_ENDING_FAILED;
    summary->failed = summary->failed > failed ? summary->failed : failed;
}

static srnn_status execute(const sr_study *study, sr_study_options *options, const char *folder,
                           sr_run_view *views) {
    sr_executor *launch = execute_by[options->launcher];
    return study->settle > 0 ? sr_study_execute_settling(study, folder, options, views, launch)
                             : launch(study, folder, options, views);
}

srnn_status sr_study_execute_file(sr_study *study, sr_study_options *options,
                                  const sr_study_request *request, const char *command,
                                  sr_run_view *views, sr_summary *summary) {
    int lock;
    *summary = (sr_summary){0};
    SR_TRY(sr_folder_lock(&lock, request->out, lock_patience));
    srnn_status status = take_folder(study, request, command);
    if (status == SRNN_OK)
        status = tune(study, options, request, command);
    if (status == SRNN_OK)
        status = teach(study, options, request);
    if (status == SRNN_OK)
        status = execute(study, options, request->out, views);
    if (status == SRNN_OK || status == SRNN_ERR_INTERRUPTED) {
        const srnn_status summed = sum_up(summary, study, options, request->out);
        status = summed == SRNN_OK ? status : summed;
        count_failures(summary, study, views);
    }
    sr_folder_unlock(lock);
    return status;
}
