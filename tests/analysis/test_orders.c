/* test_orders.c: sizes of orders against closed forms, truncation against the series itself. */
#include "analysis/logit_rows.h"
#include "analysis/order_sums.h"
#include "analysis/orders_verdict.h"
#include "analysis/state_cost.h"
#include "analysis/truncated/head.h"
#include "analysis/truncated/model.h"
#include "equation/score.h"
#include "small_model.h"

#include <stdio.h>
#include <unistd.h>

enum { ORDERS = 170, LENGTH = 16, SAVED_T = 12 };

/* A row of tiny weights is not a zero row for an l2 norm after exp, as in the kernels. */
static void tiny_rows_have_their_length(void **state) {
    (void)state;
    srnn_attention norm;
    double o[2] = {3e-20, 4e-20};
    assert_int_equal(srnn_attention_parse(&norm, "norm"), SRNN_OK);
    const sr_row_facts facts = {.attention = &norm, .count = 1, .D = 2};
    sr_row_finish(o, &facts, 1e-20);
    assert_true(fabs(o[0] - 0.6) < 1e-12 && fabs(o[1] - 0.8) < 1e-12);
}

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
    const srnn_operands in = {.q = {q, LENGTH, LENGTH, 1},
                              .k = {k, LENGTH, LENGTH, 1},
                              .v = {k, LENGTH, LENGTH, 1}};
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

/* Logits grow along the sequence to `top`, so that the sums must be rescaled; compared with closed
 * forms of the logarithms. */
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

/* Errors of one row, computed by a plain loop over sr_taylor. */
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
static void cost(void **state) {
    (void)state;
    srnn_attention softmax = {0};
    const sr_model_config config = {.L = 1, .H = 4, .Hkv = 2, .D = 64, .attention = &softmax};
    const sr_state_cost four = sr_state_cost_of(&config, 0, 4);
    assert_near(four.state_bytes / 2 / (1 << 20), 202, 0.005);
    assert_near(four.cache_token_bytes, 2 * 2 * 64 * 4, 0);
    assert_near(four.memory_tokens, ceil(four.state_bytes / 1024), 0);
    /* The same formula beyond the range of size_t. */
    double multisets = 1;
    for (int n = 1; n <= 100; n++)
        multisets *= (64.0 + n) / n;
    assert_near(sr_state_cost_of(&config, 0, 100).state_bytes / (multisets * 65 * 2 * 4), 1, 1e-12);
}

/* At a high enough order the truncated model equals the model. */
static void truncated_model(void **state) {
    (void)state;
    enum { B = 2, T = 12 };
    sr_backend *backend;
    int32_t ids[B * T], targets[B * T];
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
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

/* The saved output of the first layer. */
typedef struct saved_output {
    float o[4 * SAVED_T * 6]; /* (H, T, D) */
} saved_output;

static srnn_status save_output(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    saved_output *saved = context;
    (void)in;
    for (int h = 0; layer == 0 && h < 4; h++)
        for (int t = 0; t < SAVED_T; t++)
            memcpy(saved->o + (h * SAVED_T + t) * 6, (float *)o.data + h * o.head + t * o.time,
                   6 * sizeof(float));
    return SRNN_OK;
}

static void run_first_layer(saved_output *saved, sr_model *model, const int32_t *ids) {
    const sr_pass_setup setup = {.B = 1,
                                 .T = SAVED_T,
                                 .form = SRNN_FORM_PARALLEL,
                                 .observer = {save_output, saved}};
    float losses[SAVED_T];
    sr_pass *pass;
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, losses, ids, ids), SRNN_OK);
    sr_pass_free(pass);
}

static void survey_row(sr_survey *survey, sr_model *model, const int32_t *ids) {
    sr_survey_pass *pass;
    *survey = (sr_survey){.orders = 4, .most_order = 4};
    assert_int_equal(sr_survey_create(survey, model), SRNN_OK);
    assert_int_equal(sr_survey_pass_create(&pass, survey, model, SAVED_T), SRNN_OK);
    assert_int_equal(sr_survey_measure(pass, ids, ids), SRNN_OK);
    assert_int_equal(sr_survey_truncate(pass, ids, ids), SRNN_OK);
    sr_survey_pass_free(pass);
}

