/* train_step.c: times one training step against the matrix-product rate of the same run.
 *
 * Usage: train_step [ATTENTION [HIDDEN LAYERS HEADS MLP VOCAB BATCH LENGTH [float|bf16]]]. Prints
 * one JSON line. */
#include "base/clock.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, PRODUCT_M = 2048, PRODUCT_N = 1024, PRODUCT_K = 1024 };

static srnn_status fill_row(const sr_source *source, sr_token_row *row, sr_split split,
                            int64_t number) {
    (void)split;
    for (int32_t t = 0; t < source->T; t++) {
        row->ids[t] = (int32_t)((number * 7919 + t * 31) % source->vocab);
        row->targets[t] = (int32_t)((number * 7919 + (t + 1) * 31) % source->vocab);
    }
    row->starts[0] = 0;
    row->documents = 1;
    return SRNN_OK;
}

/* Seconds of one large product of the backend, operands in `buffer`. */
static double time_product(sr_backend *backend, float *buffer) {
    const sr_matrix x = sr_matrix_of(buffer, PRODUCT_M, PRODUCT_K, SRNN_F32);
    float *weight = buffer + PRODUCT_M * PRODUCT_K;
    const sr_matrix y =
        sr_matrix_of(weight + PRODUCT_N * PRODUCT_K, PRODUCT_M, PRODUCT_N, SRNN_F32);
    const double begin = sr_clock_seconds();
    const sr_linear layer = {weight, NULL, .N = PRODUCT_N};
    if (backend->linear_forward(backend, y, (sr_matrix){0}, x, &layer, 1) != SRNN_OK)
        return 1e9;
    return sr_clock_seconds() - begin;
}

static srnn_status measure(sr_model *model, int B, int T, const char *attention) {
    const sr_model_config *c = &model->config;
    const sr_trainer_settings settings = {.B = B,
                                          .T = T,
                                          .accumulate = 1,
                                          .learning_rate = 1e-3,
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .epsilon = 1e-7,
                                          .clip = 1,
                                          .schedule = {.kind = SR_SCHEDULE_CONSTANT}};
    const sr_source source = {.vocab = c->V, .T = T, .rows = {1 << 20, 1}, .fill = fill_row};
    const size_t numbers = PRODUCT_M * PRODUCT_K + PRODUCT_N * PRODUCT_K + PRODUCT_M * PRODUCT_N;
    sr_trainer *trainer;
    void *buffer;
    SR_TRY(sr_device_allocate(model->backend->device, &buffer, numbers * sizeof(float)));
    SR_TRY(sr_device_zero(model->backend->device, buffer, numbers * sizeof(float)));
    SR_TRY(sr_trainer_create(&trainer, model, &settings));
    double product = 1e9, step = 1e9;
    srnn_status status = SRNN_OK;
    for (int round = 1; round <= ROUNDS && status == SRNN_OK; round++) {
        sr_step result;
        const double one = time_product(model->backend, buffer);
        const double begin = sr_clock_seconds();
        status = sr_trainer_step(trainer, &result, &source, round);
        const double taken = sr_clock_seconds() - begin;
        product = one < product ? one : product;
        step = taken < step ? taken : step;
    }
    const double flops =
        (6.0 * (double)sr_model_multiplying(model) + 6.0 * c->L * c->C * T) * B * T;
    const double peak = 2.0 * PRODUCT_M * PRODUCT_N * PRODUCT_K / product;
    printf("{\"bench\": \"train_step\", \"attention\": \"%s\", \"hidden\": %d, \"layers\": %d, "
           "\"batch\": %d, \"length\": %d, \"precision\": \"%s\", \"threads\": %d, "
           "\"seconds\": %.6f, \"tokens_per_second\": %.0f, \"gflops\": %.1f, "
           "\"product_gflops\": %.1f, \"share\": %.3f}\n",
           attention, c->C, c->L, B, T, model->backend->product == SRNN_BF16 ? "bf16" : "float",
           model->backend->threads, step, (double)B * T / step, flops / step / 1e9, peak / 1e9,
           flops / step / peak);
    sr_trainer_free(trainer);
    sr_device_release(model->backend->device, buffer);
    return status;
}

int main(int argc, char **argv) {
    int sizes[] = {256, 4, 4, 512, 4096, 8, 256};
    const char *attention = argc > 1 ? argv[1] : "softmax";
    for (int i = 2; i < argc && i < 9; i++)
        sizes[i - 2] = atoi(argv[i]);
    sr_model_config config = {.C = sizes[0],
                              .L = sizes[1],
                              .H = sizes[2],
                              .Hkv = sizes[2],
                              .D = sizes[2] > 0 ? sizes[0] / sizes[2] : 0,
                              .F = sizes[3],
                              .V = sizes[4],
                              .positions = sizes[6],
                              .norm_epsilon = 1e-5,
                              .rope_theta = 1e4,
                              .bos = -1,
                              .eos = -1};
    sr_backend *backend = NULL;
    sr_model *model = NULL;
    const sr_backend_settings numbers = {.bf16 = argc > 9 && strcmp(argv[9], "bf16") == 0};
    srnn_status status = sr_backend_create(&backend, &numbers);
    if (status == SRNN_OK)
        status = sr_model_config_attention(&config, attention);
    if (status == SRNN_OK)
        status = sr_model_create(&model, backend, &config);
    if (status == SRNN_OK)
        status = sr_model_initialise(model, 0.02, 1);
    if (status == SRNN_OK)
        status = measure(model, sizes[5], sizes[6], attention);
    if (status != SRNN_OK)
        fprintf(stderr, "train_step: %s\n", srnn_error_detail());
    sr_model_free(model);
    sr_model_config_free(&config);
    sr_backend_free(backend);
    return status == SRNN_OK ? 0 : 1;
}
