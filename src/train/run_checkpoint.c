/* run_checkpoint.c: the checkpoints of a run. */
#include "train/run_checkpoint.h"

#include "data/tokenizer/tokenizer_copy.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/safetensors.h"
#include "model/model_files.h"
#include "model/tensor_stream.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
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

/* The names in a run's folder of checkpoints that are whole, by step. */
static srnn_status list_steps(sr_names *names, const char *folder) {
    SR_TRY(sr_folder_list(names, folder));
    size_t kept = 0;
    for (size_t i = 0; i < names->count; i++) {
        if (step_of(names->names[i]) >= 0)
            names->names[kept++] = names->names[i];
        else
            free(names->names[i]);
    }
    names->count = kept;
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
    if (!S_ISDIR(status.st_mode))
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: not a model: that is a folder with config.json and model.safetensors, "
                       "the folder of a run, or a file of llama2.c whose name ends in .bin",
                       where);
    return SRNN_OK;
}

srnn_status sr_checkpoint_model(char path[SR_PATH_BYTES], const char *where) {
    char config[SR_PATH_BYTES];
    SR_TRY(check_folder(where));
    SR_TRY(sr_path_join(config, where, "config.json"));
    path[0] = '\0';
    if (access(config, F_OK) != 0)
        SR_TRY(sr_checkpoint_latest(path, where));
    return *path ? SRNN_OK : sr_path_print(path, "%s", where);
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

/* A folder to be removed loses its name first, so that no half of it can be taken for whole. */
srnn_status sr_checkpoint_rotate(const char *run, int keep) {
    char folder[SR_PATH_BYTES], path[SR_PATH_BYTES], removing[SR_PATH_BYTES];
    sr_names names;
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    SR_TRY(sr_path_join(removing, folder, ".removing"));
    SR_TRY(sr_folder_remove(removing));
    SR_TRY(list_steps(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i + (size_t)keep < names.count && status == SRNN_OK; i++) {
        status = sr_path_join(path, folder, names.names[i]);
        if (status == SRNN_OK)
            status = sr_folder_rename(path, removing);
        if (status == SRNN_OK)
            status = sr_folder_remove(removing);
    }
    sr_names_free(&names);
    return status;
}

static srnn_status add_moment(sr_safetensors_writer *writer, const char *name, const float *moment,
                              const sr_model *model) {
    const sr_tensor tensor = {
        .name = name, .rank = 1, .shape = {(int64_t)model->table.numbers}, .data = moment};
    return sr_safetensors_writer_add(writer, &tensor);
}

static srnn_status write_moments(const char *path, sr_trainer *trainer, const sr_model *model) {
    const sr_moments *moments = sr_trainer_moments(trainer);
    sr_safetensors_writer *writer;
    SR_TRY(sr_safetensors_writer_create(&writer));
    sr_safetensors_writer_reader(writer, sr_stream_out, model->backend);
    srnn_status status = add_moment(writer, "mean", moments->mean, model);
    if (status == SRNN_OK)
        status = add_moment(writer, "square", moments->square, model);
    if (status == SRNN_OK)
        status = sr_safetensors_writer_write(writer, path);
    sr_safetensors_writer_free(writer);
    return status;
}

static srnn_status write_progress(const char *path, const sr_progress *p, int64_t updates) {
    char text[512];
    const int length =
        snprintf(text, sizeof text,
                 "{\"step\": %" PRId64 ", \"updates\": %" PRId64 ", \"tokens\": %" PRId64
                 ", \"skipped\": %" PRId64 ", \"skipped_in_row\": %" PRId64
                 ",\n \"metrics_bytes\": %" PRId64 ", \"timings_bytes\": %" PRId64
                 ", \"events_bytes\": %" PRId64 ",\n \"data_sum\": %" PRId64 "}\n",
                 p->step, updates, p->tokens, p->skipped, p->skipped_in_row, p->metrics_bytes,
                 p->timings_bytes, p->events_bytes, p->data_sum);
    return sr_file_replace(path, text, (size_t)length);
}

static srnn_status write_files(const char *folder, sr_trainer *trainer, const sr_model *model,
                               const sr_progress *progress, const char *run) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_model_save(model, folder, SR_DTYPE_F32));
    if (sr_tokenizer_lies_in(run))
        SR_TRY(sr_tokenizer_keep(folder, run));
    SR_TRY(sr_path_join(path, folder, "optimizer.safetensors"));
    SR_TRY(write_moments(path, trainer, model));
    SR_TRY(sr_path_join(path, folder, "run.json"));
    return write_progress(path, progress, sr_trainer_moments(trainer)->updates);
}