/* The series about other centres converges to the layer too. */
static void check_centres(sr_model *model, const sr_survey *survey, const int32_t *ids) {
    sr_trial trial = {.ids = ids, .targets = ids, .B = 1, .T = SAVED_T};
    double loss, error;
    assert_int_equal(sr_trial_begin(&trial, model), SRNN_OK);
    for (int centre = 0; centre < SR_CENTRES; centre++) {
        const sr_cut cuts[2] = {{40, (sr_centre)centre}, {36, (sr_centre)centre}};
        assert_int_equal(sr_trial_run(&loss, &error, &trial, model, survey, cuts), SRNN_OK);
        if (!(error < 2e-5))
            fail_msg("about the %s: %g", sr_centre_name((sr_centre)centre), error);
    }
    sr_trial_end(&trial);
}

/* The survey's error of outputs at order 4 is that of the layer run by the library, for every
 * clamp, normaliser, gate and norm. */
static void check_own_equation(sr_backend *backend, const srnn_variant *variant) {
    int32_t ids[SAVED_T];
    saved_output whole, cut;
    sr_survey survey;
    sr_model *model = small_model(backend, variant->name, SR_MLP_SWIGLU, false, false);
    small_ids(ids, SAVED_T, model->config.V, 3);
    run_first_layer(&whole, model, ids);
    srnn_attention truncated[2];
    for (int layer = 0; layer < 2; layer++)
        truncated[layer] = sr_attention_truncated(&model->config.attention[layer], 4);
    sr_model view = *model;
    view.config.attention = truncated;
    run_first_layer(&cut, &view, ids);
    survey_row(&survey, model, ids);
    const sr_truncation sums = sr_survey_layer(&survey, 0);
    const double want = small_error(cut.o, whole.o, sizeof whole.o / sizeof *whole.o);
    const double got = sr_truncation_error(sums.outputs[SR_CENTRE_ZERO][2], sums.outputs_size);
    if (!(fabs(got - want) <= 1e-3 * want + 1e-6))
        fail_msg("%s: %g in the place of %g", variant->name, got, want);
    if (variant->attention.clamp == 0)
        check_centres(model, &survey, ids);
    sr_survey_free(&survey);
    sr_model_free(model);
}

static void own_equations(void **state) {
    (void)state;
    sr_backend *backend;
    int count = 0;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    for (size_t i = 0; srnn_variant_at(i); i++)
        if (sr_attention_has_orders(&srnn_variant_at(i)->attention)) {
            check_own_equation(backend, srnn_variant_at(i));
            count++;
        }
    assert_true(count > 10);
    /* the gated attention of Qwen3-Next and Qwen3.5 */
    srnn_variant gated = {.name = "layer=nala,output_gate=sigmoid,gate_width=channel,qk_norm=head"};
    assert_int_equal(srnn_attention_parse(&gated.attention, gated.name), SRNN_OK);
    assert_true(sr_attention_has_orders(&gated.attention));
    check_own_equation(backend, &gated);
    sr_backend_free(backend);
}

/* Heads' centres are fitted to the rows after the test rows. */
static void held_out_centres(void **state) {
    (void)state;
    sr_backend *backend;
    sr_survey apart = {.orders = 2, .most_order = 2, .apart = SAVED_T}, only = apart;
    sr_survey_pass *pass;
    int32_t ids[2 * SAVED_T];
    only.apart = 0;
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *model = small_model(backend, "softmax", SR_MLP_SWIGLU, false, false);
    small_ids(ids, 2 * SAVED_T, model->config.V, 3);
    assert_int_equal(sr_survey_create(&apart, model), SRNN_OK);
    assert_int_equal(sr_survey_pass_create(&pass, &apart, model, SAVED_T), SRNN_OK);
    assert_int_equal(sr_survey_measure(pass, ids, ids), SRNN_OK);
    assert_int_equal(sr_survey_fit_tokens(&apart), 0);
    assert_int_equal(sr_survey_measure(pass, ids + SAVED_T, ids), SRNN_OK);
    assert_int_equal(sr_survey_fit_tokens(&apart), SAVED_T);
    sr_survey_pass_free(pass);
    assert_int_equal(sr_survey_create(&only, model), SRNN_OK);
    assert_int_equal(sr_survey_pass_create(&pass, &only, model, SAVED_T), SRNN_OK);
    assert_int_equal(sr_survey_measure(pass, ids + SAVED_T, ids), SRNN_OK);
    sr_survey_pass_free(pass);
    for (int head = 0; head < 8; head++) {
        const sr_logit_row row = {.head = head % 4};
        const sr_truncation_row got = sr_survey_row(&apart, head / 4, &row);
        assert_near(got.head_mean, only.sums[head].mean, 1e-12);
        assert_near(got.head_middle, (only.sums[head].least + only.sums[head].most) / 2, 1e-12);
        assert_true(fabs(got.head_mean - apart.sums[head].mean) > 1e-6);
    }
    sr_survey_free(&apart);
    sr_survey_free(&only);
    sr_model_free(model);
    sr_backend_free(backend);
}

