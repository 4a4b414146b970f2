/* test_model_cuda.c: a model that was read from files onto a GPU, real or emulated, multiplies with what it read. */
#include "base/bf16.h"
#include "files/folder.h"
#include "model/model_files.h"
#include "small_model.h"

#include <stdio.h>
#include <stdlib.h>

static sr_backend *gpu, *cpu;
static char folder[] = "/tmp/test_model_cuda_XXXXXX";
static char saved[64], exported[64];

static int write_models(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(saved, sizeof saved, "%s/model", folder);
    snprintf(exported, sizeof exported, "%s/model.bin", folder);
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    model->config.rope_theta = 10000; /* the only one that llama2.c has */
    assert_int_equal(sr_folder_make(saved), SRNN_OK);
    assert_int_equal(sr_model_save(model, saved, SR_DTYPE_F32), SRNN_OK);
    assert_int_equal(sr_model_save_llama2c(model, exported), SRNN_OK);
    sr_model_free(model);
    return 0;
}

/* The working copy is the masters, rounded. */
static void check_working(const sr_model *model) {
    const size_t count = model->table.numbers;
    float *weights = malloc(count * sizeof *weights);
    uint16_t *working = malloc(count * sizeof *working);
    assert_true(weights && working);
    assert_int_equal(
        sr_device_copy_out(gpu->device, weights, model->weights, count * sizeof *weights), SRNN_OK);
    assert_int_equal(
        sr_device_copy_out(gpu->device, working, model->working, count * sizeof *working), SRNN_OK);
    double size = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(working[i], sr_bf16_of(weights[i]));
        size += fabs((double)weights[i]);
    }
    assert_true(size > 0);
    free(weights);
    free(working);
}

static void folders(void **state) {
    (void)state;
    sr_model *model, *other;
    size_t shared;
    assert_int_equal(sr_model_load(&model, gpu, saved), SRNN_OK);
    check_working(model);
    assert_int_equal(sr_model_create(&other, gpu, &model->config), SRNN_OK);
    assert_int_equal(sr_model_load_shared(other, &shared, saved), SRNN_OK);
    check_working(other);
    sr_model_free(other);
    sr_model_free(model);
}

static void llama2c_files(void **state) {
    (void)state;
    sr_model *model;
    assert_int_equal(sr_model_load_llama2c(&model, gpu, exported), SRNN_OK);
    check_working(model);
    sr_model_free(model);
}

int main(void) {
    const sr_backend_settings host = {.threads = 1}, device = {.device = "cuda", .bf16 = true};
    if (sr_backend_create(&gpu, &device) != SRNN_OK) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    assert_int_equal(sr_backend_create(&cpu, &host), SRNN_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(folders), cmocka_unit_test(llama2c_files)};
    const int failed = cmocka_run_group_tests(tests, write_models, NULL);
    sr_folder_remove(folder);
    sr_backend_free(cpu);
    sr_backend_free(gpu);
    return failed;
}
