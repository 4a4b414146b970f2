/* model_save.c: a model to a Hugging Face folder, in one file or in parts. */
#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "model/config/family.h"
#include "model/files/model_folder.h"
#include "model/files/tensor_source.h"
#include "model/files/tensor_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sr_model_part whole = {0, 1};

/* How a file of weights is written. */
typedef struct weight_style {
    const sr_tensor_names *names;
    sr_dtype dtype;
    sr_model_part part;
    sr_transposed_reader *transposed;
} weight_style;

static int part_number(const sr_model *model, const sr_tensor_spec *spec, int count) {
    return (int)(spec->start / (model->table.numbers / (size_t)count + 1));
}

bool sr_model_part_has(sr_model_part part, const sr_model *model, const sr_tensor_spec *spec) {
    return part_number(model, spec, part.count) == part.index;
}

static int part_name(char name[64], sr_model_part part) {
    if (part.count == 1)
        return snprintf(name, 64, "model.safetensors");
    return snprintf(name, 64, "model-%05d-of-%05d.safetensors", part.index + 1, part.count);
}

srnn_status sr_model_part_file(char path[SR_PATH_BYTES], const char *folder, sr_model_part part) {
    char name[64];
    part_name(name, part);
    return sr_path_join(path, folder, name);
}

/* A tensor as files have it, and what it is made of. */
typedef struct written {
    const sr_model *model;
    sr_tensor_source parts[SR_JOINED_PARTS];
    int count;
    int64_t skipped;                  /* numbers of the first part before this tensor's */
    const float *constant;            /* the tensor is this number, and has no parts */
    sr_transposed_reader *transposed; /* of all */
} written;

static srnn_status write_constant(void *to, float value, sr_dtype dtype) {
    const sr_tensor number = {.dtype = dtype, .data = &value};
    return sr_stream_round(to, &number, 1);
}

static srnn_status read_transposed(const written *w, void *to, const sr_tensor *tensor,
                                   size_t first, size_t count) {
    enum { BLOCK = 1024 };
    const size_t bytes = sr_dtype_bytes(tensor->dtype);
    const float *parts[SR_JOINED_PARTS] = {NULL};
    const sr_transposed_parts from = {w->model->backend, parts,
                                      sr_tensor_source_transposed(w->parts)};
    float block[BLOCK];
    for (int p = 0; p < w->count; p++)
        parts[p] = w->model->weights + w->parts[p].spec->start;
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t here = count - done < BLOCK ? count - done : BLOCK;
        sr_tensor numbers = *tensor;
        numbers.data = block;
        SR_TRY(sr_transposed_read(w->transposed, block, &from, first + done, here));
        SR_TRY(sr_stream_round((char *)to + done * bytes, &numbers, here));
    }
    return SRNN_OK;
}

/* For sr_safetensors_writer_reader: a tensor's data is a `written`. */
static srnn_status read_written(void *context, void *to, const sr_tensor *tensor, size_t first,
                                size_t count) {
    const written *w = tensor->data;
    const size_t bytes = sr_dtype_bytes(tensor->dtype);
    (void)context;
    if (w->constant)
        return write_constant(to, *w->constant, tensor->dtype);
    if (sr_tensor_source_is_transposed(w->parts))
        return read_transposed(w, to, tensor, first, count);
    for (size_t done = 0; done < count;) {
        const int64_t at = (int64_t)(first + done) + w->skipped, stride = w->parts[0].stride;
        const bool alone = w->count == 1;
        const int64_t group = alone ? 0 : at / stride, inside = alone ? at : at % stride;
        const sr_tensor_source *part = w->parts;
        while (!alone && inside >= part->first + part->count)
            part++;
        const int64_t own = alone ? inside : group * part->count + inside - part->first;
        const int64_t left =
            alone ? (int64_t)part->spec->count - inside : part->first + part->count - inside;
        const size_t here = count - done < (size_t)left ? count - done : (size_t)left;
        sr_tensor plain = *tensor;
        plain.data = w->model->weights + part->spec->start;
        char *next = (char *)to + done * bytes;
        SR_TRY(sr_stream_out(w->model->backend, next, &plain, (size_t)own, here));
        done += here;
    }
    return SRNN_OK;
}

