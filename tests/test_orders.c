/* test_orders.c: sizes of orders against closed forms, truncation against the series itself. */
#include "analysis/bill.h"
#include "analysis/logit_rows.h"
#include "analysis/order_sums.h"
#include "analysis/orders.h"
#include "analysis/truncated_model.h"
#include "analysis/truncation.h"
#include "attention/score.h"
#include "small_model.h"

#include <stdio.h>
#include <unistd.h>

enum { ORDERS = 170, LENGTH = 16 };

static void assert_near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("%.17g in the place of %.17g", got, want);
}

static void add_row(void *context, const sr_logit_row *row) {
    sr_order_sums_add(context, row->s, row->facts.count, 0, ORDERS, row->scratch);
}

/* The sums of one head with one channel, whose logits are scale * q_i * k_j; scale times q_i is a
 * float. */
static sr_order_sums *sums_of(float q[LENGTH], float k[LENGTH], double scale) {
    const srnn_attention softmax = {0};
    const sr_logit_rows_setup setup = {.B = 1,
                                       .T = LENGTH,
                                       .H = 1,
                                       .Hkv = 1,
                                       .D = 1,
                                       .threads = 1,
                                       .scratch = (size_t)sr_order_sums_scratch(LENGTH)};
    const srnn_operands in = {
        .q = {q, LENGTH, LENGTH, 1}, .k = {k, LENGTH, LENGTH, 1}, .v = {k, LENGTH, LENGTH, 1}};
    sr_logit_rows *rows;
    sr_order_sums *sums = calloc(1, sizeof *sums);
    assert_non_null(sums);
    assert_int_equal(sr_logit_rows_create(&rows, &setup), SRNN_OK);
    for (int t = 0; t < LENGTH; t++)
        q[t] *= (float)scale;
    sr_logit_rows_visit(rows, &softmax, &in, add_row, sums);
    sr_logit_rows_free(rows);
    return sums;
}

/* Every logit is x or -x: all sizes of order n are n log|x| - log n!. */
static void one_size(void **state) {
    (void)state;
    static const double sizes[] = {0x1p-10, 0.375, 1, 2.5, 14, 88.75, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        float q[LENGTH], k[LENGTH];
        for (int t = 0; t < LENGTH; t++) {
            q[t] = 1;
            k[t] = t % 3 == 1 ? -1.0f : 1.0f;
        }
        sr_order_sums *sums = sums_of(q, k, sizes[i]);
        for (int n = 0; n <= ORDERS; n++)
            for (int size = 0; size < SR_ORDER_SIZES; size++)
                assert_near(sr_order_size_of(sums, (sr_order_size)size, n),
                            n * log(sizes[i]) - lgamma(n + 1.0), 1e-12);
        assert_near(fmax(sums->most, -sums->least), sizes[i], 1e-15);
        free(sums);
    }
}

