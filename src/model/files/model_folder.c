/* model_folder.c: a model from and to a Hugging Face folder. */
#include "model/files/model_folder.h"

#include "files/file.h"
#include "files/json.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "model/config/family.h"
#include "model/config/system.h"
#include "model/files/tensor_stream.h"
#include "model/files/weight_files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBEDDING "model.embed_tokens.weight"
#define HEAD      "lm_head.weight"

/* ---- the configuration */

static srnn_status read_config(sr_model_config *config, const char *folder) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, "config.json"));
    return sr_model_config_read(config, path);
}

static const sr_tensor *find_tensor(const void *files, const char *name) {
    return sr_weight_files_find(files, name);
}

/* Sizes of layers that their tensors tell better than config.json, which may not know them; and
 * biases. */
static srnn_status find_sizes(sr_model_config *config, const sr_weight_files *files) {
    if (config->names) /* others' files: their config.json says all, and what differs is refused */
        return sr_model_config_check(config);
    for (int layer = 0; layer < config->L && !config->is_avey; layer++) {
        char prefix[64];
        sr_layer_dims d = sr_model_config_dims(config, layer);
        snprintf(prefix, sizeof prefix, "model.layers.%d.self_attn.", layer);
        SR_TRY(sr_layer_sizes_find(&d, &config->attention[layer], prefix,
                                   (sr_tensor_finder){find_tensor, files}));
        config->sizes[layer] = (sr_layer_sizes){d.H, d.Hkv, d.D, d.Dv, d.rank, d.levels};
        config->qkv_bias = config->qkv_bias || (layer == 0 && d.qkv_bias);
        config->o_bias = config->o_bias || (layer == 0 && d.o_bias);
    }
    return sr_model_config_check(config);
}

static bool same_numbers(const sr_tensor *a, const sr_tensor *b) {
    return a->dtype == b->dtype && sr_tensor_has_shape(a, b->rank, b->shape) &&
           memcmp(a->data, b->data, a->count * sr_dtype_bytes(a->dtype)) == 0;
}

/* A head that differs from the embedding is not tied, whatever config.json says. */
static void find_head(sr_model_config *config, const sr_weight_files *files) {
    const sr_tensor *head = sr_weight_files_find(files, HEAD);
    const sr_tensor *embedding = sr_weight_files_find(files, EMBEDDING);
    config->head_kept = config->tied && head && embedding && !same_numbers(head, embedding);
    if (config->head_kept)
        config->tied = false;
}

/* ---- tensors that no row of the table asks for */

static bool ends_in(const char *text, const char *ending) {
    const size_t length = strlen(text), size = strlen(ending);
    return length >= size && strcmp(text + length - size, ending) == 0;
}

/* What follows "model.layers.N.", or NULL. */
static const char *name_in_layer(const char *name) {
    static const char layers[] = "model.layers.";
    if (strncmp(name, layers, strlen(layers)) != 0)
        return NULL;
    name += strlen(layers);
    while (isdigit((unsigned char)*name))
        name++;
    return *name == '.' ? name + 1 : NULL;
}

/* Numbers that are computed and not learned, but kept in files all the same. */
static bool is_buffer(const char *name) {
    static const char *const buffers[] = {"rotary_emb.inv_freq", "self_attn.abs_pos_enc.pe"};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (ends_in(name, buffers[i]))
            return true;
    return false;
}

/* The reference may keep tensors that the attention it names does not use. */
static bool is_of_reference(const char *name) {
    static const char *const parts[] = {"q_proj.", "k_proj.", "v_proj.", "qkv_proj.", "conv1d."};
    static const char attention[] = "self_attn.";
    const char *inside = name_in_layer(name);
    if (!inside || strncmp(inside, attention, strlen(attention)) != 0)
        return false;
    inside += strlen(attention);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(inside, parts[i], strlen(parts[i])) == 0)
            return true;
    for (int which = 0; which < SR_OPERANDS; which++) {
        const char *file = sr_operand_at((sr_operand)which)->file;
        if (file && strncmp(inside, file, strlen(file)) == 0)
            return true;
    }
    return false;
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether logits would need it. The head itself has no place in a tied model, which has it as its
 * embedding. */
static bool is_of_model(const char *name, const char *root) {
    return begins(name, root) || (begins(name, "lm_head.") && strcmp(name, HEAD) != 0);
}

