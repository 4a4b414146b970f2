/* model_folder.c: a model from a Hugging Face folder. */
#include "model/files/model_folder.h"

#include "base/memory.h"
#include "files/json.h"
#include "files/path.h"
#include "files/safetensors.h"
#include "model/config/family.h"
#include "model/config/system.h"
#include "model/conv/conv.h"
#include "model/files/tensor_source.h"
#include "model/files/tensor_stream.h"
#include "model/files/weight_files.h"
#include "model/mixers.h"

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
    SR_TRY(sr_model_config_read(config, path));
    srnn_status status = sr_path_join(path, folder, "generation_config.json");
    if (status == SRNN_OK)
        status = sr_model_config_read_stops(config, path);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

static const sr_tensor *find_tensor(const void *files, const char *name) {
    return sr_weight_files_find(files, name);
}

/* Sizes of layers from the shapes of their tensors, since config.json may not have them; and
 * biases. */
static srnn_status find_sizes(sr_model_config *config, const sr_weight_files *files) {
    if (config->names) /* others' files: their config.json says all, and what differs is refused */
        return sr_model_config_check(config);
    for (int layer = 0; layer < sr_model_config_attention_layers(config); layer++) {
        char prefix[64];
        sr_layer_dims d = sr_model_config_dims(config, layer);
        if (sr_layer_is_conv(&config->attention[layer]))
            continue;
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

/* A tensor outside of layers, by its name here. */
static const sr_tensor *find_whole(const sr_weight_files *files, const sr_tensor_names *names,
                                   const char *name) {
    char there[SR_SPEC_NAME];
    sr_tensor_name_there(there, names, name, false);
    return sr_weight_files_find(files, there);
}

/* A head that differs from the embedding is not tied, whatever config.json says. */
static void find_head(sr_model_config *config, const sr_weight_files *files) {
    const sr_tensor *head = find_whole(files, config->names, HEAD);
    const sr_tensor *embedding = find_whole(files, config->names, EMBEDDING);
    config->head_kept = config->tied && head && embedding && !same_numbers(head, embedding);
    if (config->head_kept)
        config->tied = false;
}

/* ---- tensors that no row of the table reads */

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
    static const char *const usual[] = {"rotary_emb.inv_freq", "self_attn.abs_pos_enc.pe"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (ends_in(name, usual[i]))
            return true;
    return false;
}

/* The constant that a tensor of the files is; NULL: none. */
static const sr_layer_constant *constant_of(const char *name, const sr_tensor_names *names) {
    for (int i = 0; names && i < SR_CONSTANTS && names->constants[i].name; i++)
        if (ends_in(name, names->constants[i].name))
            return &names->constants[i];
    return NULL;
}

/* Whether a tensor is the constant, rounded to the tensor's type. */
static bool is_constant(const sr_tensor *tensor, float value) {
    const bool narrow = tensor->dtype == SR_DTYPE_F16 || tensor->dtype == SR_DTYPE_BF16;
    uint16_t rounded;
    float found;
    if (tensor->count != 1)
        return false;
    if (narrow) {
        const sr_tensor one = {.dtype = tensor->dtype, .data = &value, .count = 1};
        return sr_stream_round(&rounded, &one, 1) == SRNN_OK &&
               memcmp(&rounded, tensor->data, sizeof rounded) == 0;
    }
    sr_tensor_to_float(&found, tensor);
    return found == value;
}

static srnn_status check_constant(const sr_tensor *tensor, const sr_layer_constant *constant,
                                  const char *folder) {
    return is_constant(tensor, constant->value)
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: %s is not %g, with which models are computed",
                         folder, tensor->name, (double)constant->value);
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

/* Names of the files' tensors that rows of the table have their numbers from; free with
 * json_decref. */
static srnn_status used_names(json_t **used, const sr_model_config *config,
                              const sr_tensor_table *table, const char *folder) {
    char name[SR_SPEC_NAME];
    *used = json_object();
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_source source = sr_tensor_source_of(&table->specs[i], config, table);
        for (int file = 0; file < source.files; file++) {
            char other[SR_SPEC_NAME];
            sr_tensor_source_name(name, &source, file);
            sr_json_set(*used, name, json_true());
            for (int alias = 0; alias < SR_ALIASES; alias++)
                if (sr_tensor_name_alias(other, config->names, name, alias))
                    sr_json_set(*used, other, json_true());
        }
    }
    const srnn_status status = sr_json_complete(*used, folder);
    if (status != SRNN_OK)
        json_decref(*used);
    return status;
}

/* Refuses a tensor inside the model that would be left out: the model would be another one. */
static srnn_status check_tensor(const sr_tensor *tensor, const sr_model_config *config,
                                const json_t *used, const char *folder) {
    const char *root = sr_tensor_root(config->names);
    const sr_layer_constant *constant = constant_of(tensor->name, config->names);
    if (constant)
        return check_constant(tensor, constant, folder);
    if (!is_of_model(tensor->name, root) || json_object_get(used, tensor->name) ||
        is_buffer(tensor->name) || (config->reference && is_of_reference(tensor->name)))
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "%s: the files hold %s, for which this model has no place: it may be of "
                   "another architecture, or config.json does not fit it",
                   folder, tensor->name);
}