/* The record of a small model, and a small text. */
static json_t *record_of(const char *attention, double size) {
    char path[] = "/tmp/test_orders_XXXXXX";
    const int file = mkstemp(path);
    const char text[] = "a few words\n<|endoftext|>\nand a few more, enough for rows of eight\n";
    sr_backend *backend;
    sr_tokenizer *tokenizer;
    sr_token_rows *rows;
    json_t *got;
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    assert_int_equal(sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizer), SRNN_OK);
    sr_model *model = small_byte_model(backend, attention, size);
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
    sr_token_rows_free(rows);
    sr_tokenizer_free(tokenizer);
    sr_model_free(model);
    sr_backend_free(backend);
    unlink(path);
    return got;
}

/* The documented content of the record. */
static void record(void **state) {
    (void)state;
    json_t *got = record_of("0:order:2,1:softmax", 0.02);
    const json_t *data = json_object_get(got, "data");
    /* 53 bytes and two beginnings: 55 tokens, of which the last of a row's targets is the next
     * row's first token. */
    assert_int_equal(json_integer_value(json_object_get(data, "tokens")), 48);
    assert_int_equal(json_integer_value(json_object_get(data, "trial_tokens")), 16);
    assert_int_equal(json_integer_value(json_object_get(data, "centre_tokens")), 32);
    const json_t *layers = json_object_get(got, "layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_true(json_is_false(json_object_get(json_array_get(layers, 0), "analysed")));
    const json_t *layer = json_array_get(layers, 1);
    assert_int_equal(json_array_size(json_object_get(layer, "heads")), 4);
    assert_int_equal(json_array_size(json_object_get(json_object_get(layer, "sizes"), "log_mean")),
                     13);
    assert_int_equal(json_array_size(json_object_get(got, "texts")), 5);
    assert_int_equal(json_array_size(json_object_get(got, "costs")), 8);
    assert_non_null(strstr(json_string_value(json_object_get(got, "verdict")), "Yes: "));
    json_decref(got);
}

static const json_t *bill_at(const json_t *record, size_t i, const char *name) {
    return json_object_get(json_array_get(json_object_get(record, "costs"), i), name);
}

/* Zero is available to every state; what was not tried is null, not insufficient. */
static void other_attention(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool free_shift;
    } cases[] = {{"norm", true}, {"gate", false}, {"softmax_gate", false}, {"softmax", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *got = record_of(cases[i].name, 0.1);
        const json_t *layer = json_array_get(json_object_get(got, "layers"), 0);
        const json_t *outputs = json_object_get(json_object_get(layer, "errors"), "outputs");
        const json_t *all = json_object_get(got, "all_layers");
        const json_t *zero = json_object_get(json_object_get(all, "needed"), "logits");
        const json_t *alike = json_array_get(bill_at(got, 1, "layers"), 0);
        const char *verdict = json_string_value(json_object_get(got, "verdict"));
        assert_int_equal(json_is_true(json_object_get(layer, "free_shift")), cases[i].free_shift);
        assert_int_equal(json_is_array(json_array_get(outputs, SR_CENTRE_HEAD_MEAN)),
                         cases[i].free_shift);
        assert_int_equal(json_array_size(json_object_get(all, "centred")),
                         cases[i].free_shift ? SR_CENTRES - 1 : 0);
        assert_true(json_is_integer(json_array_get(zero, 0)));
        assert_string_equal(json_string_value(bill_at(got, 1, "criterion")), "logits_centred");
        assert_true(json_integer_value(json_object_get(alike, "order")) <=
                    json_integer_value(json_array_get(zero, 0)));
        assert_true(json_number_value(
                        json_object_get(bill_at(got, 1, "together"), "logits_error")) <= 1e-2);
        assert_null(memmem(verdict, strcspn(verdict, "\n"), "No:", 3));
        json_decref(got);
    }
}

/* The first line of the verdict about a state of 1000 bytes that is smaller than the cache beyond
 * 10 tokens and gives an error of `error` when all layers are truncated. */
static bool verdict_says(double error, int positions, const char *words) {
    srnn_attention softmax = {0};
    const sr_model_config config = {
        .L = 1, .H = 1, .Hkv = 1, .D = 4, .positions = positions, .attention = &softmax};
    json_t *record =
        json_pack("{s[ff], si, s{sf}, s[{ss, si, s[{si, si, ss, sf, sf}], s{sf, sf}, s{sf, sf}}]}",
                  "tolerances", 1e-2, 1e-3, "most_order", 8, "data", "trial_loss", 2.0, "costs",
                  "criterion", "logits", "tolerance", 0, "layers", "layer", 0, "order", 4, "centre",
                  "zero", "state_bytes", 1000.0, "memory_break_even_tokens", 10.0, "total",
                  "state_bytes", 1000.0, "memory_break_even_tokens", 10.0, "together", "loss", 2.1,
                  "logits_error", error);
    assert_non_null(record);
    assert_int_equal(sr_orders_verdict(record, &config), SRNN_OK);
    const char *verdict = json_string_value(json_object_get(record, "verdict"));
    const bool says = memmem(verdict, strcspn(verdict, "\n"), words, strlen(words)) != NULL;
    json_decref(record);
    return says;
}

/* Layers that are each accurate enough alone, but not together, do not give a positive verdict. */
static void verdict(void **state) {
    (void)state;
    assert_true(verdict_says(0.009, 32, "Yes: "));
    assert_true(verdict_says(0.011, 32, "No: "));
    assert_true(verdict_says(0.009, 9, "Not to advantage: "));
}

/* Layers of a hybrid that are not softmax are in no sentence. */
static void verdict_names_layers(void **state) {
    (void)state;
    srnn_attention softmax[7] = {{0}};
    const sr_model_config config = {
        .L = 7, .H = 1, .Hkv = 1, .D = 4, .positions = 32, .attention = softmax};
    json_t *layers = json_array();
    for (int layer = 3; layer < 7; layer += layer == 3 ? 2 : 1)
        assert_int_equal(json_array_append_new(layers, json_pack("{si, si, ss, sf, sf}", "layer",
                                                                 layer, "order", 4, "centre",
                                                                 "zero", "state_bytes", 1000.0,
                                                                 "memory_break_even_tokens", 10.0)),
                         0);
    json_t *record =
        json_pack("{s[ff], si, s{sf}, s[{ss, si, so, s{sf, sf}, s{sf, sf}}]}", "tolerances", 1e-2,
                  1e-3, "most_order", 8, "data", "trial_loss", 2.0, "costs", "criterion", "logits",
                  "tolerance", 0, "layers", layers, "total", "state_bytes", 3000.0,
                  "memory_break_even_tokens", 10.0, "together", "loss", 2.1, "logits_error", 0.009);
    assert_int_equal(sr_orders_verdict(record, &config), SRNN_OK);
    const char *text = json_string_value(json_object_get(record, "verdict"));
    assert_non_null(strstr(text, "layers 3,5-6 could run at order 4"));
    json_decref(record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_rows_have_their_length),
        cmocka_unit_test(one_size),
        cmocka_unit_test(growing_logits),
        cmocka_unit_test(dominant_order),
        cmocka_unit_test(histogram),
        cmocka_unit_test(truncation),
        cmocka_unit_test(needed_order),
        cmocka_unit_test(cost),
        cmocka_unit_test(truncated_model),
        cmocka_unit_test(own_equations),
        cmocka_unit_test(held_out_centres),
        cmocka_unit_test(record),
        cmocka_unit_test(other_attention),
        cmocka_unit_test(verdict),
        cmocka_unit_test(verdict_names_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