/* The parts of the joined tensor that `first` begins. */
static void gather_parts(written *w, const sr_tensor_source *first, const sr_model_config *config) {
    const sr_tensor_table *table = &w->model->table;
    w->parts[w->count++] = *first;
    if (!sr_tensor_source_is_shared(first))
        return;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        if (spec->layer != first->spec->layer || spec == first->spec)
            continue;
        const sr_tensor_source source = sr_tensor_source_of(spec, config, table);
        if (source.joined == first->joined && strcmp(source.suffix, first->suffix) == 0) {
            w->parts[source.part] = source;
            w->count++;
        }
    }
}

static srnn_status add_file(sr_safetensors_writer *writer, written *w, const sr_tensor_source *s,
                            int file, sr_dtype dtype) {
    char name[SR_SPEC_NAME];
    sr_tensor tensor = {.name = name, .dtype = dtype, .data = w};
    sr_tensor_source_name(name, s, file);
    tensor.rank = sr_tensor_source_shape(tensor.shape, s);
    return sr_safetensors_writer_add(writer, &tensor);
}

/* Adds what the files hold of one row of the table; nothing if an earlier row has brought it. */
static srnn_status add_tensor(sr_safetensors_writer *writer, written **next, const sr_model *model,
                              const sr_model_config *config, const sr_tensor_spec *spec,
                              const weight_style *style) {
    const sr_tensor_source source = sr_tensor_source_of(spec, config, &model->table);
    const bool shared = sr_tensor_source_is_shared(&source);
    const bool rows = sr_tensor_source_is_indexed(&source);
    if (shared && source.part > 0)
        return SRNN_OK;
    for (int file = 0; file < (rows ? source.files : 1); file++) {
        written *w = (*next)++;
        *w = (written){.model = model,
                       .transposed = style->transposed,
                       .skipped = rows ? file * (int64_t)spec->count / source.files : 0};
        gather_parts(w, &source, config);
        SR_TRY(add_file(writer, w, &source, rows || shared ? file : source.part, style->dtype));
    }
    return SRNN_OK;
}

/* Numbers that files of the family hold in every layer. */
static srnn_status add_constants(sr_safetensors_writer *writer, written **next,
                                 const sr_model *model, const weight_style *style) {
    const sr_layer_constant *constants = style->names ? style->names->constants : NULL;
    for (int i = 0; constants && i < SR_CONSTANTS && constants[i].name; i++)
        for (int layer = 0; layer < model->config.L; layer++) {
            char name[SR_SPEC_NAME];
            written *w = (*next)++;
            *w = (written){.model = model, .constant = &constants[i].value};
            snprintf(name, sizeof name, "%slayers.%d.%s", style->names->root, layer,
                     constants[i].name);
            const sr_tensor tensor = {.name = name, .dtype = style->dtype, .data = w};
            SR_TRY(sr_safetensors_writer_add(writer, &tensor));
        }
    return SRNN_OK;
}

/* Tensors of files that one of ours may become, in all. */
static size_t most_written(const sr_model *model) {
    size_t count = model->table.count + SR_CONSTANTS * (size_t)model->config.L;
    for (int layer = 0; layer < sr_model_config_attention_layers(&model->config); layer++)
        count += 2 * (size_t)model->config.sizes[layer].H + 3 * (size_t)model->config.experts.count;
    return count;
}

static srnn_status add_part(sr_safetensors_writer *writer, written *next, const sr_model *model,
                            const weight_style *style) {
    sr_model_config config = model->config;
    config.names = style->names;
    sr_safetensors_writer_reader(writer, read_written, NULL);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (sr_model_part_has(style->part, model, spec))
            SR_TRY(add_tensor(writer, &next, model, &config, spec, style));
    }
    SR_TRY(add_constants(writer, &next, model, style));
    return sr_safetensors_writer_metadata(writer, "format", "pt");
}

