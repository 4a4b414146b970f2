/* checkpoint.c: the checkpoints of a run. */
#include "train/run/checkpoint.h"

#include "base/memory.h"
#include "data/tokenizer/files/copy.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/safetensors.h"
#include "model/files/model_folder.h"
#include "model/files/tensor_stream.h"
#include "train/moment_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_NAME "step-"

/* The step in a folder's name, or -1. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, STEP_NAME, strlen(STEP_NAME)) != 0)
        return -1;
    const long long step = strtoll(name + strlen(STEP_NAME), &end, 10);
    return *end || end == name + strlen(STEP_NAME) ? -1 : (int64_t)step;
}

/* The complete checkpoints of a run, by step. */
static srnn_status list_steps(sr_names *names, const char *folder) {
    SR_TRY(sr_folder_list(names, folder));
    size_t count = 0;
    for (size_t i = 0; i < names->count; i++) {
        if (step_of(names->names[i]) >= 0)
            names->names[count++] = names->names[i];
        else
            free(names->names[i]);
    }
    names->count = count;
    for (size_t i = 1; i < names->count; i++)
        for (size_t j = i; j > 0 && step_of(names->names[j - 1]) > step_of(names->names[j]); j--) {
            char *swap = names->names[j];
            names->names[j] = names->names[j - 1];
            names->names[j - 1] = swap;
        }
    return SRNN_OK;
}

srnn_status sr_checkpoint_latest(char path[SR_PATH_BYTES], const char *run) {
    char folder[SR_PATH_BYTES];
    sr_names names;
    path[0] = '\0';
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    SR_TRY(list_steps(&names, folder));
    const srnn_status status =
        names.count ? sr_path_join(path, folder, names.names[names.count - 1]) : SRNN_OK;
    sr_names_free(&names);
    return status;
}

static srnn_status check_folder(const char *where) {
    struct stat status;
    if (stat(where, &status) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: %s", where, strerror(errno));
    const size_t length = strlen(where);
    if (S_ISREG(status.st_mode) && length > 4 && strcmp(where + length - 4, ".bin") == 0)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: a file of llama2.c has no folder to train from; convert it first: "
                       "softrnn convert --in %s --out FOLDER --tokenizer FILE",
                       where, where);
    if (!S_ISDIR(status.st_mode))
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: not a model: that is a folder with config.json and model.safetensors, "
                       "the folder of a run, or a file of llama2.c whose name ends in .bin",
                       where);
    return SRNN_OK;
}

/* Checks of the folder's files those that `part` names. */
static srnn_status find_folder(char path[SR_PATH_BYTES], const char *where,
                               const sr_file_sums_part *part) {
    char config[SR_PATH_BYTES];
    SR_TRY(check_folder(where));
    SR_TRY(sr_path_join(config, where, "config.json"));
    path[0] = '\0';
    if (access(config, F_OK) != 0)
        SR_TRY(sr_checkpoint_latest(path, where));
    if (!*path)
        SR_TRY(sr_path_print(path, "%s", where));
    if (!sr_progress_is_there(path))
        return SRNN_OK;
    return sr_progress_check_files(path, part);
}

srnn_status sr_checkpoint_model(char path[SR_PATH_BYTES], const char *where) {
    return find_folder(path, where, &(sr_file_sums_part){.except = SR_OPTIMIZER_STEM});
}

srnn_status sr_checkpoint_tokenizer(char path[SR_PATH_BYTES], const char *where) {
    return find_folder(path, where, &(sr_file_sums_part){.only = "tokenizer"});
}

