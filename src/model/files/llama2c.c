/* llama2c.c: a model from and to llama2.c's .bin. */
#include "base/memory.h"
#include "files/file.h"
#include "model/files/model_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seven int32: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative: the head has
 * weights of its own), seq_len. Then float32 tensors, each kind for all layers together. */
enum { HEADER = 7 };

/* llama2.c's own constants, which its file does not hold. */
#define NORM_EPSILON 1e-5
#define ROPE_THETA   10000.0

typedef struct bin_tensor {
    const char *name; /* of a layer, after "model.layers.N."; or the whole name */
    bool in_layers;
    bool rotated; /* rows of each head stand in llama2.c's order of rotation */
} bin_tensor;

static const bin_tensor order[] = {
    {"model.embed_tokens.weight", false, false},
    {"input_layernorm.weight", true, false},
    {"self_attn.q_proj.weight", true, true},
    {"self_attn.k_proj.weight", true, true},
    {"self_attn.v_proj.weight", true, false},
    {"self_attn.o_proj.weight", true, false},
    {"post_attention_layernorm.weight", true, false},
    {"mlp.gate_proj.weight", true, false},
    {"mlp.down_proj.weight", true, false},
    {"mlp.up_proj.weight", true, false},
    {"model.norm.weight", false, false},
};
enum { ORDER = sizeof order / sizeof *order };

static const sr_tensor_spec *find(const sr_model *model, const bin_tensor *tensor, int layer) {
    char name[SR_SPEC_NAME];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, tensor->name);
    return sr_tensor_table_find(&model->table, tensor->in_layers ? name : tensor->name);
}

/* llama2.c rotates channels 2c and 2c+1 together, Hugging Face c and c + D/2. */
static void reorder(float *out, const float *in, const sr_model_config *c, size_t rows,
                    bool to_hugging_face) {
    const size_t D = (size_t)c->D, C = (size_t)c->C;
    for (size_t row = 0; row < rows; row++) {
        const size_t head = row / D * D, channel = row % D;
        const size_t half = head + channel / 2 + channel % 2 * (D / 2);
        const size_t from = to_hugging_face ? row : half, to = to_hugging_face ? half : row;
        memcpy(out + to * C, in + from * C, C * sizeof *out);
    }
}

static size_t largest_tensor(const sr_model *model) {
    size_t largest = 0;
    for (size_t i = 0; i < model->table.count; i++)
        if (model->table.specs[i].count > largest)
            largest = model->table.specs[i].count;
    return largest;
}

/* The next tensor of the file; *data moves behind it. `buffer`: two tensors. */
static srnn_status read_tensor(sr_model *model, const bin_tensor *tensor, int layer,
                               const uint8_t **data, const uint8_t *end, float *buffer) {
    const sr_tensor_spec *spec = find(model, tensor, layer);
    const size_t bytes = spec->count * sizeof(float);
    float *reordered = buffer + spec->count;
    if ((size_t)(end - *data) < bytes)
        return SRNN_ERR_FORMAT;
    memcpy(buffer, *data, bytes);
    *data += bytes;
    if (tensor->rotated)
        reorder(reordered, buffer, &model->config, (size_t)spec->shape[0], true);
    return sr_device_copy_in(model->backend->device, model->weights + spec->start,
                             tensor->rotated ? reordered : buffer, bytes);
}

static srnn_status read_tensors(sr_model *model, const uint8_t *data, const uint8_t *end,
                                float *buffer) {
    for (size_t i = 0; i < ORDER; i++)
        for (int layer = 0; layer < (order[i].in_layers ? model->config.L : 1); layer++)
            SR_TRY(read_tensor(model, &order[i], layer, &data, end, buffer));
    if (model->config.tied)
        return sr_model_narrow(model);
    /* Tables of angles follow, which everyone computes; then the head. */
    const bin_tensor head = {"lm_head.weight", false, false};
    const size_t angles = (size_t)model->config.positions * (size_t)model->config.D * sizeof(float);
    if ((size_t)(end - data) < angles)
        return SRNN_ERR_FORMAT;
    data += angles;
    SR_TRY(read_tensor(model, &head, 0, &data, end, buffer));
    return sr_model_narrow(model);
}

static srnn_status read_weights(sr_model *model, const char *path, const uint8_t *data,
                                const uint8_t *end) {
    void *buffer;
    SR_TRY(sr_alloc(&buffer, 2 * largest_tensor(model), sizeof(float)));
    const srnn_status status = read_tensors(model, data, end, buffer);
    free(buffer);
    return status == SRNN_ERR_FORMAT ? SR_FAIL(status, "%s: shorter than its header says", path)
                                     : status;
}

static srnn_status read_header(sr_model_config *config, const char *path, const sr_mapping *file) {
    int32_t header[HEADER];
    if (file->bytes < sizeof header)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: too short for a llama2.c model", path);
    memcpy(header, file->data, sizeof header);
    const bool tied = header[5] > 0;
    if (header[3] < 1 || header[5] == INT32_MIN)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a llama2.c model", path);
    *config = (sr_model_config){.C = header[0],
                                .F = header[1],
                                .L = header[2],
                                .H = header[3],
                                .Hkv = header[4],
                                .D = header[0] / header[3],
                                .V = tied ? header[5] : -header[5],
                                .positions = header[6],
                                .norm_epsilon = NORM_EPSILON,
                                .rope_theta = ROPE_THETA,
                                .tied = tied,
                                .bos = 1,
                                .eos = 2};
    if (sr_model_config_attention(config, "softmax") != SRNN_OK ||
        sr_model_config_check(config) != SRNN_OK)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not a llama2.c model: a size makes no sense", path);
    /* Its weights alone are larger than this, so that a bad header does not take all memory. */
    if ((size_t)config->V * (size_t)config->C * sizeof(float) > file->bytes ||
        (size_t)config->L * (size_t)config->C * (size_t)config->F * sizeof(float) > file->bytes ||
        (size_t)config->positions * (size_t)config->D * sizeof(float) > file->bytes)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: shorter than its header says", path);
    return SRNN_OK;
}