static srnn_status check_tensors(const sr_weight_files *files, const sr_model_config *config,
                                 const sr_tensor_table *table, const char *folder) {
    json_t *used;
    srnn_status status = used_names(&used, config, table, folder);
    SR_TRY(status);
    for (size_t f = 0; f < files->count; f++)
        for (size_t i = 0; i < sr_safetensors_count(files->files[f]) && status == SRNN_OK; i++)
            status = check_tensor(sr_safetensors_at(files->files[f], i), config, used, folder);
    json_decref(used);
    return status;
}

/* ---- weights */

/* *found: the tensor `file` of a source, of numbers that can be read. */
static srnn_status find_file(const sr_tensor **found, const sr_tensor_source *source, int file,
                             bool tied, const sr_weight_files *files, const char *folder) {
    char there[SR_SPEC_NAME], other[SR_SPEC_NAME];
    sr_tensor_source_name(there, source, file);
    const sr_tensor *tensor = sr_weight_files_find(files, there);
    for (int alias = 0; alias < SR_ALIASES && !tensor; alias++)
        if (sr_tensor_name_alias(other, source->names, there, alias))
            tensor = sr_weight_files_find(files, other);
    if (!tensor && tied && strcmp(source->spec->name, EMBEDDING) == 0)
        tensor = sr_weight_files_find(files, HEAD);
    if (!tensor)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the files hold no %s, which the model needs", folder,
                       there);
    if (tensor->dtype != SR_DTYPE_F32 && tensor->dtype != SR_DTYPE_F64 &&
        tensor->dtype != SR_DTYPE_F16 && tensor->dtype != SR_DTYPE_BF16)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: %s is of type %s; weights are floating-point",
                       folder, there, sr_dtype_name(tensor->dtype));
    *found = tensor;
    return SRNN_OK;
}

/* The files hold what the source says. */
static srnn_status check_source(const sr_tensor_source *source, bool tied,
                                const sr_weight_files *files, const char *folder) {
    int64_t numbers = 0;
    char there[SR_SPEC_NAME];
    for (int file = 0; file < source->files; file++) {
        const sr_tensor *tensor = NULL;
        SR_TRY(find_file(&tensor, source, file, tied, files, folder));
        SR_TRY(sr_tensor_source_check(source, tensor, folder));
        numbers += (int64_t)tensor->count;
    }
    sr_tensor_source_name(there, source, 0);
    if (numbers == source->groups * source->stride)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "%s: %s and what is joined with it have %lld numbers, but config.json requires "
                   "%lld",
                   folder, there, (long long)numbers, (long long)(source->groups * source->stride));
}

