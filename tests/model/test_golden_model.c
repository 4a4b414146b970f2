/* test_golden_model.c: whole models give the reference's logits, gradients and AdamW losses. */
#include "golden.h"
#include "model/mixers.h"
#include "model/pass.h"

enum { ROWS = GOLDEN_B * GOLDEN_T };
static const double tolerance = 1e-4;
static sr_backend *cpu;
static golden_files files;

/* One variant's model with the golden weights and batches. */
typedef struct fixture {
    const sr_safetensors *file;
    const char *variant;
    sr_model *model;
    sr_pass *pass;
    int32_t ids[GOLDEN_STEPS][ROWS], targets[GOLDEN_STEPS][ROWS];
} fixture;

static void load_batches(fixture *f) {
    float *all = golden_numbers(f->file, f->variant, "check.", "ids",
                                GOLDEN_STEPS * GOLDEN_B * (GOLDEN_T + 1));
    for (int step = 0; step < GOLDEN_STEPS; step++)
        for (int b = 0; b < GOLDEN_B; b++)
            for (int t = 0; t < GOLDEN_T; t++) {
                const float *row = all + (step * GOLDEN_B + b) * (GOLDEN_T + 1);
                f->ids[step][b * GOLDEN_T + t] = (int32_t)row[t];
                f->targets[step][b * GOLDEN_T + t] = (int32_t)row[t + 1];
            }
    free(all);
}

static const sr_tensor *find_weight(const void *context, const char *name) {
    const fixture *f = context;
    char key[256];
    snprintf(key, sizeof key, "%s/%s", f->variant, name);
    return sr_safetensors_find(f->file, key);
}

/* Infers the sizes from the shapes of the weights. */
static void find_sizes(sr_model_config *config, const fixture *f) {
    if (!sr_mixer_row_of(config)->attends)
        return;
    sr_layer_dims d = sr_model_config_dims(config, 0);
    assert_int_equal(sr_layer_sizes_find(&d, &config->attention[0], "model.layers.0.self_attn.",
                                         (sr_tensor_finder){find_weight, f}),
                     SRNN_OK);
    config->sizes[0] = (sr_layer_sizes){d.H, d.Hkv, d.D, d.Dv, d.rank, d.levels};
}

static void fixture_open(fixture *f, size_t n, sr_recompute recompute) {
    const golden_case what = golden_case_at(n);
    *f = (fixture){.file = golden_file_of(&files, n), .variant = what.name};
    sr_model_config config = {.V = GOLDEN_V,
                              .C = GOLDEN_C,
                              .F = GOLDEN_F,
                              .L = 1,
                              .H = what.H,
                              .Hkv = what.H,
                              .D = GOLDEN_C / what.H,
                              .positions = GOLDEN_T,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 10000};
    assert_int_equal(sr_model_config_attention(&config, what.attention), SRNN_OK);
    find_sizes(&config, f);
    assert_int_equal(sr_model_create(&f->model, cpu, &config), SRNN_OK);
    sr_model_config_free(&config);
    const sr_tensor_table *table = &f->model->table;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        float *numbers = golden_numbers(f->file, what.name, "", spec->name, spec->count);
        memcpy(f->model->weights + spec->start, numbers, spec->count * sizeof *numbers);
        free(numbers);
    }
    const sr_pass_setup setup = {.B = GOLDEN_B,
                                 .T = GOLDEN_T,
                                 .train = true,
                                 .recompute = recompute};
    assert_int_equal(sr_pass_create(&f->pass, f->model, &setup), SRNN_OK);
    load_batches(f);
}

static void fixture_close(fixture *f) {
    sr_pass_free(f->pass);
    sr_model_free(f->model);
}

