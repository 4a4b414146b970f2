/* checkpoint.c: a model from and to a Hugging Face folder. */
#include "model/checkpoint.h"

#include "base/memory.h"
#include "base/safetensors.h"
#include "model/weight_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static srnn_status load_tensor(sr_model *model, const sr_tensor_spec *spec,
                               const sr_weight_files *files, const char *folder) {
    const sr_tensor *tensor = sr_weight_files_find(files, spec->name);
    if (!tensor && model->config.tied && strcmp(spec->name, "model.embed_tokens.weight") == 0)
        tensor = sr_weight_files_find(files, "lm_head.weight");
    if (!tensor)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the files hold no %s, which the model needs", folder,
                       spec->name);
    if (!sr_tensor_has_shape(tensor, spec->rank, spec->shape))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s has another shape than config.json says", folder,
                       spec->name);
    void *host;
    SR_TRY(sr_alloc(&host, spec->count, sizeof(float)));
    sr_tensor_to_float(host, tensor);
    const srnn_status status = model->backend->copy_in(model->backend, model->weights + spec->start,
                                                       host, spec->count * sizeof(float));
    free(host);
    return status;
}

static srnn_status load_all(sr_model **model, sr_backend *backend, sr_model_config *config,
                            const sr_weight_files *files, const char *folder) {
    if (sr_weight_files_find(files, "model.layers.0.self_attn.q_proj.bias"))
        config->qkv_bias = true;
    if (sr_weight_files_find(files, "model.layers.0.self_attn.o_proj.bias"))
        config->o_bias = true;
    SR_TRY(sr_model_create(model, backend, config));
    for (size_t i = 0; i < (*model)->table.count; i++) {
        const srnn_status status = load_tensor(*model, &(*model)->table.specs[i], files, folder);
        if (status != SRNN_OK) {
            sr_model_free(*model);
            *model = NULL;
            return status;
        }
    }
    return SRNN_OK;
}

srnn_status sr_model_load(sr_model **model, sr_backend *backend, const char *folder) {
    char path[PATH_BYTES];
    sr_model_config config;
    sr_weight_files files;
    *model = NULL;
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    SR_TRY(sr_model_config_read(&config, path));
    srnn_status status = sr_weight_files_open(&files, folder);
    if (status == SRNN_OK) {
        status = load_all(model, backend, &config, &files, folder);
        sr_weight_files_close(&files);
    }
    sr_model_config_free(&config);
    return status;
}

/* Rounds to nearest, ties to even; NaN stays one. */
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* The same for float16: half of the spacing of its numbers decides. */
static uint16_t to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below 2^-14 the numbers are multiples of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &size, sizeof magnitude);
        const float shifted = magnitude * 16777216.0f + 8388608.0f; /* rounds to a whole number */
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits & 0x7fffu));
    }
    return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

static void narrow(uint16_t *out, const float *x, size_t count, sr_dtype dtype) {
    for (size_t i = 0; i < count; i++)
        out[i] = dtype == SR_DTYPE_BF16 ? to_bf16(x[i]) : to_f16(x[i]);
}

static srnn_status add_all(sr_safetensors_writer *writer, const sr_model *model,
                           const float *weights, uint16_t *narrowed, sr_dtype dtype) {
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        sr_tensor tensor = {.name = spec->name, .dtype = dtype, .rank = spec->rank};
        for (int d = 0; d < spec->rank; d++)
            tensor.shape[d] = spec->shape[d];
        tensor.data = weights + spec->start;
        if (narrowed) {
            narrow(narrowed + spec->start, weights + spec->start, spec->count, dtype);
            tensor.data = narrowed + spec->start;
        }
        SR_TRY(sr_safetensors_writer_add(writer, &tensor));
    }
    return sr_safetensors_writer_metadata(writer, "format", "pt");
}

static srnn_status write_weights(const sr_model *model, const char *path, const float *weights,
                                 sr_dtype dtype) {
    void *narrowed = NULL;
    sr_safetensors_writer *writer;
    if (dtype != SR_DTYPE_F32)
        SR_TRY(sr_alloc(&narrowed, model->table.numbers, sizeof(uint16_t)));
    srnn_status status = sr_safetensors_writer_create(&writer);
    if (status == SRNN_OK) {
        status = add_all(writer, model, weights, narrowed, dtype);
        if (status == SRNN_OK)
            status = sr_safetensors_writer_write(writer, path);
        sr_safetensors_writer_free(writer);
    }
    free(narrowed);
    return status;
}

srnn_status sr_model_save(const sr_model *model, const char *folder, sr_dtype dtype) {
    char config[PATH_BYTES], weights[PATH_BYTES];
    void *host;
    if (dtype != SR_DTYPE_F32 && dtype != SR_DTYPE_BF16 && dtype != SR_DTYPE_F16)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "weights are written as F32, BF16 or F16, not %s",
                       sr_dtype_name(dtype));
    if (snprintf(config, sizeof config, "%s/config.json", folder) >= (int)sizeof config ||
        snprintf(weights, sizeof weights, "%s/model.safetensors", folder) >= (int)sizeof weights)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    SR_TRY(sr_alloc(&host, model->table.numbers, sizeof(float)));
    srnn_status status = model->backend->copy_out(model->backend, host, model->weights,
                                                  model->table.numbers * sizeof(float));
    if (status == SRNN_OK)
        status = write_weights(model, weights, host, dtype);
    free(host);
    SR_TRY(status);
    return sr_model_config_write(&model->config, config);
}