/* The files hold the tensors of this configuration, and no others. */
static srnn_status check_files(const sr_weight_files *files, const sr_model_config *config,
                               const char *folder) {
    sr_tensor_table table = {0};
    srnn_status status = sr_model_tensors(&table, config);
    if (status == SRNN_OK)
        status = check_tensors(files, config, &table, folder);
    for (size_t i = 0; i < table.count && status == SRNN_OK; i++) {
        const sr_tensor_source source = sr_tensor_source_of(&table.specs[i], config, &table);
        status = check_source(&source, config->tied, files, folder);
    }
    sr_tensor_table_free(&table);
    return status;
}

srnn_status sr_model_load_config(sr_model_config *config, const char *folder) {
    sr_weight_files files;
    SR_TRY(read_config(config, folder));
    srnn_status status = sr_weight_files_open(&files, folder);
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

/* A folder that a model's tensors are read from. */
typedef struct folder_reader {
    const sr_weight_files *files;
    const char *folder;
    bool tied;
} folder_reader;

/* Numbers from `first` on, to.columns of them, of the source's tensors end to end. */
static srnn_status load_numbers(sr_matrix to, sr_backend *backend, const sr_tensor_source *source,
                                int64_t first, const folder_reader *r) {
    const int64_t end = first + to.columns;
    int64_t start = 0;
    for (int file = 0; file < source->files && start < end; file++) {
        const sr_tensor *tensor = NULL;
        SR_TRY(find_file(&tensor, source, file, r->tied, r->files, r->folder));
        const int64_t after = start + (int64_t)tensor->count;
        const int64_t from = first > start ? first : start, until = end < after ? end : after;
        if (from < until)
            SR_TRY(sr_stream_in(backend, sr_matrix_columns(to, from - first, until - from), tensor,
                                (size_t)(from - start)));
        start = after;
    }
    return SRNN_OK;
}

/* `config`: of the folder. */
static srnn_status load_tensor(sr_model *model, const sr_tensor_spec *spec,
                               const sr_model_config *config, const sr_weight_files *files,
                               const char *folder) {
    const sr_tensor_source source = sr_tensor_source_of(spec, config, &model->table);
    const folder_reader reader = {files, folder, model->config.tied};
    const sr_matrix to = sr_model_place(model, spec);
    SR_TRY(check_source(&source, reader.tied, files, folder));
    if (sr_tensor_source_is_transposed(&source)) {
        const sr_transposed shape = sr_tensor_source_transposed(&source);
        const sr_tensor *tensor = NULL;
        SR_TRY(find_file(&tensor, &source, 0, reader.tied, files, folder));
        return sr_transposed_load(model->backend, to, tensor, &shape, source.part);
    }
    for (int64_t g = 0; g < source.groups; g++)
        SR_TRY(load_numbers(sr_matrix_columns(to, g * source.count, source.count), model->backend,
                            &source, g * source.stride + source.first, &reader));
    return SRNN_OK;
}

static srnn_status load_all(sr_model *model, const sr_model_config *config,
                            const sr_weight_files *files, const char *folder,
                            const sr_load_setup *setup) {
    size_t done = 0;
    SR_TRY(check_tensors(files, config, &model->table, folder));
    for (size_t i = 0; i < model->table.count; i++) {
        SR_TRY(load_tensor(model, &model->table.specs[i], config, files, folder));
        done += model->table.specs[i].count;
        if (setup->see)
            setup->see(setup->context, (double)done / (double)model->table.numbers);
    }
    return model->read_only ? SRNN_OK : sr_model_narrow(model);
}

/* The model as the files have it, with their names. */
static srnn_status load_weights(sr_model *model, const char *folder, const sr_load_setup *setup) {
    sr_weight_files files;
    sr_model_config theirs;
    SR_TRY(read_config(&theirs, folder));
    sr_model_config config = model->config;
    config.names = theirs.names;
    sr_model_config_free(&theirs);
    SR_TRY(sr_weight_files_open(&files, folder));
    const srnn_status status = load_all(model, &config, &files, folder, setup);
    sr_weight_files_close(&files);
    return status;
}

srnn_status sr_model_load_weights(sr_model *model, const char *folder) {
    return load_weights(model, folder, &(sr_load_setup){0});
}

/* *narrow: every tensor of the files is bf16, so that nothing is lost by leaving it so. */
static srnn_status find_narrow(bool *narrow, const sr_model_config *config, const char *folder) {
    sr_weight_files files;
    sr_tensor_table table = {0};
    SR_TRY(sr_weight_files_open(&files, folder));
    srnn_status status = sr_model_tensors(&table, config);
    *narrow = sr_mixer_row_of(config)->attends;
    for (size_t i = 0; i < table.count && status == SRNN_OK && *narrow; i++) {
        const sr_tensor_source source = sr_tensor_source_of(&table.specs[i], config, &table);
        for (int file = 0; file < source.files && status == SRNN_OK; file++) {
            const sr_tensor *tensor = NULL;
            status = find_file(&tensor, &source, file, config->tied, &files, folder);
            *narrow = *narrow && status == SRNN_OK && tensor->dtype == SR_DTYPE_BF16;
        }
    }
    sr_tensor_table_free(&table);
    sr_weight_files_close(&files);
    return status;
}

/* Creates the model if its weights fit into memory: a host may promise more than it has, and end
 * the process when the weights are written. */
static srnn_status create(sr_model **model, sr_backend *backend, const sr_model_config *config,
                          const char *folder, bool read_only) {
    const double most = sr_memory_bytes();
    sr_tensor_table table;
    char why[256];
    SR_TRY(sr_model_tensors(&table, config));
    const double bytes =
        (double)table.numbers * (read_only ? 2 : 4) + (double)sr_model_rope_bytes(config);
    sr_tensor_table_free(&table);
    const bool possible = !sr_device_is_host(backend->device) || bytes <= most;
    const srnn_status status = !possible   ? SRNN_ERR_MEMORY
                               : read_only ? sr_model_create_read_only(model, backend, config)
                                           : sr_model_create(model, backend, config);
    if (status != SRNN_ERR_MEMORY)
        return status;
    snprintf(why, sizeof why, "%s", possible ? srnn_error_detail() : "this process may have less");
    return SR_FAIL(SRNN_ERR_MEMORY,
                   "%s: the model needs %.2f GB for its weights in %s, more than is "
                   "available; nothing of it was read (%s)",
                   folder, bytes / 1e9, read_only ? "bf16" : "float32", why);
}

srnn_status sr_model_load(sr_model **model, sr_backend *backend, const char *folder) {
    return sr_model_load_as(model, backend, folder, &(sr_load_setup){0});
}

srnn_status sr_model_load_as(sr_model **model, sr_backend *backend, const char *folder,
                             const sr_load_setup *setup) {
    sr_model_config config;
    bool read_only = setup->read_only && backend->product == SRNN_BF16;
    *model = NULL;
    SR_TRY(sr_model_load_config(&config, folder));
    srnn_status status = SRNN_OK;
    if (read_only)
        status = find_narrow(&read_only, &config, folder);
    if (status == SRNN_OK)
        status = create(model, backend, &config, folder, read_only);
    sr_model_config_free(&config);
    SR_TRY(status);
    status = load_weights(*model, folder, setup);
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
static srnn_status load_shared(sr_model *model, size_t *shared, const sr_model_config *config,
                               const sr_weight_files *files, const sr_tensor_table *theirs,
                               const char *folder) {
    *shared = 0;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (!same_tensor(sr_tensor_table_find(theirs, spec->name), spec))
            continue;
        SR_TRY(load_tensor(model, spec, config, files, folder));
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
        status = sr_weight_files_open(&files, folder);
    if (status == SRNN_OK)
        status = check_tensors(&files, &config, &theirs, folder);
    if (status == SRNN_OK)
        status = load_shared(model, shared, &config, &files, &theirs, folder);
    sr_weight_files_close(&files);
    sr_tensor_table_free(&theirs);
    sr_model_config_free(&config);
    return status;
}