/* log of the sum of exp(x), without overflow. */
static double log_sum(const double *x, int count) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, x[i]);
    for (int i = 0; i < count; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* Logits grow along the sequence to `top`, so that the scale of the sums must follow; closed forms
 * in the logarithms. */
static void check_growing(double top) {
    enum { PAIRS = LENGTH * (LENGTH + 1) / 2, SQUARE = LENGTH * LENGTH };
    float q[LENGTH], k[LENGTH];
    double x[PAIRS], weights[PAIRS], plain[PAIRS], weighted[PAIRS], mean = 0;
    for (int t = 0; t < LENGTH; t++) {
        q[t] = (float)(t + 1) / LENGTH;
        k[t] = (t % 2 ? -1.0f : 1.0f) * (float)(t + 2) / (LENGTH + 1);
    }
    for (int i = 0, first = 0; i < LENGTH; first += ++i) {
        for (int j = 0; j <= i; j++)
            mean += (x[first + j] = top * (double)q[i] * (double)k[j]) / PAIRS;
        for (int j = 0; j <= i; j++)
            weights[first + j] = x[first + j] - log_sum(x + first, i + 1);
    }
    sr_order_sums *sums = sums_of(q, k, top);
    for (int n = 1; n <= ORDERS; n++) {
        for (int pair = 0; pair < PAIRS; pair++) {
            plain[pair] = n * log(fabs(x[pair])) - lgamma(n + 1.0);
            weighted[pair] = plain[pair] + weights[pair];
        }
        const double size = log_sum(plain, PAIRS);
        assert_near(sr_order_size_of(sums, SR_SIZE_LOG_MEAN, n), size - log(PAIRS), 1e-12);
        assert_near(sr_order_size_of(sums, SR_SIZE_LOG_MEAN_WEIGHTED, n),
                    log_sum(weighted, PAIRS) - log(LENGTH), 1e-12);
        if (n > 1 && n < 20)
            assert_near(sr_order_size_reference(sums, n, SQUARE), exp(size) / SQUARE, 1e-10);
    }
    assert_near(sr_order_size_reference(sums, 1, SQUARE), mean * PAIRS / SQUARE, 1e-12);
    assert_near(sums->mean, mean, 1e-12);
    free(sums);
}

static void growing_logits(void **state) {
    (void)state;
    check_growing(0.5);
    check_growing(30);
    check_growing(1000);
}

static void dominant_order(void **state) {
    (void)state;
    float q[LENGTH], k[LENGTH];
    for (int t = 0; t < LENGTH; t++)
        q[t] = k[t] = 1;
    sr_order_sums *sums = sums_of(q, k, 20.5);
    for (int size = 0; size < SR_ORDER_SIZES; size++)
        assert_int_equal(sr_order_dominant(sums, (sr_order_size)size, ORDERS), 20);
    free(sums);
}

static void histogram(void **state) {
    (void)state;
    sr_histogram *counts = calloc(1, sizeof *counts);
    enum { COUNT = 10001 };
    assert_non_null(counts);
    for (int i = 0; i < COUNT; i++) {
        const double x = (i - COUNT / 2) / 100.0; /* -50 .. 50 */
        sr_histogram_add(counts, &x, 1);
    }
    for (double share = 0.02; share < 1; share += 0.07) {
        const double want = -50 + 100 * share;
        assert_near(sr_histogram_quantile(counts, share), want, 1.0 / 32);
    }
    const double far[] = {1e9, -1e9, 0, -1e-9};
    sr_histogram_add(counts, far, 4);
    assert_int_equal(counts->counts[SR_HISTOGRAM_BINS - 1], 1);
    assert_int_equal(counts->counts[0], 1);
    for (int bin = 1; bin < SR_HISTOGRAM_BINS; bin++)
        assert_true(sr_histogram_low(bin) == sr_histogram_high(bin - 1));
    free(counts);
}

/* Errors of one row as a plain loop over sr_taylor gives them. */
static void check_truncation(double spread, double head_mean, double head_middle) {
    enum { D = 3, MOST = 64 };
    double s[LENGTH], v[LENGTH * D], least = INFINITY, most = -INFINITY, mean = 0;
    for (int j = 0; j < LENGTH; j++) {
        s[j] = spread * sr_random_normal(5, 1, (uint64_t)j) - spread;
        least = fmin(least, s[j]);
        most = fmax(most, s[j]);
        mean += s[j] / LENGTH;
    }
    for (int j = 0; j < LENGTH * D; j++)
        v[j] = sr_random_normal(5, 2, (uint64_t)j);
    const double centres[SR_CENTRES] = {0, head_mean, head_middle, mean, (least + most) / 2};
    sr_truncation *sums = calloc(1, sizeof *sums);
    double *scratch = malloc(sr_truncation_scratch(LENGTH, D, MOST) * sizeof *scratch);
    assert_true(sums && scratch);
    const srnn_attention softmax = {0};
    const sr_truncation_row row = {
        {.attention = &softmax, .count = LENGTH, .D = D}, s, v, head_mean, head_middle};
    sr_truncation_add(sums, &row, MOST, scratch);
    double sum = 0;
    for (int j = 0; j < LENGTH; j++)
        sum += exp(s[j] - most);
    for (int centre = 0; centre < SR_CENTRES; centre++)
        for (int cut = 0; cut < sr_cut_count(MOST); cut++) {
            double row_sum = 0, weights = 0, outputs = 0, apart[LENGTH];
            for (int j = 0; j < LENGTH; j++)
                row_sum += sr_taylor(s[j] - centres[centre], sr_cut_order(cut));
            for (int j = 0; j < LENGTH; j++) {
                apart[j] = sr_taylor(s[j] - centres[centre], sr_cut_order(cut)) / row_sum -
                           exp(s[j] - most) / sum;
                weights += apart[j] * apart[j];
            }
            for (int d = 0; d < D; d++) {
                double difference = 0;
                for (int j = 0; j < LENGTH; j++)
                    difference += apart[j] * v[j * D + d];
                outputs += difference * difference;
            }
            assert_near(sqrt(sums->weights[centre][cut]), sqrt(weights), 1e-9);
            assert_near(sqrt(sums->outputs[centre][cut]), sqrt(outputs), 1e-9);
        }
    free(scratch);
    free(sums);
}

static void truncation(void **state) {
    (void)state;
    check_truncation(0.5, -1, 0.5);
    check_truncation(4, -3, 1);
    check_truncation(15, -12, -20);
}

static void needed_order(void **state) {
    (void)state;
    const double errors[] = {0.005, 0.3, 0.02, 0.009, 0.004, 0.0005};
    assert_int_equal(sr_order_needed(errors, 6, 1e-2), 6);
    assert_int_equal(sr_order_needed(errors, 6, 1e-3), 10);
    assert_int_equal(sr_order_needed(errors, 6, 1e-4), -1);
    assert_int_equal(sr_cut_count(170), SR_CUTS);
    for (int cut = 1; cut < SR_CUTS; cut++)
        assert_true(sr_cut_order(cut) > sr_cut_order(cut - 1) && sr_cut_order(cut) % 2 == 0);
}

/* VARIANTS.md: d=64, N=4: 202 MB for a head. */
static void bill(void **state) {
    (void)state;
    srnn_attention softmax = {0};
    const sr_model_config config = {.L = 1, .H = 4, .Hkv = 2, .D = 64, .attention = &softmax};
    const sr_bill four = sr_bill_of(&config, 0, 4);
    assert_near(four.state_bytes / 2 / (1 << 20), 202, 0.005);
    assert_near(four.cache_token_bytes, 2 * 2 * 64 * 4, 0);
    assert_near(four.memory_tokens, ceil(four.state_bytes / 1024), 0);
    /* Beyond what a size_t counts the same formula goes on. */
    double multisets = 1;
    for (int n = 1; n <= 100; n++)
        multisets *= (64.0 + n) / n;
    assert_near(sr_bill_of(&config, 0, 100).state_bytes / (multisets * 65 * 2 * 4), 1, 1e-12);
}

/* A model truncated far enough is the model. */
static void truncated_model(void **state) {
    (void)state;
    enum { B = 2, T = 12 };
    sr_backend *backend;
    int32_t ids[B * T], targets[B * T];
    assert_int_equal(sr_backend_cpu_create(&backend, 1), SRNN_OK);
    sr_model *model = small_model(backend, "softmax", SR_MLP_SWIGLU, false, false);
    small_ids(ids, B * T, model->config.V, 3);
    small_ids(targets, B * T, model->config.V, 4);
    sr_trial trial = {.ids = ids, .targets = targets, .B = B, .T = T};
    assert_int_equal(sr_trial_begin(&trial, model), SRNN_OK);
    static const sr_cut low[][2] = {{{2, 0}, {2, 0}}, {{2, 0}, {0, 0}}, {{0, 0}, {2, 0}}};
    static const sr_cut high[][2] = {{{40, 0}, {40, 0}}, {{32, 0}, {0, 0}}, {{0, 0}, {36, 0}}};
    for (int i = 0; i < 3; i++) {
        double loss, rough, fine;
        assert_int_equal(sr_trial_run(&loss, &rough, &trial, model, NULL, low[i]), SRNN_OK);
        assert_true(rough > 1e-4);
        assert_int_equal(sr_trial_run(&loss, &fine, &trial, model, NULL, high[i]), SRNN_OK);
        assert_true(fine < 1e-5);
        assert_near(loss, trial.loss, 1e-5);
    }
    sr_trial_end(&trial);
    sr_model_free(model);
    sr_backend_free(backend);
}

/* The whole on a small model and a small text, and what the record promises. */
static void record(void **state) {
    (void)state;
    char path[] = "/tmp/test_orders_XXXXXX";
    const int file = mkstemp(path);
    const char text[] = "a few words\n<|endoftext|>\nand a few more, enough for rows of eight\n";
    sr_backend *backend;
    sr_tokenizer *tokenizer;
    sr_token_rows *rows;
    json_t *got;
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    assert_int_equal(sr_backend_cpu_create(&backend, 1), SRNN_OK);
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizer), SRNN_OK);
    sr_model_config config = {.V = 257,
                              .C = 24,
                              .F = 20,
                              .L = 2,
                              .H = 4,
                              .Hkv = 2,
                              .D = 6,
                              .positions = 32,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .bos = 256,
                              .eos = 256};
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, "0:order:2,1:softmax"), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
    assert_int_equal(sr_token_rows_open_text(&rows, path, tokenizer, 256, 8), SRNN_OK);
    uint32_t first = 256;
    const sr_tokens prompt = {.ids = &first, .count = 1};
    const sr_orders_request request = {.model = model,
                                       .rows = rows,
                                       .tokens = 1000,
                                       .trial_tokens = 16,
                                       .orders = 12,
                                       .most_order = 8,
                                       .tolerances = {1e-2, 1e-3},
                                       .tokenizer = tokenizer,
                                       .prompt = &prompt,
                                       .text_tokens = 4};
    assert_int_equal(sr_orders_measure(&got, &request), SRNN_OK);
    const json_t *data = json_object_get(got, "data");
    /* 53 bytes and two beginnings: 55 tokens, of which the last of a row's targets is the next
     * row's first token. */
    assert_int_equal(json_integer_value(json_object_get(data, "tokens")), 48);
    assert_int_equal(json_integer_value(json_object_get(data, "trial_tokens")), 16);
    const json_t *layers = json_object_get(got, "layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_true(json_is_false(json_object_get(json_array_get(layers, 0), "analysed")));
    const json_t *layer = json_array_get(layers, 1);
    assert_int_equal(json_array_size(json_object_get(layer, "heads")), 4);
    assert_int_equal(json_array_size(json_object_get(json_object_get(layer, "sizes"), "log_mean")),
                     13);
    assert_int_equal(json_array_size(json_object_get(got, "texts")), 5);
    assert_int_equal(json_array_size(json_object_get(got, "bill")), 8);
    assert_true(strlen(json_string_value(json_object_get(got, "verdict"))) > 20);
    json_decref(got);
    sr_token_rows_free(rows);
    sr_tokenizer_free(tokenizer);
    sr_model_free(model);
    sr_model_config_free(&config);
    sr_backend_free(backend);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_size),       cmocka_unit_test(growing_logits),
        cmocka_unit_test(dominant_order), cmocka_unit_test(histogram),
        cmocka_unit_test(truncation),     cmocka_unit_test(needed_order),
        cmocka_unit_test(bill),           cmocka_unit_test(truncated_model),
        cmocka_unit_test(record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