static srnn_status load(sr_model **model, sr_backend *backend, const char *path,
                        const sr_mapping *file) {
    sr_model_config config = {0};
    srnn_status status = read_header(&config, path, file);
    if (status == SRNN_OK)
        status = sr_model_create(model, backend, &config);
    sr_model_config_free(&config);
    SR_TRY(status);
    status =
        read_weights(*model, path, file->data + HEADER * sizeof(int32_t), file->data + file->bytes);
    if (status != SRNN_OK) {
        sr_model_free(*model);
        *model = NULL;
    }
    return status;
}

srnn_status sr_model_llama2c_tokens(int *V, const char *path) {
    sr_mapping file;
    sr_model_config config = {0};
    SR_TRY(sr_mapping_open(&file, path));
    const srnn_status status = read_header(&config, path, &file);
    *V = config.V;
    sr_model_config_free(&config);
    sr_mapping_close(&file);
    return status;
}

srnn_status sr_model_load_llama2c(sr_model **model, sr_backend *backend, const char *path) {
    sr_mapping file;
    *model = NULL;
    SR_TRY(sr_mapping_open(&file, path));
    const srnn_status status = load(model, backend, path, &file);
    sr_mapping_close(&file);
    return status;
}

static srnn_status check_llama2c(const sr_model_config *c, const char *path) {
    if (!sr_model_config_is_softmax(c))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: llama2.c has softmax attention only, with keys and values as wide as "
                       "head_dim",
                       path);
    if (!sr_model_config_is_plain(c) || c->qkv_bias || c->o_bias || c->mlp_bias ||
        c->mlp != SR_MLP_SWIGLU || c->D * c->H != c->C)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: llama2.c has no biases, no MLP but SwiGLU, and only heads that "
                       "fill the width",
                       path);
    if (c->rope_theta != ROPE_THETA || c->rope_scaling.kind != SR_ROPE_DEFAULT)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: llama2.c has rope_theta 10000 only", path);
    if (c->norm_epsilon != NORM_EPSILON)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: llama2.c has rms_norm_eps %g only, the model has %g", path,
                       NORM_EPSILON, c->norm_epsilon);
    return SRNN_OK;
}

static srnn_status write_tensor(sr_replacement *out, const sr_model *model,
                                const bin_tensor *tensor, int layer, float *buffer) {
    const sr_tensor_spec *spec = find(model, tensor, layer);
    const size_t bytes = spec->count * sizeof(float);
    float *reordered = buffer + spec->count;
    SR_TRY(sr_device_copy_out(model->backend->device, buffer, model->weights + spec->start, bytes));
    if (tensor->rotated)
        reorder(reordered, buffer, &model->config, (size_t)spec->shape[0], false);
    return sr_replacement_write(out, tensor->rotated ? reordered : buffer, bytes);
}

/* llama2.c keeps cosines and sines apart, (positions, D/2) each. */
static srnn_status write_angles(sr_replacement *out, const sr_model_config *c) {
    const size_t half = (size_t)c->D / 2, positions = (size_t)c->positions;
    void *memory;
    SR_TRY(sr_alloc(&memory, positions * (size_t)c->D, sizeof(float)));
    const float *table = memory;
    sr_rope_table(memory, c->positions, c->D, c->rope_theta, &c->rope_scaling);
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < 2 * positions && status == SRNN_OK; i++)
        status = sr_replacement_write(out, table + i % positions * 2 * half + i / positions * half,
                                      half * sizeof(float));
    free(memory);
    return status;
}

static srnn_status write_all(sr_replacement *out, const sr_model *model, float *buffer) {
    const sr_model_config *c = &model->config;
    const int32_t header[HEADER] = {c->C,        c->F, c->L, c->H, c->Hkv, c->tied ? c->V : -c->V,
                                    c->positions};
    const bin_tensor head = {"lm_head.weight", false, false};
    SR_TRY(sr_replacement_write(out, header, sizeof header));
    for (size_t i = 0; i < ORDER; i++)
        for (int layer = 0; layer < (order[i].in_layers ? c->L : 1); layer++)
            SR_TRY(write_tensor(out, model, &order[i], layer, buffer));
    SR_TRY(write_angles(out, c));
    return c->tied ? SRNN_OK : write_tensor(out, model, &head, 0, buffer);
}

srnn_status sr_model_save_llama2c(const sr_model *model, const char *path) {
    sr_replacement *out = NULL;
    void *buffer;
    SR_TRY(check_llama2c(&model->config, path));
    SR_TRY(sr_alloc(&buffer, 2 * largest_tensor(model), sizeof(float)));
    srnn_status status = sr_replacement_create(&out, path);
    if (status == SRNN_OK)
        status = write_all(out, model, buffer);
    if (status == SRNN_OK)
        status = sr_replacement_commit(out);
    sr_replacement_free(out);
    free(buffer);
    return status;
}