srnn_status sr_checkpoint_tidy(const char *run) {
    char folder[SR_PATH_BYTES], path[SR_PATH_BYTES];
    sr_names names;
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    SR_TRY(sr_folder_list(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++)
        if (names.names[i][0] == '.') {
            status = sr_path_join(path, folder, names.names[i]);
            if (status == SRNN_OK)
                status = sr_folder_remove(path);
        }
    sr_names_free(&names);
    return status;
}

/* Renames a folder before removing it, so that a partly removed one is never taken for complete. */
static srnn_status discard(const char *path, const char *removing) {
    SR_TRY(sr_folder_rename(path, removing));
    return sr_folder_remove(removing);
}

srnn_status sr_checkpoint_rotate(const char *run, const sr_run_settings *settings) {
    char folder[SR_PATH_BYTES], path[SR_PATH_BYTES], removing[SR_PATH_BYTES];
    sr_names names;
    int retained = 0;
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    SR_TRY(sr_path_join(removing, folder, ".removing"));
    SR_TRY(sr_folder_remove(removing));
    SR_TRY(list_steps(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = names.count; i-- > 0 && status == SRNN_OK;) {
        status = sr_path_join(path, folder, names.names[i]);
        if (status == SRNN_OK && sr_progress_is_of(path, settings->identity) &&
            ++retained > settings->keep)
            status = discard(path, removing);
    }
    sr_names_free(&names);
    return status;
}

/* ---- verifying what was written */

static sr_model_part part_of(const sr_ranks *ranks) {
    return (sr_model_part){ranks->rank, ranks->count};
}

static srnn_status compare_weights(const sr_safetensors *file, const sr_checkpointed *run,
                                   const char *path) {
    const sr_model *model = run->model;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const sr_tensor *tensor;
        if (!sr_model_part_has(part_of(run->ranks), model, spec))
            continue;
        if (!file)
            return SR_FAIL(SRNN_ERR_IO, "%s: is missing after it was written", path);
        SR_TRY(sr_safetensors_require(&tensor, file, spec->name));
        SR_TRY(sr_stream_compare(model->backend, model->weights + spec->start, spec->count, tensor,
                                 path));
    }
    return SRNN_OK;
}

/* config.json must describe this model. */
static srnn_status compare_config(const char *folder, const sr_model *model) {
    sr_model_config config;
    sr_tensor_table table = {0};
    SR_TRY(sr_model_load_config(&config, folder));
    srnn_status status = sr_model_tensors(&table, &config);
    if (status == SRNN_OK && table.numbers != model->table.numbers)
        status = SR_FAIL(SRNN_ERR_IO, "%s/config.json: reads back as another model", folder);
    sr_tensor_table_free(&table);
    sr_model_config_free(&config);
    return status;
}

/* This rank's weights; it has no file if it has no tensor. */
static srnn_status read_back(const char *folder, const sr_checkpointed *run) {
    char path[SR_PATH_BYTES];
    sr_safetensors *file;
    SR_TRY(sr_model_part_file(path, folder, part_of(run->ranks)));
    if (run->ranks->count > 1 && access(path, F_OK) != 0)
        return compare_weights(NULL, run, path);
    SR_TRY(sr_safetensors_open(&file, path));
    const srnn_status status = compare_weights(file, run, path);
    sr_safetensors_free(file);
    return status;
}

/* ---- writing: each rank writes its part of the weights and of the optimizer's moments */

static srnn_status write_files(const char *folder, const sr_checkpointed *run) {
    const sr_moment_files moments = {run->model, run->trainer, run->ranks};
    SR_TRY(sr_model_save_part(run->model, folder, part_of(run->ranks)));
    SR_TRY(read_back(folder, run));
    if (run->ranks->rank == 0 && sr_tokenizer_is_in(run->folder))
        SR_TRY(sr_tokenizer_copy_into(folder, run->folder));
    if (run->ranks->rank == 0)
        SR_TRY(sr_trainer_write_adapters(run->trainer, folder));
    return sr_moment_files_write(&moments, folder);
}

/* Rank 0 creates the folder for all ranks. */
static srnn_status begin_folder(const char *writing, const char *path) {
    if (access(path, F_OK) == 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: exists already and is not of this run", path);
    SR_TRY(sr_folder_remove(writing));
    return sr_folder_make(writing);
}

/* Each of several ranks writes a file of weights and one of moments, and computes their
 * checksums. */
enum { OWN_FILES = 2 };

static srnn_status sum_own_files(sr_file_sum own[OWN_FILES], const char *folder,
                                 const sr_ranks *ranks) {
    char mark[40];
    sr_names names;
    int count = 0;
    snprintf(mark, sizeof mark, "-%05d-of-%05d.", ranks->rank + 1, ranks->count);
    SR_TRY(sr_folder_list(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < names.count && status == SRNN_OK && count < OWN_FILES; i++)
        if (strstr(names.names[i], mark))
            status = sr_file_sum_make(&own[count++], folder, names.names[i]);
    sr_names_free(&names);
    return status;
}

/* Adds run.json and renames the folder: only now it is a checkpoint. */
static srnn_status end_folder(const sr_checkpointed *run, const sr_progress *progress,
                              const char *writing, const char *path, const sr_file_sum *sums) {
    const size_t count = (size_t)run->ranks->count * OWN_FILES;
    sr_progress again;
    SR_TRY(compare_config(writing, run->model));
    SR_TRY(sr_progress_write(progress, run->settings->identity, writing, sums, count));
    SR_TRY(sr_progress_read(&again, run->settings, progress->step, writing));
    return sr_folder_rename(writing, path);
}

static srnn_status write_together(const sr_checkpointed *run, const sr_progress *progress,
                                  const char *writing, const char *path) {
    sr_ranks *ranks = run->ranks;
    const bool first = ranks->rank == 0;
    void *memory;
    SR_TRY(sr_ranks_agree(ranks, first ? begin_folder(writing, path) : SRNN_OK));
    SR_TRY(sr_ranks_agree(ranks, sr_trainer_gather_weights(run->trainer)));
    SR_TRY(sr_ranks_agree(ranks, write_files(writing, run)));
    srnn_status status =
        sr_alloc_zero(&memory, (size_t)ranks->count * OWN_FILES, sizeof(sr_file_sum));
    sr_file_sum *sums = memory;
    if (status == SRNN_OK)
        status = sum_own_files(sums + ranks->rank * OWN_FILES, writing, ranks);
    status = sr_ranks_agree(ranks, status);
    if (status == SRNN_OK)
        status = sr_ranks_gather(ranks, sums, OWN_FILES * sizeof *sums);
    if (status == SRNN_OK)
        status =
            sr_ranks_agree(ranks, first ? end_folder(run, progress, writing, path, sums) : SRNN_OK);
    free(memory);
    return status;
}

srnn_status sr_checkpoint_write(const sr_checkpointed *run, const sr_progress *progress) {
    char folder[SR_PATH_BYTES], writing[SR_PATH_BYTES], path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(folder, run->folder, "checkpoints"));
    SR_TRY(sr_path_join(writing, folder, ".writing"));
    SR_TRY(sr_path_print(path, "%s/" STEP_NAME "%09" PRId64, folder, progress->step));
    const srnn_status status = write_together(run, progress, writing, path);
    if (status != SRNN_OK && run->ranks->rank == 0) {
        char detail[1024];
        snprintf(detail, sizeof detail, "%s", srnn_error_detail());
        (void)sr_folder_remove(writing); /* frees disk space; the failure above is reported */
        return SR_FAIL(status, "%s", detail);
    }
    return status;
}

/* ---- reading */

/* path = the newest checkpoint in a folder. */
static srnn_status find_last(char path[SR_PATH_BYTES], sr_progress *progress, const char *folder,
                             const sr_run_settings *settings) {
    sr_names names;
    SR_TRY(list_steps(&names, folder));
    srnn_status status = SRNN_OK;
    if (names.count) {
        const char *name = names.names[names.count - 1];
        status = sr_path_join(path, folder, name);
        if (status == SRNN_OK)
            status = sr_progress_read(progress, settings, step_of(name), path);
    }
    sr_names_free(&names);
    return status;
}

/* Whether an older checkpoint is complete and undamaged. */
static bool is_whole(const char *folder, const char *name, const sr_run_settings *settings) {
    char path[SR_PATH_BYTES];
    sr_progress progress;
    return sr_path_join(path, folder, name) == SRNN_OK &&
           sr_progress_read(&progress, settings, step_of(name), path) == SRNN_OK &&
           sr_progress_check_files(path, &(sr_file_sums_part){0}) == SRNN_OK;
}

/* Extends the last error by the newest older checkpoint that is undamaged. The folder to remove is
 * named without its path, which a long message could truncate: half a path is another folder. A
 * checkpoint that could not be read may be undamaged, so nothing is said about removing it. */
static srnn_status name_older(srnn_status status, const char *folder,
                              const sr_run_settings *settings) {
    char why[800], damaged[64] = "", whole[64] = "";
    sr_names names;
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    SR_TRY(list_steps(&names, folder));
    if (names.count)
        snprintf(damaged, sizeof damaged, "%s", names.names[names.count - 1]);
    for (size_t i = names.count; i-- > 1 && !*whole;)
        if (is_whole(folder, names.names[i - 1], settings))
            snprintf(whole, sizeof whole, "%s", names.names[i - 1]);
    sr_names_free(&names);
    if (!*whole)
        return SR_FAIL(status, "%s; there is no older complete checkpoint", why);
    return status == SRNN_ERR_FORMAT
               ? SR_FAIL(status, "%s; %s is whole: to resume from it, remove %s", why, whole,
                         damaged)
               : SR_FAIL(status, "%s; the older %s is whole", why, whole);
}

/* Every rank gets rank 0's error message. */
static srnn_status share_message(sr_ranks *ranks, srnn_status status) {
    char message[1024] = "";
    snprintf(message, sizeof message, "%s", srnn_error_detail());
    SR_TRY(sr_ranks_share(ranks, message, sizeof message));
    return SR_FAIL(status, "%s", message);
}

/* Rank 0 chooses the checkpoint; every rank checks some of its files. */
static srnn_status find_together(char path[SR_PATH_BYTES], sr_progress *progress,
                                 const char *folder, const sr_run_settings *settings,
                                 sr_ranks *ranks) {
    const sr_file_sums_part part = {.index = (size_t)ranks->rank, .count = (size_t)ranks->count};
    SR_TRY(sr_ranks_agree(ranks, ranks->rank == 0 ? find_last(path, progress, folder, settings)
                                                  : SRNN_OK));
    SR_TRY(sr_ranks_share(ranks, path, SR_PATH_BYTES));
    SR_TRY(sr_ranks_share(ranks, progress, sizeof *progress));
    return sr_ranks_agree(ranks, *path ? sr_progress_check_files(path, &part) : SRNN_OK);
}

srnn_status sr_checkpoint_find(char path[SR_PATH_BYTES], sr_progress *progress, const char *run,
                               const sr_run_settings *settings, sr_ranks *ranks) {
    char folder[SR_PATH_BYTES];
    memset(path, 0, SR_PATH_BYTES);
    *progress = (sr_progress){0};
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    const srnn_status status = find_together(path, progress, folder, settings, ranks);
    if ((status != SRNN_ERR_FORMAT && status != SRNN_ERR_IO) || ranks->broken)
        return status;
    return share_message(ranks, ranks->rank == 0 ? name_older(status, folder, settings) : status);
}

/* *found: tensors without adapters that the file has. */
static srnn_status compare_others(size_t *found, const sr_safetensors *file,
                                  const sr_checkpointed *run, const char *path) {
    const sr_model *model = run->model;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const sr_tensor *tensor = sr_safetensors_find(file, spec->name);
        if (!tensor || sr_trainer_adapts(run->trainer, i))
            continue;
        ++*found;
        if (sr_stream_compare(model->backend, model->weights + spec->start, spec->count, tensor,
                              path) != SRNN_OK)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s in %s is not what the adapters of this run were added to, which %s "
                           "has: put the former model there, or start a new run",
                           spec->name, run->settings->model, path);
    }
    return SRNN_OK;
}

