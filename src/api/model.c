/* model.c: models, for the C API. */
#include "api/handles.h"
#include "base/memory.h"
#include "model/mixers.h"
#include "train/model_open.h"

#include <stdlib.h>
#include <string.h>

static srnn_status load(srnl_model *model, const char *where, const sr_backend_settings *settings) {
    SR_TRY(sr_path_print(model->where, "%s", where));
    SR_TRY(sr_backend_create(&model->backend, settings));
    return sr_model_open(&model->model, model->backend, where, NULL);
}

srnn_status srnl_model_load(srnl_model **model, const char *where, const char *device, int threads,
                            bool bf16) {
    const sr_backend_settings settings = {.device = device, .threads = threads, .bf16 = bf16};
    void *memory;
    *model = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **model));
    const srnn_status status = load(memory, where, &settings);
    if (status != SRNN_OK) {
        srnl_model_free(memory);
        return status;
    }
    *model = memory;
    return SRNN_OK;
}

void srnl_model_free(srnl_model *model) {
    if (!model)
        return;
    sr_pass_free(model->pass);
    sr_model_free(model->model);
    sr_backend_free(model->backend);
    free(model);
}

srnn_status srnl_model_save(const srnl_model *model, const char *folder, const char *dtype) {
    static const char *const words[] = {"float32", "bfloat16", "float16"};
    static const sr_dtype types[] = {SR_DTYPE_F32, SR_DTYPE_BF16, SR_DTYPE_F16};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(dtype, words[i]) == 0)
            return sr_model_save(model->model, folder, types[i]);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "'%s' is not a type of weights: float32, bfloat16 or float16",
                   dtype);
}

int srnl_model_vocabulary(const srnl_model *model) {
    return model->model->config.V;
}

int srnl_model_layers(const srnl_model *model) {
    return model->model->config.L;
}

int srnl_model_positions(const srnl_model *model) {
    return model->model->config.positions;
}

int srnl_model_ends(const srnl_model *model, int32_t token) {
    return sr_model_config_ends(&model->model->config, token);
}

int srnl_model_prefix_tokens(const srnl_model *model) {
    return sr_model_config_prefix_tokens(&model->model->config);
}

int64_t srnl_model_parameters(const srnl_model *model) {
    return (int64_t)sr_tensor_table_learned(&model->model->table);
}

size_t srnl_model_attention(const srnl_model *model, int layer, char *text, size_t size) {
    const sr_model_config *c = &model->model->config;
    if (layer >= 0 && layer < c->L)
        return sr_mixer_row_of(c)->print(text, size, c, layer);
    if (size)
        *text = '\0';
    return 0;
}

srnn_status sr_lab_check_ids(const int32_t *ids, int B, int T, int V, bool negative) {
    if (B < 1 || T < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%d rows of %d tokens: there must be some", B, T);
    for (int64_t i = 0; i < (int64_t)B * T; i++)
        if ((ids[i] < 0 && !negative) || ids[i] >= V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d of row %d is %d: the model has 0 to %d",
                           (int)(i % T), (int)(i / T), ids[i], V - 1);
    return SRNN_OK;
}

/* The pass for this shape; recreated if the shape has changed. */
static srnn_status shape_pass(srnl_model *model, int B, int T) {
    if (model->pass && model->B == B && model->T == T)
        return SRNN_OK;
    sr_pass_free(model->pass);
    model->pass = NULL;
    SR_TRY(sr_pass_create(&model->pass, model->model, &(sr_pass_setup){.B = B, .T = T}));
    model->B = B;
    model->T = T;
    return SRNN_OK;
}

srnn_status srnl_model_logits(srnl_model *model, float *logits, const int32_t *ids, int B, int T) {
    SR_TRY(sr_lab_check_ids(ids, B, T, model->model->config.V, false));
    SR_TRY(shape_pass(model, B, T));
    return sr_pass_logits(model->pass, logits, ids);
}

srnn_status srnl_model_losses(srnl_model *model, float *losses, const int32_t *ids,
                              const int32_t *targets, int B, int T) {
    const int V = model->model->config.V;
    SR_TRY(sr_lab_check_ids(ids, B, T, V, false));
    SR_TRY(sr_lab_check_ids(targets, B, T, V, true));
    SR_TRY(shape_pass(model, B, T));
    return sr_pass_losses(model->pass, losses, ids, targets);
}