/* Refuses a tensor inside the model that would be left out: the model would be another one. */
static srnn_status check_tensor(const sr_tensor *tensor, const sr_tensor_names *names,
                                const sr_model_config *config, const sr_tensor_table *table,
                                const char *folder) {
    const char *root = sr_tensor_root(names);
    char here[SR_SPEC_NAME], there[SR_SPEC_NAME];
    sr_tensor_name_here(here, names, tensor->name);
    sr_tensor_name_there(there, names, here);
    const bool has_place = strcmp(there, tensor->name) == 0 && sr_tensor_table_find(table, here);
    if (!is_of_model(tensor->name, root) || has_place || is_buffer(tensor->name) ||
        (config->reference && is_of_reference(tensor->name)))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "%s: the files hold %s, for which this model has no place: it may be of "
                   "another architecture, or config.json does not fit it",
                   folder, tensor->name);
}

static srnn_status check_tensors(const sr_weight_files *files, const sr_model_config *config,
                                 const sr_tensor_table *table, const char *folder) {
    for (size_t f = 0; f < files->count; f++)
        for (size_t i = 0; i < sr_safetensors_count(files->files[f]); i++)
            SR_TRY(check_tensor(sr_safetensors_at(files->files[f], i), files->names, config, table,
                                folder));
    return SRNN_OK;
}

/* ---- weights */

/* *found: the tensor of the files that `spec` of a model asks for, which fits it. */
static srnn_status find_fitting(const sr_tensor **found, const sr_tensor_spec *spec, bool tied,
                                const sr_weight_files *files, const char *folder) {
    const sr_tensor *tensor = sr_weight_files_find(files, spec->name);
    char there[SR_SPEC_NAME];
    sr_tensor_name_there(there, files->names, spec->name);
    if (!tensor && tied && strcmp(spec->name, EMBEDDING) == 0)
        tensor = sr_weight_files_find(files, HEAD);
    if (!tensor)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the files hold no %s, which the model needs", folder,
                       there);
    if (!sr_tensor_has_shape(tensor, spec->rank, spec->shape))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s has another shape than config.json says", folder,
                       there);
    if (tensor->dtype != SR_DTYPE_F32 && tensor->dtype != SR_DTYPE_F64 &&
        tensor->dtype != SR_DTYPE_F16 && tensor->dtype != SR_DTYPE_BF16)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: %s is of type %s; weights are floating-point",
                       folder, there, sr_dtype_name(tensor->dtype));
    *found = tensor;
    return SRNN_OK;
}

/* The files hold the tensors of this configuration, and no others. */
static srnn_status check_files(const sr_weight_files *files, const sr_model_config *config,
                               const char *folder) {
    sr_tensor_table table = {0};
    const sr_tensor *found;
    srnn_status status = sr_model_tensors(&table, config);
    if (status == SRNN_OK)
        status = check_tensors(files, config, &table, folder);
    for (size_t i = 0; i < table.count && status == SRNN_OK; i++)
        status = find_fitting(&found, &table.specs[i], config->tied, files, folder);
    sr_tensor_table_free(&table);
    return status;
}

srnn_status sr_model_load_config(sr_model_config *config, const char *folder) {
    sr_weight_files files;
    SR_TRY(read_config(config, folder));
    srnn_status status = sr_weight_files_open(&files, folder, config->names);
    if (status == SRNN_OK)
        status = find_sizes(config, &files);
    if (status == SRNN_OK)
        find_head(config, &files);
    if (status == SRNN_OK)
        status = check_files(&files, config, folder);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    sr_weight_files_close(&files);
    return status;
}

static srnn_status load_tensor(sr_model *model, const sr_tensor_spec *spec,
                               const sr_weight_files *files, const char *folder) {
    const sr_tensor *tensor = NULL;
    SR_TRY(find_fitting(&tensor, spec, model->config.tied, files, folder));
    return sr_stream_in(model->backend, model->weights + spec->start, tensor);
}

static srnn_status load_all(sr_model *model, const sr_weight_files *files, const char *folder) {
    SR_TRY(check_tensors(files, &model->config, &model->table, folder));
    for (size_t i = 0; i < model->table.count; i++)
        SR_TRY(load_tensor(model, &model->table.specs[i], files, folder));
    return sr_model_narrow(model);
}

