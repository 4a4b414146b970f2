/* adapter_files.c: adapters apart from their model, in the files that PEFT reads. */
#include "base/memory.h"
#include "files/json.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "train/adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = SR_SPEC_NAME + 40 };

static void peft_name(char name[NAME], const sr_tensor_spec *spec) {
    snprintf(name, NAME, "base_model.model.%s", spec->name);
}

static bool is_a(const sr_tensor_spec *spec) {
    return strstr(spec->name, ".lora_A.") != NULL;
}

/* to (columns, rows) = from (rows, columns) transposed. */
static void transpose(float *to, const float *from, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

/* The tensor as PEFT has it: A is (rank, in) there. */
static sr_tensor describe(char name[NAME], const sr_tensor_spec *spec) {
    const bool transposed = is_a(spec);
    peft_name(name, spec);
    return (sr_tensor){.name = name,
                       .dtype = SR_DTYPE_F32,
                       .rank = 2,
                       .shape = {spec->shape[transposed], spec->shape[!transposed]},
                       .count = spec->count};
}

/* numbers and spare (spec->count each) on the host. */
static srnn_status fetch(const sr_adapters *a, const sr_tensor_spec *spec, float *numbers,
                         float *spare) {
    SR_TRY(sr_device_copy_out(a->model->backend->device, is_a(spec) ? spare : numbers,
                              a->weights + spec->start, spec->count * sizeof(float)));
    if (is_a(spec))
        transpose(numbers, spare, spec->shape[0], spec->shape[1]);
    return SRNN_OK;
}

/* numbers (table.numbers): every tensor at its start, as in the file. */
static srnn_status add_all(const sr_adapters *a, sr_safetensors_writer *writer, float *numbers,
                           float *spare) {
    for (size_t i = 0; i < a->table.count; i++) {
        const sr_tensor_spec *spec = &a->table.specs[i];
        char name[NAME];
        sr_tensor tensor = describe(name, spec);
        SR_TRY(fetch(a, spec, numbers + spec->start, spare));
        tensor.data = numbers + spec->start;
        SR_TRY(sr_safetensors_writer_add(writer, &tensor));
    }
    return SRNN_OK;
}

static srnn_status write_numbers(const sr_adapters *a, const char *path) {
    sr_safetensors_writer *writer;
    void *memory;
    SR_TRY(sr_alloc(&memory, 2 * a->table.numbers, sizeof(float)));
    srnn_status status = sr_safetensors_writer_create(&writer);
    if (status == SRNN_OK) {
        status = add_all(a, writer, memory, (float *)memory + a->table.numbers);
        if (status == SRNN_OK)
            status = sr_safetensors_writer_write(writer, path);
        sr_safetensors_writer_free(writer);
    }
    free(memory);
    return status;
}

/* The last two parts of a module's name: the last alone may be a number, as in gk_proj.0, which
 * PEFT would take for a layer. */
static const char *end_of(const char *name) {
    const char *last = strrchr(name, '.'), *at = last;
    while (at && at > name && at[-1] != '.')
        at--;
    return at ? at : name;
}

/* The end of the name of each adapted module, once. */
static json_t *modules_json(const sr_adapters *a) {
    json_t *list = json_array();
    for (size_t i = 0; i < a->count; i++) {
        char name[SR_SPEC_NAME];
        snprintf(name, sizeof name, "%s", a->model->table.specs[a->matrices[i].matrix].name);
        name[strlen(name) - strlen(".weight")] = '\0';
        const char *end = end_of(name);
        bool known = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            known = known || strcmp(json_string_value(json_array_get(list, k)), end) == 0;
        if (!known)
            sr_json_append(list, json_string(end));
    }
    return list;
}

srnn_status sr_adapters_write(const sr_adapters *a, const char *folder) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, SR_ADAPTERS_FILE));
    SR_TRY(write_numbers(a, path));
    json_t *config = json_pack("{s:s, s:i, s:i, s:f, s:s, s:o, s:s}", "peft_type", "LORA", "r",
                               a->rank, "lora_alpha", a->rank, "lora_dropout", 0.0, "bias", "none",
                               "target_modules", modules_json(a), "task_type", "CAUSAL_LM");
    return sr_json_replace(config, folder, SR_ADAPTERS_CONFIG, JSON_INDENT(2));
}

static srnn_status read_one(sr_adapters *a, const sr_safetensors *file, const sr_tensor_spec *spec,
                            const char *path) {
    char name[NAME];
    const sr_tensor *tensor;
    const sr_tensor want = describe(name, spec);
    void *memory;
    SR_TRY(sr_safetensors_require(&tensor, file, name));
    if (tensor->dtype != SR_DTYPE_F32 || !sr_tensor_has_shape(tensor, 2, want.shape))
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: %s has another shape or type than the adapter of rank %d", path, name,
                       a->rank);
    SR_TRY(sr_alloc(&memory, 2 * spec->count, sizeof(float)));
    float *numbers = memory, *transposed = numbers + spec->count;
    sr_tensor_to_float(numbers, tensor);
    if (is_a(spec))
        transpose(transposed, numbers, want.shape[0], want.shape[1]);
    const srnn_status status =
        sr_device_copy_in(a->model->backend->device, a->weights + spec->start,
                          is_a(spec) ? transposed : numbers, spec->count * sizeof(float));
    free(memory);
    return status;
}

srnn_status sr_adapters_read(sr_adapters *a, const char *folder) {
    char path[SR_PATH_BYTES];
    sr_safetensors *file;
    SR_TRY(sr_path_join(path, folder, SR_ADAPTERS_FILE));
    SR_TRY(sr_safetensors_open(&file, path));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < a->table.count && status == SRNN_OK; i++)
        status = read_one(a, file, &a->table.specs[i], path);
    sr_safetensors_free(file);
    return status;
}
