/* test_focus.c: where attention looks, against what uniform and one-sided weights must give. */
#include "analysis/focus.h"
#include "small_model.h"

enum { T = 20, ROWS = 2 };

static sr_backend *cpu;

static void scale_tensor(sr_model *model, const char *name, float factor) {
    const sr_tensor_spec *spec = sr_tensor_table_find(&model->table, name);
    assert_non_null(spec);
    for (size_t i = 0; i < spec->count; i++)
        model->weights[spec->start + i] *= factor;
}

static void measure(sr_focus *layers, sr_model *model, int window, double tolerance) {
    int32_t ids[ROWS * T], targets[ROWS * T];
    small_ids(ids, ROWS * T, model->config.V, 5);
    small_ids(targets, ROWS * T, model->config.V, 6);
    const sr_focus_request request = {.model = model,
                                      .ids = ids,
                                      .targets = targets,
                                      .rows = ROWS,
                                      .T = T,
                                      .window = window,
                                      .most_order = 16,
                                      .tolerance = tolerance};
    assert_int_equal(sr_focus_measure(layers, &request), SRNN_OK);
}

static bool close_to(double x, double y) {
    return fabs(x - y) < 1e-9 * (1 + fabs(y));
}

/* Queries of 0: every key has the same weight, and exp is its first order. */
static void uniform_attention(void **state) {
    (void)state;
    enum { WINDOW = 4 };
    sr_focus layers[2];
    double entropy = 0, distance = 0, near = 0, first = 0;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    scale_tensor(model, "model.layers.0.self_attn.q_proj.weight", 0);
    scale_tensor(model, "model.layers.1.self_attn.q_proj.weight", 0.1f);
    measure(layers, model, WINDOW, 1e-6);
    for (int count = 1; count <= T; count++) {
        entropy += log(count) / T;
        distance += (count - 1) / 2.0 / T;
        near += fmin(1, (double)WINDOW / count) / T;
        first += 1.0 / count / T;
    }
    assert_true(layers[0].measured && layers[1].measured);
    assert_true(close_to(layers[0].entropy, entropy) && close_to(layers[0].distance, distance));
    assert_true(close_to(layers[0].near, near) && close_to(layers[0].first, first));
    assert_true(layers[0].order == 1 && layers[0].order_error < 1e-9);
    assert_true(layers[1].entropy < entropy && layers[1].order > 1 && layers[1].order_error > 0);
    sr_model_free(model);
}

/* Larger logits: less entropy, higher orders, none in the end. */
static void sharper_attention(void **state) {
    (void)state;
    sr_focus soft[2], sharp[2];
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    scale_tensor(model, "model.layers.0.self_attn.q_proj.weight", 0.1f);
    measure(soft, model, T, 1e-3);
    assert_true(close_to(soft[0].near, 1));
    scale_tensor(model, "model.layers.0.self_attn.q_proj.weight", 300);
    measure(sharp, model, T, 1e-3);
    assert_true(sharp[0].entropy < 0.8 * soft[0].entropy);
    assert_true(sharp[0].order_error > soft[0].order_error && sharp[0].order == -1);
    assert_true(soft[0].order > 1);
    sr_model_free(model);
}

/* Layers whose score is something else are not measured, nor is a model of such layers. */
static void other_scores(void **state) {
    (void)state;
    sr_focus layers[2];
    sr_model *model = small_model(cpu, "0:linear_cosine,1:softmax", SR_MLP_SWIGLU, false, true);
    measure(layers, model, 4, 1e-2);
    assert_true(!layers[0].measured && layers[1].measured);
    sr_model_free(model);
    model = small_model(cpu, "linear_cosine", SR_MLP_SWIGLU, false, true);
    measure(layers, model, 4, 1e-2);
    assert_true(!layers[0].measured && !layers[1].measured);
    sr_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_attention),
        cmocka_unit_test(sharper_attention),
        cmocka_unit_test(other_scores),
    };
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 2}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