static srnn_status compare_file(size_t *found, const char *folder, const char *name,
                                const sr_checkpointed *run) {
    char path[SR_PATH_BYTES];
    sr_safetensors *file;
    const size_t length = strlen(name), end = strlen(".safetensors");
    if (strncmp(name, "model", strlen("model")) != 0 || length < end ||
        strcmp(name + length - end, ".safetensors") != 0)
        return SRNN_OK;
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sr_safetensors_open(&file, path));
    const srnn_status status = compare_others(found, file, run, path);
    sr_safetensors_free(file);
    return status;
}

/* Adapters are added to the model that --model names, which may have changed since: tensors without
 * adapters show it, because each checkpoint has them as they were, in the files of as many ranks as
 * wrote it. */
static srnn_status check_base(const char *checkpoint, const sr_checkpointed *run) {
    sr_names names;
    size_t found = 0, others = 0;
    for (size_t i = 0; i < run->model->table.count; i++)
        others += !sr_trainer_adapts(run->trainer, i);
    SR_TRY(sr_folder_list(&names, checkpoint));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++)
        status = compare_file(&found, checkpoint, names.names[i], run);
    sr_names_free(&names);
    if (status == SRNN_OK && found != others)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: has %zu of the %zu tensors without adapters",
                       checkpoint, found, others);
    return status;
}

static srnn_status read_adapters(const char *checkpoint, const sr_checkpointed *run) {
    SR_TRY(check_base(checkpoint, run));
    return sr_trainer_read_adapters(run->trainer, checkpoint);
}

srnn_status sr_checkpoint_read(const char *checkpoint, const sr_checkpointed *run,
                               const sr_progress *progress) {
    const sr_moment_files moments = {run->model, run->trainer, run->ranks};
    SR_TRY(sr_trainer_has_adapters(run->trainer) ? read_adapters(checkpoint, run)
                                                 : sr_model_load_weights(run->model, checkpoint));
    SR_TRY(sr_moment_files_read(&moments, checkpoint));
    sr_trainer_moments(run->trainer)->updates = progress->updates;
    return SRNN_OK;
}