/* The model may have come from a folder with other names. */
static srnn_status open_weights(sr_weight_files *files, const char *folder) {
    sr_model_config config;
    SR_TRY(read_config(&config, folder));
    const sr_tensor_names *names = config.names;
    sr_model_config_free(&config);
    return sr_weight_files_open(files, folder, names);
}

srnn_status sr_model_load_weights(sr_model *model, const char *folder) {
    sr_weight_files files;
    SR_TRY(open_weights(&files, folder));
    const srnn_status status = load_all(model, &files, folder);
    sr_weight_files_close(&files);
    return status;
}

srnn_status sr_model_load(sr_model **model, sr_backend *backend, const char *folder) {
    sr_model_config config;
    *model = NULL;
    SR_TRY(sr_model_load_config(&config, folder));
    srnn_status status = sr_model_create(model, backend, &config);
    sr_model_config_free(&config);
    SR_TRY(status);
    status = sr_model_load_weights(*model, folder);
    if (status != SRNN_OK) {
        sr_model_free(*model);
        *model = NULL;
    }
    return status;
}

/* ---- weights that two models share */

static bool same_tensor(const sr_tensor_spec *a, const sr_tensor_spec *b) {
    return a && a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

/* `theirs`: the table of the model in the files. */
static srnn_status load_shared(sr_model *model, size_t *shared, const sr_weight_files *files,
                               const sr_tensor_table *theirs, const char *folder) {
    *shared = 0;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (!same_tensor(sr_tensor_table_find(theirs, spec->name), spec))
            continue;
        SR_TRY(load_tensor(model, spec, files, folder));
        ++*shared;
    }
    return sr_model_narrow(model);
}

srnn_status sr_model_load_shared(sr_model *model, size_t *shared, const char *folder) {
    sr_model_config config;
    sr_tensor_table theirs = {0};
    sr_weight_files files = {0};
    SR_TRY(sr_model_load_config(&config, folder));
    srnn_status status = sr_model_tensors(&theirs, &config);
    if (status == SRNN_OK)
        status = sr_weight_files_open(&files, folder, config.names);
    if (status == SRNN_OK)
        status = check_tensors(&files, &config, &theirs, folder);
    if (status == SRNN_OK)
        status = load_shared(model, shared, &files, &theirs, folder);
    sr_weight_files_close(&files);
    sr_tensor_table_free(&theirs);
    sr_model_config_free(&config);
    return status;
}

/* ---- saving */

static const sr_model_part whole = {0, 1};

/* How a file of weights is written. */
typedef struct weight_style {
    const sr_tensor_names *names;
    sr_dtype dtype;
    sr_model_part part;
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

static srnn_status add_part(sr_safetensors_writer *writer, size_t *added, const sr_model *model,
                            const weight_style *style) {
    sr_safetensors_writer_reader(writer, sr_stream_out, model->backend);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        char name[SR_SPEC_NAME];
        if (!sr_model_part_has(style->part, model, spec))
            continue;
        ++*added;
        sr_tensor_name_there(name, style->names, spec->name);
        sr_tensor tensor = {.name = name,
                            .dtype = style->dtype,
                            .rank = spec->rank,
                            .data = model->weights + spec->start};
        for (int d = 0; d < spec->rank; d++)
            tensor.shape[d] = spec->shape[d];
        SR_TRY(sr_safetensors_writer_add(writer, &tensor));
    }
    return sr_safetensors_writer_metadata(writer, "format", "pt");
}

static srnn_status write_weights(const sr_model *model, const char *folder,
                                 const weight_style *style) {
    char path[SR_PATH_BYTES];
    sr_safetensors_writer *writer;
    size_t added = 0;
    SR_TRY(sr_model_part_file(path, folder, style->part));
    SR_TRY(sr_safetensors_writer_create(&writer));
    srnn_status status = add_part(writer, &added, model, style);
    if (status == SRNN_OK && added > 0)
        status = sr_safetensors_writer_write(writer, path);
    sr_safetensors_writer_free(writer);
    return status;
}

static srnn_status save(const sr_model *model, const sr_family *family, const char *folder,
                        sr_dtype dtype) {
    char config[SR_PATH_BYTES];
    const sr_tensor_names *names = family->system ? sr_config_system_names(family->system) : NULL;
    const weight_style style = {names, dtype, whole};
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
    const weight_style style = {NULL, SR_DTYPE_F32, part};
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