srnn_status sr_checkpoint_write(const char *run, sr_trainer *trainer, const sr_model *model,
                                const sr_progress *progress) {
    char folder[SR_PATH_BYTES], writing[SR_PATH_BYTES], path[SR_PATH_BYTES], name[64];
    SR_TRY(sr_path_join(folder, run, "checkpoints"));
    SR_TRY(sr_path_join(writing, folder, ".writing"));
    snprintf(name, sizeof name, STEP_NAME "%09" PRId64, progress->step);
    SR_TRY(sr_path_join(path, folder, name));
    if (access(path, F_OK) == 0)
        return SRNN_OK;
    SR_TRY(sr_folder_remove(writing));
    SR_TRY(sr_folder_make(writing));
    srnn_status status = write_files(writing, trainer, model, progress, run);
    if (status == SRNN_OK)
        status = sr_folder_rename(writing, path);
    if (status != SRNN_OK) {
        char detail[1024];
        snprintf(detail, sizeof detail, "%s", srnn_error_detail());
        (void)sr_folder_remove(writing); /* gives its room back; the failure above is what counts */
        return SR_FAIL(status, "%s", detail);
    }
    return SRNN_OK;
}

static srnn_status read_moment(float *to, const sr_safetensors *file, const char *name,
                               const sr_model *model, const char *path) {
    const sr_tensor *tensor;
    SR_TRY(sr_safetensors_require(&tensor, file, name));
    if (tensor->count != model->table.numbers)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the state of another model", path);
    return sr_stream_in(model->backend, to, tensor);
}

static srnn_status read_moments(const char *path, sr_trainer *trainer, const sr_model *model) {
    sr_safetensors *file;
    SR_TRY(sr_safetensors_open(&file, path));
    srnn_status status = read_moment(sr_trainer_moments(trainer)->mean, file, "mean", model, path);
    if (status == SRNN_OK)
        status = read_moment(sr_trainer_moments(trainer)->square, file, "square", model, path);
    sr_safetensors_free(file);
    return status;
}

static srnn_status read_progress(const char *path, sr_progress *p, int64_t *updates) {
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    json_int_t step, count, tokens, skipped, in_row, metrics, timings, events, data = 0;
    if (!root ||
        json_unpack_ex(root, &error, 0, "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s?I}", "step",
                       &step, "updates", &count, "tokens", &tokens, "skipped", &skipped,
                       "skipped_in_row", &in_row, "metrics_bytes", &metrics, "timings_bytes",
                       &timings, "events_bytes", &events, "data_sum", &data) != 0) {
        json_decref(root);
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s", path, error.text);
    }
    json_decref(root);
    *updates = count;
    *p = (sr_progress){step, tokens, skipped, in_row, metrics, timings, events, data};
    return SRNN_OK;
}

srnn_status sr_checkpoint_read(const char *checkpoint, sr_trainer *trainer, sr_model *model,
                               sr_progress *progress) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_model_load_weights(model, checkpoint));
    SR_TRY(sr_path_join(path, checkpoint, "optimizer.safetensors"));
    SR_TRY(read_moments(path, trainer, model));
    SR_TRY(sr_path_join(path, checkpoint, "run.json"));
    return read_progress(path, progress, &sr_trainer_moments(trainer)->updates);
}
