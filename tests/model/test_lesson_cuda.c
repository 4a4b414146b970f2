/* test_lesson_cuda.c: what a student on a GPU, real or emulated, learns from its teacher is what it
 * learns on the CPU. */
#include "small_model.h"

#include <stdio.h>

enum { B = 2, T = 9, ROWS = B * T };

static sr_backend *gpu, *cpu;

static sr_model *initialised(sr_backend *backend, const char *attention, uint64_t seed) {
    sr_model_config config = small_config(SR_MLP_SWIGLU, false, true);
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, 0.3, seed), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

/* Losses, gradient, divergences and errors of layers. */
typedef struct learned {
    float losses[ROWS], divergences[ROWS], *gradient;
    sr_layer_error errors[2];
    size_t numbers;
} learned;

static learned learn(sr_backend *backend, sr_objective objective) {
    int32_t ids[ROWS], targets[ROWS];
    learned got = {.gradient = NULL};
    sr_pass *pass;
    sr_model *teacher = initialised(backend, "softmax", 1);
    sr_model *student = initialised(backend, "gated_softmax", 2);
    const sr_pass_setup setup = {.B = B,
                                 .T = T,
                                 .train = true,
                                 .lesson = {.objective = objective,
                                            .teacher = teacher,
                                            .temperature = 1.5,
                                            .hidden_weight =
                                                objective == SR_OBJECTIVE_KL ? 0.3f : 0}};
    small_ids(ids, ROWS, 23, 5);
    small_ids(targets, ROWS, 23, 6);
    targets[4] = -1;
    got.numbers = student->table.numbers;
    got.gradient = malloc(got.numbers * sizeof(float));
    assert_non_null(got.gradient);
    assert_int_equal(sr_pass_create(&pass, student, &setup), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, got.losses, ids, targets, 1), SRNN_OK);
    assert_int_equal(sr_device_copy_out(backend->device, got.gradient, sr_pass_gradient(pass),
                                        got.numbers * sizeof(float)),
                     SRNN_OK);
    assert_int_equal(sr_pass_divergences(pass, got.divergences, ids, targets), SRNN_OK);
    assert_int_equal(sr_pass_layer_errors(pass, got.errors, ids, targets), SRNN_OK);
    sr_pass_free(pass);
    sr_model_free(student);
    sr_model_free(teacher);
    return got;
}

static void check_close(const char *what, const float *got, const float *want, size_t count) {
    const double error = small_error(got, want, count);
    if (!(error < (gpu->number == SRNN_BF16 ? 0.05 : 1e-4)))
        fail_msg("%s: off by %g", what, error);
}

static void lessons(void **state) {
    (void)state;
    for (int objective = SR_OBJECTIVE_KL; objective <= SR_OBJECTIVE_LAYERS; objective++) {
        const learned want = learn(cpu, (sr_objective)objective);
        const learned got = learn(gpu, (sr_objective)objective);
        check_close("losses", got.losses, want.losses, ROWS);
        check_close("divergences", got.divergences, want.divergences, ROWS);
        check_close("gradient", got.gradient, want.gradient, want.numbers);
        for (int layer = 0; layer < 2; layer++) {
            const float x[] = {(float)got.errors[layer].error, (float)got.errors[layer].size};
            const float y[] = {(float)want.errors[layer].error, (float)want.errors[layer].size};
            check_close("errors of a layer", x, y, 2);
        }
        free(want.gradient);
        free(got.gradient);
    }
}

static int open_gpu(bool bf16) {
    const sr_backend_settings settings = {.device = "cuda", .threads = 1, .bf16 = bf16};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int open_float(void **state) {
    (void)state;
    return open_gpu(false);
}

static int open_bf16(void **state) {
    (void)state;
    return open_gpu(true);
}

static int close_gpu(void **state) {
    (void)state;
    sr_backend_free(gpu);
    return 0;
}

int main(void) {
    if (open_gpu(false) != 0) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    sr_backend_free(gpu);
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(lessons)};
    const int failed = cmocka_run_group_tests_name("float", tests, open_float, close_gpu) +
                       cmocka_run_group_tests_name("bf16", tests, open_bf16, close_gpu);
    sr_backend_free(cpu);
    return failed;
}