static void logits(void **state) {
    (void)state;
    for (size_t n = 0; n < GOLDEN_CASES; n++) {
        fixture f;
        float got[ROWS * GOLDEN_V];
        fixture_open(&f, n, SR_RECOMPUTE_NONE);
        float *want = golden_numbers(f.file, f.variant, "check.", "logits", ROWS * GOLDEN_V);
        assert_int_equal(sr_pass_logits(f.pass, got, f.ids[0]), SRNN_OK);
        const double error = golden_error(got, want, ROWS * GOLDEN_V);
        if (!(error <= tolerance))
            fail_msg("%s: logits are off by %.2e", f.variant, error);
        free(want);
        fixture_close(&f);
    }
}

/* The gate before a norm: see test_golden_layer.c. */
static bool is_rest(const char *name) {
    return strstr(name, "out_gate_proj") != NULL;
}

/* Of the variants; those of the systems are tested with their layers. */
static void check_gradients(fixture *f) {
    const sr_tensor_table *table = &f->model->table;
    const float *gradients = sr_pass_gradient(f->pass);
    const double whole = golden_norm(gradients, NULL, table->numbers);
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        const char *name = strncmp(spec->name, "model.", 6) ? spec->name : spec->name + 6;
        float *want = golden_numbers(f->file, f->variant, "grad.", name, spec->count);
        const double error = golden_norm(gradients + spec->start, want, spec->count);
        const double size = golden_norm(want, NULL, spec->count);
        if (!(error <= tolerance * size || (is_rest(name) && error <= 1e-6 * whole)))
            fail_msg("%s: the gradient of %s (%.2e) is off by %.2e", f->variant, name, size, error);
        free(want);
    }
}

static void gradients_and_adamw(sr_recompute recompute) {
    for (size_t n = 0; n < GOLDEN_CASES; n++) {
        fixture f;
        fixture_open(&f, n, recompute);
        const size_t numbers = f.model->table.numbers;
        float *mean = calloc(numbers, sizeof *mean), *square = calloc(numbers, sizeof *square);
        float *want = golden_numbers(f.file, f.variant, "check.", "losses", GOLDEN_STEPS);
        for (int step = 0; step < GOLDEN_STEPS; step++) {
            float losses[ROWS];
            double loss = 0;
            assert_int_equal(sr_pass_zero_gradient(f.pass), SRNN_OK);
            assert_int_equal(sr_pass_gradients(f.pass, losses, f.ids[step], f.targets[step],
                                               1.0 / ROWS),
                             SRNN_OK);
            for (int i = 0; i < ROWS; i++)
                loss += (double)losses[i] / ROWS;
            if (!(fabs(loss - (double)want[step]) <= 1e-4))
                fail_msg("%s: loss %d is %f, not %f", f.variant, step, loss, (double)want[step]);
            if (step == 0 && n < GOLDEN_VARIANTS)
                check_gradients(&f);
            const sr_adamw adamw = {.weight = f.model->weights,
                                    .mean = mean,
                                    .square = square,
                                    .gradient = sr_pass_gradient(f.pass),
                                    .working = f.model->working,
                                    .n = (int64_t)numbers,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .epsilon = 1e-7,
                                    .weight_decay = 0.01,
                                    .nominal = 1};
            sr_step_stats stats = {.learning_rate = 1e-3, .targets = 1, .updates = step};
            assert_int_equal(cpu->adamw(cpu, &stats, &adamw), SRNN_OK);
        }
        free(mean), free(square), free(want);
        fixture_close(&f);
    }
}

static void keeping_activations(void **state) {
    (void)state;
    gradients_and_adamw(SR_RECOMPUTE_NONE);
}

static void recomputing_activations(void **state) {
    (void)state;
    gradients_and_adamw(SR_RECOMPUTE_BLOCK);
}

static int open_golden(void **state) {
    (void)state;
    return sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK ||
           golden_open(&files);
}

static int close_golden(void **state) {
    (void)state;
    golden_close(&files);
    sr_backend_free(cpu);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits),
        cmocka_unit_test(keeping_activations),
        cmocka_unit_test(recomputing_activations),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
