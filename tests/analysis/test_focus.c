/* test_focus.c: where attention looks, against what uniform and one-sided weights must give. */
#include "analysis/focus.h"
#include "analysis/loss_orders.h"
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

/* ---- orders by loss */

static sr_loss_orders_request orders_of(sr_model *model, const int32_t *ids, double tolerance) {
    return (sr_loss_orders_request){.model = model,
                                    .ids = ids,
                                    .targets = ids + ROWS * T,
                                    .rows = ROWS,
                                    .T = T,
                                    .most_order = 8,
                                    .tolerance = tolerance};
}

/* Mean losses of the rows, with layer 1 cut at `order` (0: not at all) about zero. */
static void losses_by_hand(double means[ROWS], sr_model *model, const int32_t *ids, int order) {
    const srnn_attention own = model->config.attention[1];
    float losses[ROWS * T];
    sr_pass *pass;
    if (order) {
        model->config.attention[1].score = SRNN_SCORE_TAYLOR;
        model->config.attention[1].order = order;
    }
    assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = ROWS, .T = T}), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, losses, ids, ids + ROWS * T), SRNN_OK);
    for (int row = 0; row < ROWS; row++) {
        means[row] = 0;
        for (int t = 0; t < T; t++)
            means[row] += (double)losses[row * T + t] / T;
    }
    sr_pass_free(pass);
    model->config.attention[1] = own;
}

/* The first order from which on nothing exceeds the tolerance. */
static int first_within(const double *values, const sr_loss_order *layer, double tolerance) {
    int order = -1;
    for (int i = layer->count - 1; i >= 0 && values[i] <= tolerance; i--)
        order = layer->rises[i].order;
    return order;
}

static void check_orders(const sr_loss_order *layer, double tolerance) {
    double mean[SR_LOSS_ORDERS], low[SR_LOSS_ORDERS], high[SR_LOSS_ORDERS];
    for (int i = 0; i < layer->count; i++) {
        mean[i] = layer->rises[i].interval.mean;
        low[i] = layer->rises[i].interval.low;
        high[i] = layer->rises[i].interval.high;
    }
    assert_int_equal(layer->order, first_within(mean, layer, tolerance));
    assert_int_equal(layer->low, first_within(low, layer, tolerance));
    assert_int_equal(layer->high, first_within(high, layer, tolerance));
}

/* Without a row sum zero is the only centre: rises are those of a model with a series, and their
 * interval is that of two rows. A layer whose logits are 0 needs order 1. */
static void orders_by_loss(void **state) {
    (void)state;
    int32_t ids[2 * ROWS * T];
    sr_loss_order layers[2];
    double whole[ROWS], cut[ROWS];
    sr_model *model = small_model(cpu, "normaliser=row_length", SR_MLP_SWIGLU, false, true);
    small_ids(ids, ROWS * T, model->config.V, 5);
    small_ids(ids + ROWS * T, ROWS * T, model->config.V, 6);
    scale_tensor(model, "model.layers.0.self_attn.q_proj.weight", 0);
    scale_tensor(model, "model.layers.1.self_attn.q_proj.weight", 3);
    const sr_loss_orders_request request = orders_of(model, ids, 1e-4);
    assert_int_equal(sr_loss_orders_measure(layers, &request), SRNN_OK);
    assert_true(layers[0].measured && layers[0].order == 1 && layers[0].low == 1 &&
                layers[0].high == 1 && layers[0].count == 2);
    assert_string_equal(layers[1].centre, "zero");
    losses_by_hand(whole, model, ids, 0);
    for (int i = 0; i < layers[1].count; i++) {
        const sr_interval *got = &layers[1].rises[i].interval;
        losses_by_hand(cut, model, ids, layers[1].rises[i].order);
        const double a = cut[0] - whole[0], b = cut[1] - whole[1];
        const double half = 12.7062047362 * fabs(a - b) / 2; /* Student's, one degree */
        assert_true(fabs(got->mean - (a + b) / 2) < 1e-6);
        assert_true(fabs(got->low - (got->mean - half)) < 2e-5);
        assert_true(fabs(got->high - (got->mean + half)) < 2e-5);
    }
    check_orders(&layers[1], 1e-4);
    assert_true(fabs(layers[1].rises[0].interval.mean) > 1e-4);
    sr_model_free(model);
}

/* About a centre of its own softmax needs no higher order than about zero. */
static void centres_by_loss(void **state) {
    (void)state;
    int32_t ids[2 * ROWS * T];
    sr_loss_order layers[2];
    sr_model *model = small_model(cpu, "0:linear_cosine,1:softmax", SR_MLP_SWIGLU, false, true);
    small_ids(ids, ROWS * T, model->config.V, 5);
    small_ids(ids + ROWS * T, ROWS * T, model->config.V, 6);
    scale_tensor(model, "model.layers.1.self_attn.q_proj.weight", 30);
    const sr_loss_orders_request request = orders_of(model, ids, 1e-3);
    assert_int_equal(sr_loss_orders_measure(layers, &request), SRNN_OK);
    assert_false(layers[0].measured);
    assert_true(layers[1].measured && layers[1].count > 2);
    check_orders(&layers[1], 1e-3);
    assert_true(layers[1].order != 1);
    sr_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_attention), cmocka_unit_test(sharper_attention),
        cmocka_unit_test(other_scores),      cmocka_unit_test(orders_by_loss),
        cmocka_unit_test(centres_by_loss),
    };
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 2}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