static bool has_any(const sr_model *model, sr_model_part part) {
    for (size_t i = 0; i < model->table.count; i++)
        if (sr_model_part_has(part, model, &model->table.specs[i]))
            return true;
    return false;
}

static srnn_status write_weights(const sr_model *model, const char *folder,
                                 const weight_style *given) {
    char path[SR_PATH_BYTES];
    sr_safetensors_writer *writer;
    void *memory;
    sr_transposed_reader transposed = {0};
    weight_style style = *given;
    style.transposed = &transposed;
    SR_TRY(sr_model_part_file(path, folder, style.part));
    SR_TRY(sr_alloc_zero(&memory, most_written(model), sizeof(written)));
    srnn_status status = sr_safetensors_writer_create(&writer);
    if (status == SRNN_OK) {
        status = add_part(writer, memory, model, &style);
        if (status == SRNN_OK && has_any(model, style.part))
            status = sr_safetensors_writer_write(writer, path);
        sr_safetensors_writer_free(writer);
    }
    sr_transposed_reader_free(&transposed);
    free(memory);
    return status;
}

static srnn_status save(const sr_model *model, const sr_family *family, const char *folder,
                        sr_dtype dtype) {
    char config[SR_PATH_BYTES];
    const sr_tensor_names *names = sr_family_tensor_names(family);
    const weight_style style = {.names = names, .dtype = dtype, .part = whole};
    if (dtype != SR_DTYPE_F32 && dtype != SR_DTYPE_BF16 && dtype != SR_DTYPE_F16)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "weights are written as F32, BF16 or F16, not %s",
                       sr_dtype_name(dtype));
    SR_TRY(sr_path_join(config, folder, "config.json"));
    SR_TRY(write_weights(model, folder, &style));
    return sr_model_config_write(&model->config, family, dtype, config);
}

srnn_status sr_model_save(const sr_model *model, const char *folder, sr_dtype dtype) {
    return save(model, sr_family_of(&model->config), folder, dtype);
}

srnn_status sr_model_save_public(const sr_model *model, const char *folder, sr_dtype dtype) {
    const sr_family *family;
    SR_TRY(sr_model_config_public(&family, &model->config));
    return save(model, family, folder, dtype);
}

/* ---- saving by several */

static json_t *index_of(const sr_model *model, int parts) {
    json_t *root = json_object(), *metadata = json_object(), *map = json_object();
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        char name[64];
        part_name(name, (sr_model_part){part_number(model, spec, parts), parts});
        sr_json_set(map, spec->name, json_string(name));
    }
    sr_json_set(metadata, "total_size",
                json_integer((json_int_t)(sr_tensor_table_learned(&model->table) * sizeof(float))));
    sr_json_set(root, "metadata", metadata);
    sr_json_set(root, "weight_map", map);
    return root;
}

static srnn_status write_index(const sr_model *model, const char *folder, int parts) {
    char path[SR_PATH_BYTES], *text;
    SR_TRY(sr_path_join(path, folder, "model.safetensors.index.json"));
    json_t *root = index_of(model, parts);
    const srnn_status made = sr_json_dump(&text, root, JSON_INDENT(2) | JSON_SORT_KEYS, path);
    json_decref(root);
    SR_TRY(made);
    const srnn_status status = sr_file_replace(path, text, strlen(text));
    free(text);
    return status;
}

srnn_status sr_model_save_part(const sr_model *model, const char *folder, sr_model_part part) {
    const sr_family *family = sr_family_of(&model->config);
    const weight_style style = {.dtype = SR_DTYPE_F32, .part = part};
    char config[SR_PATH_BYTES];
    if (part.count == 1)
        return sr_model_save(model, folder, SR_DTYPE_F32);
    SR_TRY(write_weights(model, folder, &style));
    if (part.index > 0)
        return SRNN_OK;
    SR_TRY(write_index(model, folder, part.count));
    SR_TRY(sr_path_join(config, folder, "config.json"));
    return sr_model_config_write(&model->config, family, SR_DTYPE_F32, config);
}
