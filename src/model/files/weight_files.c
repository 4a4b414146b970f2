/* weight_files.c: the tensors of a Hugging Face folder, in one file or in shards. */
#include "model/files/weight_files.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static srnn_status open_one(sr_weight_files *files, const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sr_safetensors_open(&files->files[files->count], path));
    files->count++;
    return SRNN_OK;
}

/* Shards are named by the values of weight_map, each many times. */
static srnn_status open_shards(sr_weight_files *files, const char *folder, const char *index,
                               json_t *map) {
    const char *tensor, *last = "";
    json_t *value, *seen = json_object();
    srnn_status status = seen ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory", index);
    json_object_foreach(map, tensor, value) {
        const char *name = json_string_value(value);
        if (status != SRNN_OK)
            break;
        if (!name || strchr(name, '/')) {
            status = SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is in no file of this folder", index, tensor);
        } else if (strcmp(name, last) != 0 && !json_object_get(seen, name)) {
            sr_json_set(seen, name, json_true());
            status = sr_json_complete(seen, index);
            if (status == SRNN_OK)
                status = open_one(files, folder, name);
        }
        last = name;
    }
    json_decref(seen);
    return status;
}

static srnn_status open_index(sr_weight_files *files, const char *folder, const char *index) {
    json_t *root;
    SR_TRY(sr_json_load(&root, index, 0));
    json_t *map = json_object_get(root, "weight_map");
    srnn_status status = SRNN_OK;
    if (!json_is_object(map))
        status = SR_FAIL(SRNN_ERR_FORMAT, "%s: weight_map is missing", index);
    void *memory = NULL;
    if (status == SRNN_OK)
        status = sr_alloc_zero(&memory, json_object_size(map) + 1, sizeof *files->files);
    files->files = memory;
    if (status == SRNN_OK)
        status = open_shards(files, folder, index, map);
    json_decref(root);
    return status;
}

/* Pickled weights can run arbitrary code, so they are never read. */
static srnn_status check_pickled(const char *folder) {
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[SR_PATH_BYTES];
        SR_TRY(sr_path_join(path, folder, names[i]));
        if (access(path, F_OK) == 0)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                           "%s: only safetensors are read, and the folder holds none; in Python, "
                           "AutoModelForCausalLM.from_pretrained(\"%s\").save_pretrained(FOLDER) "
                           "writes them",
                           path, folder);
    }
    return SRNN_OK;
}

/* A folder whose only weights are in an unsupported format. */
static srnn_status check_gguf(const char *folder) {
    sr_names names;
    SR_TRY(sr_folder_list(&names, folder));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < names.count && status == SRNN_OK; i++) {
        const size_t length = strlen(names.names[i]);
        if (length > 5 && strcmp(names.names[i] + length - 5, ".gguf") == 0)
            status = SR_FAIL(SRNN_ERR_UNSUPPORTED,
                             "%s: the folder holds %s: GGUF is not read; use the folder with "
                             "safetensors that the model was published as",
                             folder, names.names[i]);
    }
    sr_names_free(&names);
    return status;
}

static srnn_status check_other_formats(const char *folder) {
    SR_TRY(check_pickled(folder));
    return check_gguf(folder);
}

srnn_status sr_weight_files_open(sr_weight_files *files, const char *folder) {
    char single[SR_PATH_BYTES], index[SR_PATH_BYTES];
    *files = (sr_weight_files){0};
    SR_TRY(sr_path_join(single, folder, "model.safetensors"));
    SR_TRY(sr_path_join(index, folder, "model.safetensors.index.json"));
    srnn_status status;
    if (access(single, F_OK) != 0 && access(index, F_OK) != 0)
        SR_TRY(check_other_formats(folder));
    if (access(single, F_OK) != 0 && access(index, F_OK) == 0) {
        status = open_index(files, folder, index);
    } else {
        void *memory;
        SR_TRY(sr_alloc_zero(&memory, 1, sizeof *files->files));
        files->files = memory;
        status = open_one(files, folder, "model.safetensors");
    }
    if (status != SRNN_OK)
        sr_weight_files_close(files);
    return status;
}

void sr_weight_files_close(sr_weight_files *files) {
    for (size_t i = 0; i < files->count; i++)
        sr_safetensors_free(files->files[i]);
    free(files->files);
    *files = (sr_weight_files){0};
}

const sr_tensor *sr_weight_files_find(const sr_weight_files *files, const char *name) {
    for (size_t i = 0; i < files->count; i++) {
        const sr_tensor *tensor = sr_safetensors_find(files->files[i], name);
        if (tensor)
            return tensor;
    }
    return NULL;
}
